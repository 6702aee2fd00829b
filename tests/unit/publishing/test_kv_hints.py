"""KV hint envelopes: each action is the manager's call of the same name, and its receipt says the outcome."""

from typing import Any

import pytest
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheManager, LogicError, ReuseScope
from kv_cache_manager_v2.publishing.kv_hints import apply_kv_hints

TOKENS = list(range(100, 112))


def cached(**settings: Any) -> KVCacheManager:
    """With three cached blocks of 4 tokens."""
    manager = KVCacheManager(config_of(num_slots=16, **settings), device=HostDevice())
    run_prompt(manager, TOKENS).close()
    return manager


def action(kind: str, number: int = 0, version: str = "0.1", **payload: Any) -> dict[str, Any]:
    return {"action_id": f"a-{number}", "action_type": kind, "action_version": version, "payload": payload}


def envelope(*actions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"protocol_version": "0.1", "message_id": "m-1", "actions": list(actions), **changes}


def priorities(manager: KVCacheManager) -> list[int]:
    [root] = manager.describe()["tree"]
    return [page["priority"] for block in root["blocks"] for page in block["pages"]]


def test_each_action_is_its_call() -> None:
    manager, other = cached(), cached()
    answer = apply_kv_hints(
        manager,
        envelope(
            action("kv.retain", 1, tokens=TOKENS[:8], priority=80, duration_seconds=5),
            action("kv.demote", 2, tokens=TOKENS),
            action("retain", 3, tokens=TOKENS[:4]),
            action("kv.release", 4, tokens=TOKENS[:8]),
            action("kv.prefetch", 5, tokens=TOKENS, target_level=0),
        ),
    )
    other.retain(TOKENS[:8], priority=80, duration_seconds=5)
    other.demote(TOKENS)
    other.retain(TOKENS[:4])
    other.release(TOKENS[:8])
    other.prefetch(TOKENS)
    assert manager.state_digest() == other.state_digest() and manager.describe() == other.describe()
    assert priorities(manager) == [35, 35, 0]
    assert (answer["protocol_version"], answer["message_id"]) == ("0.1", "m-1")
    assert [receipt["action_id"] for receipt in answer["receipts"]] == ["a-1", "a-2", "a-3", "a-4", "a-5"]
    assert {receipt["status"] for receipt in answer["receipts"]} == {"applied"}
    assert [receipt["accepted_tokens"] for receipt in answer["receipts"]] == [8, 12, 4, 8, 12]
    manager.shutdown()
    other.shutdown()


def test_receipts_say_what_is_missing_or_clipped() -> None:
    """8 cached tokens are asked for with 4 that are not; in another scope none is. Of 16 slots 0.07 is one block that may be retained."""
    manager = cached(max_pinned_share=0.07)
    [partial, foreign, clipped] = apply_kv_hints(
        manager,
        envelope(
            action("kv.demote", tokens=[*TOKENS[:8], 1, 2, 3, 4]),
            action("kv.demote", tokens=TOKENS, lora_id=3, salt="tenant"),
            action("kv.retain", tokens=TOKENS),
        ),
    )["receipts"]
    assert (partial["status"], partial["accepted_tokens"], partial["missing_tokens"]) == ("partial", 8, 4)
    assert (foreign["status"], foreign["accepted_tokens"], foreign["missing_tokens"]) == ("partial", 0, 12)
    assert (clipped["status"], clipped["accepted_tokens"], clipped["clipped_tokens"]) == ("partial", 4, 8)
    assert manager.probe_reuse(ReuseScope(3, "tenant"), TOKENS) == 0
    manager.shutdown()


@pytest.mark.parametrize(
    "wrong, words",
    [
        (action("kv.share", tokens=TOKENS), "action_type 'kv.share' is unknown"),
        (action("kv.demote", version="2", tokens=TOKENS), "action_version of 'kv.demote' is '2'"),
        (action("kv.demote", tokens=TOKENS, target_level=1), "has 'target_level'"),
        (action("kv.demote"), "no 'tokens'"),
        (action("kv.demote", tokens="text"), "'tokens' of the payload of 'kv.demote' must be the list of token ids of a prefix, not str"),
        (action("kv.demote", tokens=None), "not NoneType"),
        ({**action("kv.demote"), "payload": {"tokens": TOKENS, 7: 1}}, "has 7; its fields are tokens"),
        ({**action("kv.demote"), "payload": {"tokens": TOKENS, 10**5000: 1}}, "has a int; its fields are tokens"),
        (action("kv.retain", tokens=TOKENS, priority=10**5000), "bits"),
        (action("kv.demote", tokens=[-1]), "-1"),
        (action("kv.retain", tokens=TOKENS, priority=101), "101"),
        (action("kv.retain", tokens=TOKENS, duration_seconds=-2), "duration_seconds"),
        (action("kv.prefetch", tokens=TOKENS, target_level=4), "target_level"),
        (action("kv.demote", tokens=TOKENS, lora_id="x"), "lora_id"),
    ],
)
def test_a_wrong_action_is_refused_by_name_and_the_others_pass(wrong: dict[str, Any], words: str) -> None:
    manager = cached()
    [first, second] = apply_kv_hints(manager, envelope(wrong, action("kv.demote", 1, tokens=TOKENS)))["receipts"]
    assert first["status"] == "refused" and words in first["reason"] and "accepted_tokens" not in first
    assert (second["status"], second["accepted_tokens"]) == ("applied", 12)
    manager.shutdown()


@pytest.mark.parametrize(
    "wrong, words",
    [
        (envelope(protocol_version="0.2"), "protocol_version is '0.2'"),
        (envelope(message_id=""), "message_id of envelope is empty"),
        (envelope(message_id=3), "message_id"),
        ({"protocol_version": "0.1", "message_id": "m"}, "envelope has no 'actions'"),
        (envelope(action("kv.demote", tokens=TOKENS), {"action_id": "b"}), r"actions\[1\] has no 'action_type'"),
        (envelope(action("kv.demote", tokens=TOKENS), action("", tokens=TOKENS)), r"action_type of actions\[1\] is empty"),
        (envelope({**action("kv.demote"), "payload": 3}), r"actions\[0\]: payload must be an object"),
        (envelope(actions=7), "actions"),
        (["m"], "envelope must be an object"),
    ],
)
def test_what_is_no_envelope_changes_nothing(wrong: Any, words: str) -> None:
    manager = cached()
    before = manager.state_digest(), manager.describe()
    with pytest.raises((TypeError, ValueError), match=words):
        apply_kv_hints(manager, wrong)
    assert (manager.state_digest(), manager.describe()) == before
    manager.shutdown()


def test_a_closed_manager_is_no_refusal() -> None:
    manager = cached()
    manager.shutdown()
    with pytest.raises(LogicError):
        apply_kv_hints(manager, envelope(action("kv.demote", tokens=TOKENS)))
