"""The integer handle of whatever an engine calls a stream."""

from typing import Final

from ..base.checks import to_int
from ..device.port import Device

_PROTOCOL_VERSION: Final = 0
_MAX_HANDLE: Final = 2**63 - 1


def to_stream(stream: object, device: Device) -> int:
    """`stream_handle` for a stream of that device; `LogicError` if the device knows that it has no such stream."""
    handle = stream_handle(stream)
    device.require_stream(handle)
    return handle


def stream_handle(stream: object, name: str = "cuda_stream") -> int:
    """An int stands for itself; otherwise the ``__cuda_stream__`` protocol of cuda.core, then ``int(stream)``.

    ``TypeError`` for anything else, floats and bools included, ``ValueError`` for a number that no stream has.
    """
    if isinstance(stream, bool):
        raise TypeError(f"{name} must be an int handle or an object with __cuda_stream__ or __int__, not {stream}")
    if isinstance(stream, int):
        return _validate_handle(stream, name)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return _handle_of_protocol(protocol() if callable(protocol) else protocol, name)
    # What has a fraction is no handle, although it can be cut off to an int; handles of bindings have no __float__.
    convert = getattr(type(stream), "__index__", None)
    if convert is None and getattr(type(stream), "__float__", None) is None:
        convert = getattr(type(stream), "__int__", None)
    if convert is not None:
        try:
            handle = convert(stream)
        except (TypeError, ValueError):
            handle = None  # an array has __index__, and is none
        if isinstance(handle, int):
            return _validate_handle(handle, name)
    raise TypeError(f"{name} must be an int handle or an object with __cuda_stream__ or __int__, not {type(stream).__name__}")


def _handle_of_protocol(described: object, name: str) -> int:
    if not isinstance(described, tuple) or len(described) != 2:
        raise TypeError(f"the __cuda_stream__ of {name} must give a version and a handle, not {described!r}")
    version, handle = described
    if version != _PROTOCOL_VERSION:
        raise TypeError(f"__cuda_stream__ of {name} has version {version}; only {_PROTOCOL_VERSION} is supported")
    return stream_handle(handle, name)


def _validate_handle(handle: int, name: str) -> int:
    number = to_int(handle, name)
    if not 0 <= number <= _MAX_HANDLE:
        raise ValueError(f"{name} is {number}; a stream's handle is from 0 to {_MAX_HANDLE}")
    return number
