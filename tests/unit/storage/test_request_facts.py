"""`RequestFacts`: nothing of a request is taken for the next one's."""

from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.storage.eviction.segment_traits import CONTINUES, NO_HINT, NO_REQUEST, RequestFacts


def test_kinds_are_those_of_the_request_that_has_begun() -> None:
    facts = RequestFacts()
    for num_blocks in (5, 3, 7):
        facts.begin(num_blocks, 0, 0)
        assert [facts.kind_at(block) for block in range(10)] == [NO_HINT] * 10
        facts.kinds = vec[i64]([3] * num_blocks)
        assert [facts.kind_at(block) for block in range(10)] == [3] * num_blocks + [NO_HINT] * (10 - num_blocks)
        facts.end()


def test_what_no_request_releases_has_none_of_its_traits() -> None:
    facts = RequestFacts()
    serials = []
    for _ in range(2):
        facts.begin(5, 2, 7, CONTINUES)
        serials.append(facts.serial)
        facts.kinds = vec[i64]([3] * 5)
        facts.end()
        assert (facts.serial, facts.num_blocks, facts.num_generated_blocks, facts.num_generated_tokens) == (NO_REQUEST, 0, 0, 0)
        assert facts.continues == facts.kind_at(0) == NO_HINT
    assert len({*serials, NO_REQUEST}) == 3
