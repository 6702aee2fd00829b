"""`learned_prior`: a text that goes there and back, and what is wrong with any other."""

import base64
import struct
import zlib

import pytest

from kv_cache_manager_v2 import AttentionLayerConfig, BufferConfig, EvictionPolicy, GpuCacheTierConfig, KVCacheManagerConfig, LayerId
from kv_cache_manager_v2.config.config_codec import decode_config, encode_config
from kv_cache_manager_v2.config.learned_prior import NUM_PRIOR_WEIGHTS, decode_prior, encode_prior
from kv_cache_manager_v2.storage.eviction.hazard_model import EDGES
from kv_cache_manager_v2.storage.eviction.segment_traits import FEATURE_LEVELS, FEATURE_SHIFTS

WEIGHTS = [(number % 7 - 3) / 1024 * number for number in range(NUM_PRIOR_WEIGHTS)]
TEXT = encode_prior(WEIGHTS)


def make_config(prior: object, policy: EvictionPolicy = EvictionPolicy.LEARNED) -> KVCacheManagerConfig:
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)])]
    return KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 20, policy)], layers, learned_prior=prior)  # type: ignore[arg-type]


def write(version: object = 1, count: object = NUM_PRIOR_WEIGHTS, packed: bytes = bytes(2 * NUM_PRIOR_WEIGHTS)) -> str:
    data = base64.b64encode(zlib.compress(packed))
    return f"kvcm-prior {version} {count} {zlib.crc32(data):08x} {data.decode()}"


def test_weights_come_back() -> None:
    assert decode_prior(TEXT, "it") == WEIGHTS and TEXT.count("\n") == 1
    far = [1e9, -1e9, 1 / 4096, *[0.0] * (NUM_PRIOR_WEIGHTS - 3)]
    assert decode_prior(encode_prior(far), "it")[:3] == [32767 / 1024, -32767 / 1024, 0.0]


def test_a_configuration_keeps_it() -> None:
    config = make_config(TEXT)
    assert decode_config(encode_config(config)) == config and config.learned_prior == TEXT
    assert TEXT[:20] not in repr(config), "thousands of characters in each report"
    assert make_config(None).learned_prior is None


def test_a_version_is_what_weights_mean() -> None:
    """Weights of one version are read by all releases that have it, so a change of these is a new version."""
    assert TEXT.startswith(f"kvcm-prior 1 {NUM_PRIOR_WEIGHTS} ")
    assert EDGES == (0, 1, 2, 3, 4, 5, 8, 11, 15, 21, 29, 40, 57, 114, 228)
    assert FEATURE_SHIFTS == (0, 3, 7, 11, 15, 19, 20, 24, 26) and FEATURE_LEVELS == (7, 16, 16, 16, 16, 2, 16, 4, 2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("", "is '', no text of kvcm learn, which begins with kvcm-prior"),
        ("weights.prior", "is 'weights.prior', no text of kvcm learn"),
        ("kvcm-prior", "was cut or changed"),
        (write(version=2), "version 2, and this release reads version 1; make it anew with kvcm learn"),
        (write(count=99), "has 99 weights, and a model of this release has 2048"),
        (TEXT[:-9], "was cut or changed"),
        (TEXT.replace("A", "B"), "was cut or changed"),
        (TEXT[:-9] + "\ud800" + TEXT[-8:], "was cut or changed"),
        (TEXT + "more", "was cut or changed"),
        (write(packed=bytes(2 * NUM_PRIOR_WEIGHTS - 2)), "has other data than 2048 weights"),
        (write(packed=bytes(1 << 20)), "has other data than 2048 weights"),
        (f"kvcm-prior 1 2048 {zlib.crc32(b'!!!!'):08x} !!!!", "has other data than 2048 weights"),
        (f"kvcm-prior 1 2048 {zlib.crc32(b'AAAA'):08x} AAAA", "has other data than 2048 weights"),
    ],
)
def test_anything_else_is_named(wrong: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        make_config(wrong)
    assert str(error.value).startswith("learned_prior ") and len(str(error.value)) < 200


def test_types_and_policies() -> None:
    with pytest.raises(TypeError, match="learned_prior must be a str, not bytes"):
        make_config(TEXT.encode())
    with pytest.raises(ValueError, match="no tier has EvictionPolicy.LEARNED; give it to one"):
        make_config(TEXT, EvictionPolicy.LRU)


def test_all_steps_are_finite() -> None:
    """Two bytes are never no number: whatever is read, the model can count with."""
    every = struct.pack(f"<{NUM_PRIOR_WEIGHTS}h", *range(-1024, 1024))
    assert decode_prior(write(packed=every), "it") == [step / 1024 for step in range(-1024, 1024)]
