"""The codec that an engine gets which asks for one by TensorRT-LLM's name."""

from collections.abc import Sequence
from typing import Any, SupportsIndex

from ...base.given import Given
from ...codecs.float8_codec import Float8Codec
from ...device.cold_page_codec import ColdPageCodec


def create_default_kv_cache_cold_page_codec(
    dtype: Given[str] = "bfloat16", values_per_scale: SupportsIndex = 64, roles: Given[Sequence[str] | None] = None
) -> ColdPageCodec:
    """`Float8Codec`, this library's codec with the smaller error, for a manager with ``cold_page_codec=``: on a host device alone."""
    given_type: Any = dtype
    given_roles: Any = roles
    return Float8Codec(given_type, values_per_scale, given_roles)
