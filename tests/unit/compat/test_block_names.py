"""TensorRT-LLM's three names of a block, from its published rules: written again here, and worked out by hand for small blocks."""

import hashlib
import random
from typing import Any

import pytest
from small_models import config_of, run_prompt

import kv_cache_manager_v2.compat.tensorrt_llm as runtime
from kv_cache_manager_v2 import HostDevice, KVCacheEventManager, KVCacheManager, KVCacheStoredData, ReuseScope, compute_block_hashes

WORD = 2**64


def chain_of(tokens: list[Any], size: int, lora_id: int | None, salt: int | None) -> list[bytes]:
    """The v2 digests of the scope and of each chunk, from the rule."""
    values = (lora_id, salt)
    root = bytes([sum(1 << bit for bit, value in enumerate(values) if value is not None)])
    for value in values:
        if value is not None:
            root += value.to_bytes(8, "little")
    digests = [hashlib.sha256(root).digest()]
    for begin in range(0, len(tokens), size):
        content = b""
        for token in tokens[begin : begin + size]:
            content += b"\xff\xff\xff\xff" + token if isinstance(token, bytes) else token.to_bytes(4, "little")
        digests.append(hashlib.sha256(digests[-1] + content).digest())
    return digests


def mix(seed: int, value: int) -> int:
    return seed ^ (value + seed * 64 + seed // 4) % WORD


def mix_token(seed: int, token: int) -> int:
    for _round in range(2):
        token = ((token // 2**16) ^ token) * 0x45D9F3B % 2**32
    return mix(seed, ((token // 2**16 ^ token) + 0x9E3779B9) % 2**32)


def mix_id(seed: int, value: int) -> int:
    value = (value ^ value // 2**30) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ value // 2**27) * 0x94D049BB133111EB % WORD
    return mix(seed, (value ^ value // 2**31) + 0x9E3779B9)


def v1_names(tokens: list[int], size: int, lora_id: int | None, salt: int | None) -> list[int]:
    names = []
    parent = 0
    for begin in range(0, len(tokens), size):
        block = tokens[begin : begin + size]
        seed = len(block) ^ parent * 0xBF58476D1CE4E5B9 % WORD
        if parent == 0 and salt is not None:
            seed = mix_id(seed, salt)
        for token in block:
            seed = mix_token(seed, token)
        parent = seed if lora_id is None else mix_id(seed, lora_id)
        names.append(parent)
    return names


def test_a_block_of_one_token_by_hand() -> None:
    """Token 0 mixes to 0 + 0x9E3779B9 = 2654435769. From the seed 1, the number of tokens: 1 * 64 + 1 // 4 = 64 on top, 2654435833;
    and the seed's bit 0 over it: 2654435833 ^ 1 = 2654435832.
    """
    assert compute_block_hashes([0], 1, hash_algo="v1_block_key") == [2654435832]
    assert compute_block_hashes([0], 1, hash_algo="v1_block_key") == v1_names([0], 1, None, None)
    # SHA-256 of the byte 0: no field is there. With lora_id 1: mask 1, then 01 00 00 00 00 00 00 00.
    root = hashlib.sha256(b"\x00").digest()
    assert root.hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert next(iter(runtime.sequence_to_blockchain_keys(1, None, [7]))) == ([], root)
    assert compute_block_hashes([7], 1, hash_algo="v2_sha256") == [hashlib.sha256(root + b"\x07\x00\x00\x00").hexdigest()]
    scoped = hashlib.sha256(b"\x01" + b"\x01" + bytes(7)).digest()
    assert next(iter(runtime.sequence_to_blockchain_keys(1, runtime.ReuseScope(1), [7])))[1] == scoped
    both = hashlib.sha256(b"\x03" + b"\x02" + bytes(7) + b"\xff" * 8).digest()
    assert next(iter(runtime.sequence_to_blockchain_keys(1, runtime.ReuseScope(2, 2**64 - 1), [])))[1] == both


SCOPES = [(None, None), (3, None), (None, 5), (7, 2**64 - 1), (0, 0)]


@pytest.mark.parametrize("scope", SCOPES)
def test_names_are_those_of_the_rule(scope: tuple[int | None, int | None]) -> None:
    rng = random.Random(5)
    for size in (1, 4, 32):
        tokens: list[Any] = [rng.randrange(2**31) for _token in range(3 * size)]
        digests = chain_of(tokens, size, *scope)
        core_scope = ReuseScope(*scope)
        assert compute_block_hashes(tokens, size, core_scope, "v2_sha256") == [digest.hex() for digest in digests[1:]]
        first_words = [int.from_bytes(digest[:8], "big") for digest in digests[1:]]
        assert compute_block_hashes(tokens, size, core_scope, "v2_sha256_64") == first_words
        assert compute_block_hashes(tokens, size, core_scope, "v1_block_key") == v1_names(tokens, size, *scope)
        pairs = list(runtime.sequence_to_blockchain_keys(size, scope, [*tokens, 1]))
        assert [key for _tokens, key in pairs] == chain_of([*tokens, 1], size, *scope)
        assert [token for block, _key in pairs for token in block] == [*tokens, 1]


def test_digests_have_a_tag_and_v1_names_fall_back() -> None:
    tokens: list[Any] = [1, 2, 3, b"d" * 32, 5, 6, 7, 8]
    digests = chain_of(tokens, 2, 4, None)
    assert compute_block_hashes(tokens, 2, ReuseScope(4), "v2_sha256") == [digest.hex() for digest in digests[1:]]
    fallen_back = [int.from_bytes(digest[:8], "big") for digest in digests[2:]]
    assert compute_block_hashes(tokens, 2, ReuseScope(4), "v1_block_key") == [v1_names([1, 2], 2, 4, None)[0], *fallen_back]


@pytest.mark.parametrize("algorithm", ["v2_sha256", "v2_sha256_64", "v1_block_key"])
def test_events_name_partial_blocks_too(algorithm: str) -> None:
    tokens: list[Any] = [*range(50, 58), b"digest", 3]
    events = KVCacheEventManager(100, hash_algo=algorithm, partial_blocks=True)
    with KVCacheManager(config_of(), device=HostDevice(), event_manager=events) as manager:
        run_prompt(manager, tokens, reuse_scope=ReuseScope(salt=9)).close()
        manager.check_invariants()
        events.flush_iteration_events()
        blocks = [block for event in events.get_latest_events() if isinstance(event.data, KVCacheStoredData) for block in event.data.blocks]
        digests = chain_of(tokens, 4, None, 9)[1:]
        if algorithm == "v2_sha256":
            names: list[Any] = [digest.hex() for digest in digests]
        else:
            names = [int.from_bytes(digest[:8], "big") for digest in digests]
        if algorithm == "v1_block_key":
            names[:2] = v1_names(tokens[:8], 4, None, 9)
        assert [block.block_hash for block in blocks] == names and len(blocks[-1].tokens) == 2
        # The block that fills up takes the partial one's place, which is said.
        run_prompt(manager, [*tokens, 4, 5], reuse_scope=ReuseScope(salt=9)).close()
        manager.check_invariants()
        snapshot = events.snapshot()
        said = [block.tokens for event in snapshot.events if isinstance(event.data, KVCacheStoredData) for block in event.data.blocks]
        assert said == [tokens[:4], tokens[4:8], [*tokens[8:], 4, 5]]
