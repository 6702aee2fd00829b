"""`KVCacheManager.ready`: coroutines that wait for pages on their way, woken by the device and not by a clock.

The device gives the wakeup behind the work that brings the pages; the event loop sees its descriptor and lets every coroutine ask
`KVCache.ready` again. Between two calls nothing is kept but the wakeup, which ends with the manager.

Conservation: the loop looks at the descriptor exactly while a coroutine waits.
"""

from typing import Any, Final, final


from ..base.errors import LogicError
from ..device.wakeup import Wakeup
from ..sequence.disk_arrivals import list_arrival_points
from ..sequence.page_arrivals import await_arrivals
from ..sequence.sequence_state import SequenceState
from ..sequence.shared_state import SharedState
from .kv_cache import KVCache


@final
class ArrivalWaits:
    __slots__ = ("_shared", "_wakeup", "_loop", "_waiting")

    def __init__(self, shared: SharedState) -> None:
        self._shared: Final = shared
        self._wakeup: Wakeup | None = None
        """Made with the first wait."""
        self._loop: Any = None
        """The event loop that looks at the descriptor; None while no coroutine waits."""
        self._waiting: list[Any] = []
        """A future for each waiter."""

    async def wait(self, kv_cache: KVCache) -> None:
        """Until `KVCache.ready`, and what that raises."""
        state = kv_cache._state_for_batch()
        asked: set[int] = set()
        while not kv_cache.ready:
            await self._wait_once(kv_cache, state, asked)

    async def _wait_once(self, kv_cache: KVCache, state: SequenceState, asked: set[int]) -> None:
        """Until something has arrived. ``asked``: the points that the device has been asked to tell of."""
        import asyncio

        loop = asyncio.get_running_loop()
        future = self._begin(loop)
        try:
            self._ask_device(state, asked)
            # It may have arrived before the device was asked.
            if not kv_cache.ready:
                await future
        finally:
            self._end(future)

    def wake(self) -> None:
        """The descriptor is readable."""
        if self._wakeup is not None:
            self._wakeup.take()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """All waiters ask once more. May be called again after an interruption."""
        self.wake()
        self._stop_looking()
        if self._wakeup is not None:
            self._shared.device.forget_wakeup(self._wakeup)
            self._wakeup.close()
            self._wakeup = None

    def _begin(self, loop: Any) -> Any:
        if self._loop is not None and self._loop is not loop:
            raise LogicError("ready() is awaited in another event loop: a manager is used in one at a time")
        wakeup = self._wakeup
        if wakeup is None:
            wakeup = Wakeup()
            self._wakeup = wakeup
        future = loop.create_future()
        self._waiting.append(future)
        if self._loop is None:
            self._loop = loop
            loop.add_reader(wakeup.file_descriptor, self.wake)
        return future

    def _end(self, future: Any) -> None:
        self._waiting = [waiting for waiting in self._waiting if waiting is not future]
        if len(self._waiting) == 0:
            self._stop_looking()

    def _stop_looking(self) -> None:
        loop = self._loop
        self._loop = None
        if loop is not None and self._wakeup is not None and not loop.is_closed():
            loop.remove_reader(self._wakeup.file_descriptor)

    def _ask_device(self, state: SequenceState, asked: set[int]) -> None:
        wakeup = self._wakeup
        assert wakeup is not None, "a coroutine waits without a wakeup"
        order = self._shared.order
        with self._shared.guard:
            for point in list_arrival_points(state):
                if point not in asked:
                    if not self._shared.device.wake_after(order.stream_of_point(point), wakeup):
                        # This device cannot tell: the host waits, as a step would.
                        await_arrivals(state)
                        return
                    asked.add(point)
