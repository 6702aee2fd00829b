"""What LEARNED knows at first: the weights of its model as text, from `kvcm learn`, for `KVCacheManagerConfig.learned_prior`.

    kvcm-prior VERSION COUNT CHECKSUM DATA

DATA is, in base64, zlib's form of COUNT weights of two bytes each, in 1024ths; CHECKSUM is the CRC-32 of DATA, in hexadecimal. Of a weight
that is 0 nothing was learned.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from ..base.checks import shown, to_text

NUM_PRIOR_WEIGHTS: Final = 2048
_MARK: Final = "kvcm-prior"
_VERSION: Final = 1
"""Another one where a weight means something else, or there are more: `segment_traits`, `EDGES`."""
_STEPS: Final = 1024
_MOST: Final = 32767


def encode_prior(weights: Sequence[float]) -> str:
    """As one line, with its end. Weights are finite; those beyond 32 are 32."""
    assert len(weights) == NUM_PRIOR_WEIGHTS, "a model has another number of weights than a prior"
    steps = [min(max(round(weight * _STEPS), -_MOST), _MOST) for weight in weights]
    data = base64.b64encode(zlib.compress(struct.pack(f"<{len(steps)}h", *steps), 9))
    return f"{_MARK} {_VERSION} {len(steps)} {_sum_up(data)} {data.decode()}\n"


def _sum_up(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def decode_prior(text: object, name: str) -> list[float]:
    """The weights. `TypeError`, `ValueError` for what `encode_prior` of this version has not made; they call it ``name``."""
    words = (given := to_text(text, name)).split()
    way_out = "make it anew with kvcm learn, or leave it out"
    if len(words) == 0 or words[0] != _MARK:
        raise ValueError(f"{name} is {shown(given[:40])}, no text of kvcm learn, which begins with {_MARK}; {way_out}")
    if len(words) > 1 and words[1] != str(_VERSION):
        raise ValueError(f"{name} has version {words[1][:20]}, and this release reads version {_VERSION}; {way_out}")
    if len(words) > 2 and words[2] != str(NUM_PRIOR_WEIGHTS):
        raise ValueError(f"{name} has {words[2][:20]} weights, and a model of this release has {NUM_PRIOR_WEIGHTS}; {way_out}")
    if len(words) != 5 or _sum_up(words[4].encode("utf-8", "replace")) != words[3]:
        raise ValueError(f"{name} was cut or changed: its checksum is not that of its data; {way_out}")
    try:
        packed = zlib.decompressobj().decompress(base64.b64decode(words[4], validate=True), 2 * NUM_PRIOR_WEIGHTS + 1)
        steps = struct.unpack(f"<{NUM_PRIOR_WEIGHTS}h", packed)
    except (ValueError, zlib.error, struct.error):
        raise ValueError(f"{name} has other data than {NUM_PRIOR_WEIGHTS} weights; {way_out}") from None
    return [step / _STEPS for step in steps]
