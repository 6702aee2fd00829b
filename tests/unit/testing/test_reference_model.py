"""The reference model accepts what the rules allow and objects to what they do not, shown with dumps made by hand."""

import pytest

from kv_cache_manager_v2.config.cache_tier_config import GpuCacheTierConfig
from kv_cache_manager_v2.config.layer_config import AttentionLayerConfig, BufferConfig, SsmLayerConfig
from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.config.scratch_reuse_config import SwaScratchReuseConfig
from kv_cache_manager_v2.testing.reference_model import MUST_SNAPSHOT, ReferenceModel
from kv_cache_manager_v2.testing.reference_pages import ModelDisagreement

DEFAULT_SCOPE = (None, None)


def make_model(window=None, **options):
    layers = [AttentionLayerConfig(0, [BufferConfig("key", 8)], window)]
    return ReferenceModel(KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 20)], layers, **options), [[0]])


def dump(blocks, shares_last_block=False, page_slots=()):
    """``blocks``: (depth, tokens, status or None, slot) in preorder; one scope, one group, sequence 0."""
    return {
        "leases": [], "tree": [
            {
                "lora_id": None,
                "salt": None,
                "blocks": [
                    {"depth": depth, "tokens": list(tokens), "pages": [page_of(status, slot)]}
                    for depth, tokens, status, slot in blocks
                ],
            }
        ],
        "sequences": [
            {
                "id": 0,
                "shares_last_block": shares_last_block,
                "page_slots": [list(page_slots)],
                "page_levels": [[0] * len(page_slots)],
                "forked_blocks": [],
            }
        ],
    }


def page_of(status, slot):
    return status and {"status": status, "level": 0, "slot": slot}


def running(model, num_tokens):
    """An active sequence with room for that many tokens."""
    sequence = model.create(0, DEFAULT_SCOPE, (), 0, dump([]))
    model.resume(sequence, dump([]))
    model.resize(sequence, num_tokens, 0, dump([]))
    model.see(dump([]))
    return sequence


def test_life_of_a_sequence():
    model = make_model()
    sequence = running(model, 6)
    assert model.num_blocks(sequence) == 2
    assert model.num_used_slots(0) == model.num_needed_slots(0) == model.num_locked_slots(0) == 2
    model.commit(sequence, [1, 2, 3, 4, 5])
    model.see(dump([(0, (1, 2, 3, 4), "locked", 7)]))
    assert (sequence.history, len(sequence.path)) == (5, 1)
    assert model.num_used_slots(0) == 2
    model.suspend(sequence)
    model.see(dump([(0, (1, 2, 3, 4), "held", 7)]))
    assert model.num_locked_slots(0) == 0
    model.close(sequence)
    model.see(dump([(0, (1, 2, 3, 4), "droppable", 7), (1, (5,), "droppable", 3)]))
    assert model.num_needed_slots(0) == 0 and model.num_used_slots(0) == 2
    assert model.expect_match(DEFAULT_SCOPE, (1, 2, 3, 4, 5, 6)).best == 5
    model.end_epoch(None)
    model.see(dump([]))


@pytest.mark.parametrize(
    "blocks",
    [[], [(0, (1, 2, 3, 5), "locked", 7)], [(0, (1, 2, 3, 4), "droppable", 7)]],
    ids=["it must come", "with its own text", "and its status"],
)
def test_a_published_page(blocks):
    model = make_model()
    sequence = running(model, 4)
    model.commit(sequence, [1, 2, 3, 4])
    with pytest.raises(ModelDisagreement):
        model.see(dump(blocks))


def published(model, tokens=(1, 2, 3, 4), name=0):
    """A prefix that is in the tree and that no sequence needs."""
    sequence = model.create(name, DEFAULT_SCOPE, (), 0, dump([]))
    model.resume(sequence, dump([]))
    model.resize(sequence, len(tokens), 0, dump([]))
    model.commit(sequence, list(tokens))
    model.close(sequence)
    model.see(dump([(0, tokens, "droppable", 7)]))


def test_page_may_be_dropped_only_by_eviction():
    model = make_model()
    published(model)
    with pytest.raises(ModelDisagreement):
        model.see(dump([]))
    model = make_model()
    published(model)
    other = model.create(0, DEFAULT_SCOPE, (), 0, dump([]))
    model.resume(other, dump([]))
    model.see(dump([]))


def test_page_that_is_needed_may_not_go():
    model = make_model()
    published(model)
    sequence = model.create(0, DEFAULT_SCOPE, (1, 2, 3, 4), 4, dump([]))
    model.see(dump([(0, (1, 2, 3, 4), "held", 7)]))
    model.resume(sequence, dump([]))
    with pytest.raises(ModelDisagreement):
        model.see(dump([]))


def test_page_that_was_dropped_does_not_come_back_by_itself():
    model = make_model()
    published(model)
    model.end_epoch(None)
    model.see(dump([]))
    with pytest.raises(ModelDisagreement):
        model.see(dump([(0, (1, 2, 3, 4), "droppable", 7)]))


def test_match_must_be_the_longest():
    model = make_model()
    published(model)
    for num_tokens in (0, 3, 5):
        with pytest.raises(ModelDisagreement):
            model.create(0, DEFAULT_SCOPE, (1, 2, 3, 4, 5), num_tokens, dump([]))


def test_partly_matched_block_becomes_private_on_resume():
    model = make_model()
    published(model)
    sequence = model.create(0, DEFAULT_SCOPE, (1, 2, 9), 2, dump([], page_slots=[7]))
    assert sequence.node(0) is not None
    # A slot for the copy; or none, if there is no room: no other sequence needs the block, so it may become private as it is.
    assert (model.slots_to_resume(sequence).least, model.slots_to_resume(sequence).most) == ([0], [1])
    other = model.create(1, DEFAULT_SCOPE, (1, 2, 9), 2, {"sequences": [{"id": 1, "page_slots": [[7]], "page_levels": [[0]]}]})
    assert model.slots_to_resume(sequence).least == [1]
    model.close(other)
    with pytest.raises(ModelDisagreement):
        model.resume(sequence, dump([], shares_last_block=True))
    model.resume(sequence, dump([]))
    assert sequence.node(0) is None
    model.see(dump([(0, (1, 2, 3, 4), "droppable", 7)]))


def test_block_of_which_a_part_was_published_is_not_written_again():
    model = make_model()
    sequence = running(model, 4)
    model.commit(sequence, [1, 2])
    model.stop_committing(sequence, dump([], shares_last_block=True))
    model.see(dump([(0, (1, 2), "locked", 5)]))
    need = model.slots_to_resize(sequence, 4, 2)
    assert (need.least, need.most) == ([0], [1])
    with pytest.raises(ModelDisagreement):
        model.resize(sequence, 4, 2, dump([], shares_last_block=True))
    model.resize(sequence, 4, 2, dump([]))
    model.see(dump([(0, (1, 2), "droppable", 5)]))


def test_fuller_block_may_replace_a_partial_one():
    model = make_model()
    published(model, (1, 2))
    sequence = model.create(0, DEFAULT_SCOPE, (), 0, dump([]))
    model.resume(sequence, dump([]))
    model.resize(sequence, 4, 0, dump([]))
    model.see(dump([(0, (1, 2), "droppable", 7)]))
    model.commit(sequence, [1, 2, 3, 4])
    model.see(dump([(0, (1, 2, 3, 4), "locked", 8)]))


def test_window_gives_pages_back():
    """T = 4, window 4: at history 8 the next token reads 5..8, so block 0 is stale and block 1 is not."""
    model = make_model(window=4)
    sequence = running(model, 8)
    need = model.slots_to_resize(sequence, 12, 8)
    assert (need.least, need.released) == ([1], [1])
    model.commit(sequence, list(range(8)))
    # Block 0 is stale once it is committed; it was published with its page all the same.
    model.see(dump([(0, (0, 1, 2, 3), "droppable", 1), (1, (4, 5, 6, 7), "locked", 2)]))


def test_nothing_below_a_block_that_cannot_be_matched():
    model = make_model()
    sequence = running(model, 8)
    model.commit(sequence, list(range(8)))
    model.see(dump([(0, (0, 1, 2, 3), "locked", 1), (1, (4, 5, 6, 7), "locked", 2)]))
    model.close(sequence)
    other = model.create(1, DEFAULT_SCOPE, (), 0, dump([]))
    model.resume(other, {"sequences": [{"id": 1, "shares_last_block": False}]})
    with pytest.raises(ModelDisagreement):
        model.see(dump([(0, (0, 1, 2, 3), None, 1), (1, (4, 5, 6, 7), "droppable", 2)]))


def test_layers_of_a_group_must_be_alike():
    layers = [AttentionLayerConfig(0, [BufferConfig("key", 8)]), AttentionLayerConfig(1, [BufferConfig("key", 8)], 4)]
    config = KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 20)], layers)
    with pytest.raises(ModelDisagreement):
        ReferenceModel(config, [[0, 1]])


def test_scratch_blocks_of_the_worked_example():
    """32 layers, W = 128, T = 32, 1024 tokens: blocks 0..27 are scratch and share one slot, 4 have pages."""
    buffers = [BufferConfig("key", 64), BufferConfig("value", 64)]
    layers = [AttentionLayerConfig(layer_id, buffers, 128) for layer_id in range(32)]
    scratch_reuse = SwaScratchReuseConfig()
    config = KVCacheManagerConfig(32, [GpuCacheTierConfig(1 << 20)], layers, swa_scratch_reuse=scratch_reuse)
    model = ReferenceModel(config, [list(range(32))])
    sequence = model.create(0, DEFAULT_SCOPE, (), 0, dump([]))
    model.resume(sequence, dump([]))
    assert model.slots_to_resize(sequence, 1024, 0).most == [5]
    model.resize(sequence, 1024, 0, dump([]))
    assert sequence.scratch == [(0, 28)]
    assert model.num_scratch_slots(sequence, 0) == 1
    assert model.num_locked_slots(0) == 5
    model.suspend(sequence)
    assert model.num_needed_slots(0) == 4
    assert model.slots_to_resume(sequence).most == [1]


def test_scratch_slots_of_layers_with_different_numbers_of_buffers():
    """Three buffers of one size, two of them of one layer: a slot holds 3 // 2 = 1 block of that layer."""
    layers = [
        AttentionLayerConfig(0, [BufferConfig("key", 8)], 4),
        AttentionLayerConfig(1, [BufferConfig("key", 8), BufferConfig("value", 8)], 4),
    ]
    options = {"swa_scratch_reuse": SwaScratchReuseConfig(max_rewind_len=4)}
    model = ReferenceModel(KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 20)], layers, **options), [[0, 1]])
    sequence = model.create(0, DEFAULT_SCOPE, (), 0, dump([]))
    model.resume(sequence, dump([]))
    model.resize(sequence, 24, 0, dump([]))
    # Stale at 24 - 4 = 20: floor((20 + 1 - 4) / 4) = 4 blocks, a slot for each.
    assert sequence.scratch == [(0, 4)]
    assert model.num_scratch_slots(sequence, 0) == 4


def test_recurrent_state_matches_where_a_snapshot_is():
    """One layer of attention, one recurrent; 4 tokens per block, a snapshot at 4 and none at 8."""
    layers = [AttentionLayerConfig(0, [BufferConfig("key", 8)]), SsmLayerConfig(1, [BufferConfig("ssm", 8)])]
    model = ReferenceModel(KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 20)], layers), [[0], [1]])

    def seen(*blocks):
        plain = dump([])
        plain["tree"][0]["blocks"] = [
            {"depth": depth, "tokens": list(tokens), "pages": [page_of("locked", slot), page_of(snapshot, 9)]}
            for depth, (tokens, slot, snapshot) in enumerate(blocks)
        ]
        return plain

    sequence = model.create(0, DEFAULT_SCOPE, (), 0, seen())
    assert model.slots_to_resume(sequence).least == [0, 1]
    model.resume(sequence, seen())
    assert model.num_locked_slots(1) == 1
    model.resize(sequence, 8, 0, seen())
    model.commit(sequence, [1, 2, 3, 4], MUST_SNAPSHOT)
    with pytest.raises(ModelDisagreement):
        model.see(seen(((1, 2, 3, 4), 7, None)))
    model.see(seen(((1, 2, 3, 4), 7, "droppable")))
    model.commit(sequence, [5, 6, 7, 8])
    model.see(seen(((1, 2, 3, 4), 7, "droppable"), ((5, 6, 7, 8), 8, None)))
    for text, expected in (((1, 2, 3), 0), ((1, 2, 3, 4), 4), ((1, 2, 3, 4, 5, 6, 7, 8, 9), 4)):
        assert model.expect_match(DEFAULT_SCOPE, text).best == expected
    with pytest.raises(ModelDisagreement):  # no sequence may have left one at 8
        model.see(seen(((1, 2, 3, 4), 7, "droppable"), ((5, 6, 7, 8), 8, "droppable")))
