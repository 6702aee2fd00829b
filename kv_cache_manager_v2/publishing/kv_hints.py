"""KV hint envelopes, protocol 0.1: what an orchestrator asks of the cache, applied to a manager; each action gets a receipt.

    {"protocol_version": "0.1", "message_id": "m-1", "actions": [
        {"action_id": "a-1", "action_type": "kv.retain", "action_version": "0.1", "payload": {"tokens": [1, 2, 3], "priority": 80}}]}

    action_type   call                        payload beside "tokens", "lora_id" and "salt"
    kv.retain     `KVCacheManager.retain`     "priority", "duration_seconds"
    kv.release    `KVCacheManager.release`
    kv.demote     `KVCacheManager.demote`
    kv.prefetch   `KVCacheManager.prefetch`   "target_level"

Without "duration_seconds" a prefix is retained as long as LEARNED expects; 1e9, the most, is for ever.

The protocol leaves types, versions and payloads of actions to both sides; these are this library's, and "kv." may be left out. An envelope
that is none is an error before anything has changed. An action that is unknown, of another version or wrong is refused in its receipt, by
name, and the others are applied.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from ..base.checks import shown, to_instance, to_list, to_text, type_name
from ..base.given import Given
from ..manager.kv_cache_manager import KVCacheManager
from ..reuse.reuse_scope import make_scope
from ..stats.hint_result import HintResult

PROTOCOL_VERSION: Final = "0.1"
ACTION_VERSION: Final = "0.1"
_PREFIX: Final = "kv."
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "retain": ("priority", "duration_seconds"),
    "release": (),
    "demote": (),
    "prefetch": ("target_level",),
}
_COMMON_FIELDS: Final = ("tokens", "lora_id", "salt")
_Payload: TypeAlias = dict[object, object]


def apply_kv_hints(manager: Given[KVCacheManager], envelope: Given[Mapping[str, Any]]) -> dict[str, Any]:
    """Apply the actions of an envelope in their order: ``{"protocol_version", "message_id", "receipts": [...]}``.

    A receipt has ``action_id``, ``action_type`` and ``status``: "applied", or "partial" where tokens of the prefix are not cached or
    were clipped, with ``accepted_tokens``, ``clipped_tokens`` and ``missing_tokens``; or "refused", with a ``reason``. `TypeError` and
    `ValueError` for an envelope that is none; what the manager raises because it is shut down or broken is passed on.
    """
    manager = to_instance(manager, KVCacheManager, "manager")
    version = _text_of(envelope, "protocol_version", "envelope")
    if version != PROTOCOL_VERSION:
        raise ValueError(f"protocol_version is {version!r}; this library speaks {PROTOCOL_VERSION!r}")
    message_id = _text_of(envelope, "message_id", "envelope")
    actions: list[tuple[str, str, str, _Payload]] = []
    for position, action in enumerate(to_list(_field_of(envelope, "actions", "envelope"), "actions")):
        name = f"actions[{position}]"
        texts = [_text_of(action, field, name) for field in ("action_id", "action_type", "action_version")]
        payload = _field_of(action, "payload", name)
        if not isinstance(payload, Mapping):
            raise TypeError(f"{name}: payload must be an object, not {type(payload).__name__}")
        actions.append((texts[0], texts[1], texts[2], dict(payload)))
    receipts = [_apply(manager, *action) for action in actions]
    return {"protocol_version": PROTOCOL_VERSION, "message_id": message_id, "receipts": receipts}


def _apply(manager: KVCacheManager, action_id: str, action_type: str, version: str, payload: _Payload) -> dict[str, Any]:
    receipt: dict[str, Any] = {"action_id": action_id, "action_type": action_type}
    kind = action_type.removeprefix(_PREFIX)
    reason = _find_fault(action_type, kind, version, payload)
    if reason is None:
        try:
            result = _call(manager, kind, payload)
        except (TypeError, ValueError) as error:
            reason = str(error)
        else:
            receipt["status"] = "applied" if result.num_clipped + result.num_missing == 0 else "partial"
            receipt["accepted_tokens"] = result.num_accepted
            receipt["clipped_tokens"] = result.num_clipped
            receipt["missing_tokens"] = result.num_missing
            return receipt
    receipt["status"] = "refused"
    receipt["reason"] = reason
    return receipt


def _find_fault(action_type: str, kind: str, version: str, payload: _Payload) -> str | None:
    if kind not in _FIELDS:
        return f"action_type {action_type!r} is unknown; known are {', '.join([_PREFIX + known for known in _FIELDS])}"
    if version != ACTION_VERSION:
        return f"action_version of {action_type!r} is {version!r}; this library has {ACTION_VERSION!r}"
    known = (*_COMMON_FIELDS, *_FIELDS[kind])
    for field in payload:
        if field not in known:
            return f"payload of {action_type!r} has {shown(field)}; its fields are {', '.join(known)}"
    if "tokens" not in payload:
        return f"payload of {action_type!r} has no 'tokens', the list of token ids of a prefix"
    tokens = payload["tokens"]
    if not isinstance(tokens, Sequence) or isinstance(tokens, (str, bytes)):
        return f"'tokens' of the payload of {action_type!r} must be the list of token ids of a prefix, not {type_name(tokens)}"
    return None


def _call(manager: KVCacheManager, kind: str, payload: _Payload) -> HintResult:
    tokens: Any = payload["tokens"]
    scope = make_scope(payload.get("lora_id"), payload.get("salt"))
    arguments: dict[str, Any] = {field: payload[field] for field in _FIELDS[kind] if payload.get(field) is not None}
    if kind == "retain":
        return manager.retain(tokens, scope, **arguments)
    if kind == "release":
        return manager.release(tokens, scope)
    if kind == "demote":
        return manager.demote(tokens, scope)
    return manager.prefetch(tokens, scope, **arguments)


def _field_of(values: object, field: str, name: str) -> object:
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} must be an object, not {type(values).__name__}")
    if field not in values:
        raise ValueError(f"{name} has no {field!r}")
    value: object = values[field]
    return value


def _text_of(values: object, field: str, name: str) -> str:
    text = to_text(_field_of(values, field, name), f"{field} of {name}")
    if text == "":
        raise ValueError(f"{field} of {name} is empty")
    return text
