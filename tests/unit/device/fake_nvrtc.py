"""A stand-in for `cuda.bindings.nvrtc`: "compiles" to bytes that name what it was given, and checks every call."""

import ctypes
from enum import IntEnum
from typing import Any


class nvrtcResult(IntEnum):
    NVRTC_SUCCESS = 0
    NVRTC_ERROR_COMPILATION = 6


class FakeNvrtc:
    def __init__(self, *, capabilities: tuple[int, ...] = (80, 90), mistakes: str = "") -> None:
        self.capabilities = list(capabilities)
        self.mistakes = mistakes
        self.num_live = 0
        self.options: list[bytes] = []

    def nvrtcGetSupportedArchs(self) -> tuple[Any, ...]:
        return (nvrtcResult.NVRTC_SUCCESS, self.capabilities)

    def nvrtcCreateProgram(
        self, source: bytes, name: bytes, num_headers: int, headers: list[bytes], include_names: list[bytes]
    ) -> tuple[Any, ...]:
        assert type(source) is bytes and type(name) is bytes
        assert num_headers == len(headers) == len(include_names)
        self.num_live += 1
        return (nvrtcResult.NVRTC_SUCCESS, {"source": source})

    def nvrtcCompileProgram(self, program: dict[str, bytes], num_options: int, options: list[bytes]) -> tuple[Any, ...]:
        assert num_options == len(options) and all(type(option) is bytes for option in options)
        self.options = options
        if self.mistakes:
            return (nvrtcResult.NVRTC_ERROR_COMPILATION,)
        return (nvrtcResult.NVRTC_SUCCESS,)

    def nvrtcGetProgramLogSize(self, program: dict[str, bytes]) -> tuple[Any, ...]:
        return (nvrtcResult.NVRTC_SUCCESS, len(self.mistakes) + 1)

    def nvrtcGetProgramLog(self, program: dict[str, bytes], buffer: bytes) -> tuple[Any, ...]:
        return self._write(buffer, self.mistakes.encode() + b"\0")

    def nvrtcGetCUBINSize(self, program: dict[str, bytes]) -> tuple[Any, ...]:
        return (nvrtcResult.NVRTC_SUCCESS, len(b"cubin:" + program["source"]))

    def nvrtcGetCUBIN(self, program: dict[str, bytes], buffer: bytes) -> tuple[Any, ...]:
        return self._write(buffer, b"cubin:" + program["source"])

    def nvrtcGetPTXSize(self, program: dict[str, bytes]) -> tuple[Any, ...]:
        return (nvrtcResult.NVRTC_SUCCESS, len(b"ptx:" + program["source"]))

    def nvrtcGetPTX(self, program: dict[str, bytes], buffer: bytes) -> tuple[Any, ...]:
        return self._write(buffer, b"ptx:" + program["source"])

    def nvrtcGetErrorString(self, status: nvrtcResult) -> tuple[Any, ...]:
        return (nvrtcResult.NVRTC_SUCCESS, status.name.encode())

    def nvrtcDestroyProgram(self, program: dict[str, bytes]) -> tuple[Any, ...]:
        self.num_live -= 1
        return (nvrtcResult.NVRTC_SUCCESS,)

    def _write(self, buffer: bytes, data: bytes) -> tuple[Any, ...]:
        """What the compiler does: write into the caller's bytes object."""
        assert type(buffer) is bytes and len(buffer) >= max(2, len(data))
        offset = bytes.__basicsize__ - 1
        ctypes.memmove(id(buffer) + offset, data, len(data))
        return (nvrtcResult.NVRTC_SUCCESS,)
