"""The digest of decisions: recorded together they are recorded one after the other, and undone ones are forgotten."""

from librt.vecs import vec
from mypy_extensions import i64
from small_models import manager_of, run_prompt

from kv_cache_manager_v2.storage.decision_digest import MATCH, SLOT, DecisionDigest


def test_a_run_is_its_decisions_in_order() -> None:
    slots = [7, 0, 2**31 - 1, 7, 3]
    singly, together, reversed_run = DecisionDigest(), DecisionDigest(), DecisionDigest()
    for digest in (singly, together, reversed_run):
        digest.record(MATCH, 12)
    for slot in slots:
        singly.record(SLOT, slot)
    together.record_run(SLOT, vec[i64](slots))
    reversed_run.record_run(SLOT, vec[i64](slots[::-1]))
    assert together.to_bytes() == singly.to_bytes()
    assert reversed_run.to_bytes() != singly.to_bytes()


def test_a_run_of_nothing_is_no_decision() -> None:
    digest = DecisionDigest()
    digest.record(SLOT, 5)
    before = digest.to_bytes()
    digest.record_run(SLOT, vec[i64]())
    assert digest.to_bytes() == before


def test_decisions_that_were_undone_are_forgotten() -> None:
    """Whatever was recorded since the mark, one by one or as a run: the next decisions give what they would have given without it."""
    undone, straight = DecisionDigest(), DecisionDigest()
    for digest in (undone, straight):
        digest.record(MATCH, 12)
    mark = undone.mark()
    undone.record(SLOT, 3)
    undone.record_run(SLOT, vec[i64]([4, 5]))
    assert undone.to_bytes() != straight.to_bytes()
    undone.roll_back(mark)
    assert undone.to_bytes() == straight.to_bytes()
    for digest in (undone, straight):
        digest.record(SLOT, 9)
    assert undone.to_bytes() == straight.to_bytes()


def test_matches_of_any_two_lengths_differ() -> None:
    """Prompts that match from no block to all 20, in managers that are equal but for that: the match alone tells them apart."""
    prompt = list(range(20))
    digests = set()
    for num_equal in range(len(prompt) + 1):
        with manager_of(tokens_per_block=1) as manager:
            run_prompt(manager, prompt).close()
            before = manager.state_digest()
            with manager.create_kv_cache(input_tokens=[*prompt[:num_equal], *range(100, 120)]) as kv_cache:
                assert kv_cache.num_committed_tokens == num_equal
                digests.add(manager.state_digest())
            assert before not in digests
    assert len(digests) == len(prompt) + 1
