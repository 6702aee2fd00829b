"""What drains events, and what says a whole state, asks for pauses at each block: compiled code keeps other threads waiting otherwise."""

from typing import Any

import pytest
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheEventManager, KVCacheManager
from kv_cache_manager_v2.publishing.wire_translator import WireTranslator
from kv_cache_manager_v2.publishing.wire_writer import DIALECTS, WireWriter

NUM_BLOCKS = 500


class Packer:
    def encode(self, value: object) -> bytes:
        return repr(value).encode()


@pytest.fixture
def manager() -> Any:
    events = KVCacheEventManager(10_000)
    with KVCacheManager(config_of(num_slots=NUM_BLOCKS), device=HostDevice(), event_manager=events) as made:
        run_prompt(made, list(range(4 * NUM_BLOCKS))).close()
        events.flush_iteration_events()
        yield made


def test_draining_pauses_at_each_block(manager: Any) -> None:
    turns = manager.event_manager._backlog._assembler._turns
    manager.event_manager.get_latest_events()
    assert turns.num_asked >= NUM_BLOCKS
    before = turns.num_asked
    manager.event_manager.snapshot()
    # Who is whose child, the order, what belongs together, and each block's data.
    assert turns.num_asked - before >= 4 * NUM_BLOCKS


def test_saying_the_state_pauses_at_each_block(manager: Any) -> None:
    events = manager.event_manager
    translator = WireTranslator(4, events.cache_tiers, events.layer_group_kinds, {})
    turns = translator._turns
    assert len(translator.translate(events.get_latest_events())) == 1
    assert turns.num_asked >= NUM_BLOCKS
    before = turns.num_asked
    assert len(translator.events_of_state()) == 2
    # The groups, their members, who is whose child, the order, and each block's tokens.
    assert turns.num_asked - before >= 5 * NUM_BLOCKS
    before = turns.num_asked
    translator.begin_anew(events.snapshot())
    assert turns.num_asked - before >= 2, "at each event"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_writing_pauses_at_each_event(manager: Any, dialect: str) -> None:
    events = manager.event_manager
    translator = WireTranslator(4, events.cache_tiers, events.layer_group_kinds, {})
    said = translator.translate(events.get_latest_events()) * 20
    writer = WireWriter(Packer(), dialect, False)
    writer.write_batch(0.0, said, 0)
    assert writer._turns.num_asked == len(said) == 20
