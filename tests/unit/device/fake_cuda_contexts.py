"""What the fake driver remembers between calls: contexts of threads, stream captures, and a context that is broken.

The rules, and where the driver's documentation states them:

    rule                                                                        documented at
    each thread has a stack of contexts of its own                              cuCtxPushCurrent
    streams and events belong to the context that was current when they         cuStreamCreate, cuEventCreate
    were created; 0, 1 and 2 are streams of the current context
    an event is recorded on a stream of its own context only                    cuEventRecord: INVALID_HANDLE
    a stream may wait for an event of any context                               cuStreamWaitEvent
    a kernel is launched on a stream of the current context only                programming guide, multi-device streams
    times are taken between events of one context                               programming guide, multi-device events
    after a fault on the GPU every call returns that fault                      CUDA_ERROR_ILLEGAL_ADDRESS
    calls that no capture can observe are prohibited while a capture of mode    cuThreadExchangeStreamCaptureMode
    GLOBAL (any thread) or THREAD_LOCAL (own thread) is open; the call fails
    and the capture is invalid; a thread in mode RELAXED is not prohibited
    an event that was last recorded in a capture cannot be queried              the same, and CUDA_ERROR_CAPTURED_EVENT
    an invalid capture is ended by cuStreamEndCapture, without a graph          cuStreamIsCapturing, cuStreamEndCapture
    a capture that is not RELAXED is ended by the thread that began it          cuStreamEndCapture
    the legacy default stream cannot be captured                                cuStreamBeginCapture
    a batch of copies cannot be captured                                        cuda.core.utils.copy_batch

The documentation does not list the potentially unsafe calls: it says that they are "not enqueued asynchronously to a stream". The
fake takes all such calls that wait, query, or change memory and modules for unsafe (`UNSAFE_CALLS`); some may not be.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from .fake_cuda_types import CUresult, CUstreamCaptureMode, CUstreamCaptureStatus, Refused, require

GLOBAL = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
RELAXED = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
LAST_SPECIAL_STREAM = 2
FIRST_CONTEXT = 0x77

UNSAFE_CALLS = frozenset(
    "cuEventQuery cuEventSynchronize cuEventElapsedTime cuStreamQuery cuStreamSynchronize cuCtxSynchronize"
    " cuMemHostRegister cuMemHostUnregister cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess"
    " cuModuleLoadData cuModuleUnload".split()
)
CALLS_THAT_OUTLIVE_A_CONTEXT = frozenset(
    "cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetPCIBusId cuDeviceGetAttribute cuDeviceTotalMem"
    " cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuCtxPushCurrent cuCtxPopCurrent cuCtxSetCurrent"
    " cuCtxGetCurrent cuCtxGetDevice cuThreadExchangeStreamCaptureMode".split()
)
"""They use no memory, stream, event or kernel of the context."""

EXCHANGE = "cuThreadExchangeStreamCaptureMode"

Method = Callable[..., tuple[Any, ...]]
SUCCESS = (CUresult.CUDA_SUCCESS,)


def driver_call(method: Callable[..., tuple[Any, ...] | None]) -> Method:
    """Counted, may be planned to fail, and under the rules that hold for every call. One that returns nothing succeeds."""
    name = method.__name__

    @functools.wraps(method)
    def checked(self: "FakeCudaContexts", *args: Any) -> tuple[Any, ...]:
        with self._lock:
            if name == EXCHANGE:
                # It only notes something of the calling thread: it never fails, and no test counts it.
                return method(self, *args) or SUCCESS
            self.calls.append(name)
            if name != "cuInit":
                require(self.is_initialised, f"{name} before cuInit")
            if self._calls_until_failure > 0:
                self._calls_until_failure -= 1
                if self._calls_until_failure == 0:
                    self.failed_call = name
                    return (self._failure, None)
            try:
                self._check_contexts(name)
                return method(self, *args) or SUCCESS
            except Refused as refused:
                self.refusals.append((name, refused.status))
                return (refused.status, None)

    return checked


class Capture:
    def __init__(self, mode: CUstreamCaptureMode) -> None:
        self.mode = mode
        self.thread = threading.get_ident()
        self.is_valid = True
        self.num_operations = 0


class FakeCudaContexts:
    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.is_initialised = False
        self.calls: list[str] = []
        self.refusals: list[tuple[str, CUresult]] = []
        """What the driver refused by itself, not as a test had planned."""
        self.failed_call = ""
        self._calls_until_failure = 0
        self._failure = CUresult.CUDA_ERROR_UNKNOWN
        self._next_handle = 0x1000
        self.retained: dict[int, int] = {}  # context -> how often
        self.fault: CUresult | None = None
        """What the GPU did wrong; every call returns it until the context is gone."""
        self.context_of: dict[int, int] = {}  # stream or event -> context
        self.captures: dict[int, Capture] = {}  # by stream; a stream that waits for a captured event is in it
        self.captured_events: dict[int, Capture] = {}
        self._of_thread = threading.local()
        self._stacks: list[tuple[threading.Thread, list[int]]] = []

    # -- contexts -----------------------------------------------------------------------------------------------------

    @property
    def context_stack(self) -> list[int]:
        """Of the calling thread; the last one is current."""
        if not hasattr(self._of_thread, "stack"):
            self._of_thread.stack = []
            self._stacks.append((threading.current_thread(), self._of_thread.stack))
        stack: list[int] = self._of_thread.stack
        return stack

    @property
    def num_retained(self) -> int:
        return sum(self.retained.values())

    def num_current(self) -> int:
        """Entries on the stacks of all threads that live."""
        return sum(len(stack) for thread, stack in self._stacks if thread.is_alive())

    def is_current_anywhere(self, context: int) -> bool:
        return any(context in stack for thread, stack in self._stacks if thread.is_alive())

    def break_context(self, fault: CUresult = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS) -> None:
        """As a kernel does that writes where no memory is. The process can only close what it has, and end."""
        self.fault = self.fault or fault

    def _current_context(self) -> int:
        if not self.context_stack:
            raise Refused(CUresult.CUDA_ERROR_INVALID_CONTEXT)
        return self.context_stack[-1]

    def _context_of_stream(self, stream: int) -> int:
        """A stream that the engine made is of the first GPU's primary context, unless a test says otherwise."""
        return self._current_context() if stream <= LAST_SPECIAL_STREAM else self.context_of.get(stream, FIRST_CONTEXT)

    def _make_handle(self) -> int:
        self._next_handle += 16
        return self._next_handle

    def _check_contexts(self, name: str) -> None:
        """The rules for every call."""
        if self.fault is not None and name not in CALLS_THAT_OUTLIVE_A_CONTEXT:
            raise Refused(self.fault)
        if name in UNSAFE_CALLS:
            prohibiting = self._prohibiting_captures()
            if prohibiting:
                for capture in prohibiting:
                    capture.is_valid = False
                raise Refused(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)

    # -- captures -----------------------------------------------------------------------------------------------------

    def _mode_of_thread(self) -> CUstreamCaptureMode:
        mode: CUstreamCaptureMode = getattr(self._of_thread, "mode", GLOBAL)
        return mode

    def _prohibiting_captures(self) -> list[Capture]:
        """Those that forbid the calling thread to make an unsafe call."""
        mode = self._mode_of_thread()
        if mode is RELAXED or not self.captures:
            return []
        thread = threading.get_ident()
        return [
            capture
            for capture in set(self.captures.values())
            if (capture.mode is not RELAXED if capture.thread == thread else mode is GLOBAL and capture.mode is GLOBAL)
        ]

    def _open_capture_of(self, stream: int) -> Capture | None:
        """What an operation that is enqueued there goes into; None: it runs."""
        capture = self.captures.get(stream)
        if capture is not None and not capture.is_valid:
            raise Refused(CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        return capture

    def _require_event_outside(self, event: int) -> None:
        if event in self.captured_events:
            self.captured_events[event].is_valid = False
            raise Refused(CUresult.CUDA_ERROR_CAPTURED_EVENT)

    def _require_stream_outside(self, stream: int) -> None:
        """For what cannot be captured."""
        if stream in self.captures:
            self.captures[stream].is_valid = False
            raise Refused(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)

    def _note_record(self, stream: int, event: int) -> None:
        capture = self._open_capture_of(stream)
        if capture is not None:
            self.captured_events[event] = capture
        else:
            self.captured_events.pop(event, None)

    def _note_wait(self, stream: int, event: int) -> None:
        """A wait for a captured event takes the stream into the capture."""
        own, awaited = self._open_capture_of(stream), self.captured_events.get(event)
        if own is not awaited:
            if own is not None:
                own.is_valid = False
                raise Refused(CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            assert awaited is not None
            self.captures[stream] = awaited

    @driver_call
    def cuThreadExchangeStreamCaptureMode(self, mode: object) -> tuple[Any, ...]:
        require(isinstance(mode, CUstreamCaptureMode), "a mode that is no CUstreamCaptureMode")
        before = self._mode_of_thread()
        self._of_thread.mode = mode
        return (CUresult.CUDA_SUCCESS, before)

    @driver_call
    def cuStreamBeginCapture(self, stream: object, mode: object) -> None:
        number = self._require_stream(stream)
        require(isinstance(mode, CUstreamCaptureMode), "a mode that is no CUstreamCaptureMode")
        assert isinstance(mode, CUstreamCaptureMode)
        if number <= 1:
            raise Refused(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        if number in self.captures:
            raise Refused(CUresult.CUDA_ERROR_ILLEGAL_STATE)
        self.captures[number] = Capture(mode)

    @driver_call
    def cuStreamIsCapturing(self, stream: object) -> tuple[Any, ...]:
        capture = self.captures.get(self._require_stream(stream))
        if capture is None:
            return (CUresult.CUDA_SUCCESS, CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)
        if capture.is_valid:
            return (CUresult.CUDA_SUCCESS, CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return (CUresult.CUDA_SUCCESS, CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED)

    @driver_call
    def cuStreamEndCapture(self, stream: object) -> tuple[Any, ...]:
        """The graph is the number of operations in it and a thousand."""
        number = self._require_stream(stream)
        if number not in self.captures:
            raise Refused(CUresult.CUDA_ERROR_ILLEGAL_STATE)
        capture = self.captures[number]
        if capture.mode is not RELAXED and capture.thread != threading.get_ident():
            raise Refused(CUresult.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        for captured in [other for other, found in self.captures.items() if found is capture]:
            del self.captures[captured]
        for event in [event for event, found in self.captured_events.items() if found is capture]:
            del self.captured_events[event]
        if not capture.is_valid:
            raise Refused(CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        return (CUresult.CUDA_SUCCESS, 1000 + capture.num_operations)

    def _require_stream(self, stream: object) -> int:
        raise NotImplementedError
