"""The codec that an engine gets which asks for one by TensorRT-LLM's name."""

from collections.abc import Sequence

from ...codecs.float8_codec import Float8Codec
from ...device.cold_page_codec import ColdPageCodec


def create_default_kv_cache_cold_page_codec(
    dtype: str = "bfloat16", values_per_scale: int = 64, roles: Sequence[str] | None = None
) -> ColdPageCodec:
    """`Float8Codec`, this library's codec with the smaller error, for a manager with ``cold_page_codec=``: on a host device alone."""
    return Float8Codec(dtype, values_per_scale, roles)
