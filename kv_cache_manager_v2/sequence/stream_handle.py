"""The integer handle of whatever an engine calls a stream."""

from typing import Final

_PROTOCOL_VERSION: Final = 0


def stream_handle(stream: object) -> int:
    """An int stands for itself; otherwise the ``__cuda_stream__`` protocol of cuda.core, then ``int(stream)``.

    ``TypeError`` for anything else, ``ValueError`` for a negative handle.
    """
    if isinstance(stream, bool):
        raise TypeError(f"a stream is an int handle or an object with __cuda_stream__ or __int__, not {stream}")
    if isinstance(stream, int):
        if stream < 0:
            raise ValueError(f"{stream} is no stream handle; they are not negative")
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        described = protocol() if callable(protocol) else protocol
        version, handle = described
        if version != _PROTOCOL_VERSION:
            raise TypeError(f"__cuda_stream__ version {version} is not supported, only {_PROTOCOL_VERSION}")
        return int(handle)
    convert = getattr(type(stream), "__int__", None)
    if convert is None or isinstance(stream, float):
        raise TypeError(
            f"a stream is an int handle or an object with __cuda_stream__ or __int__, not {type(stream).__name__}"
        )
    return int(convert(stream))
