"""Which disk jobs are behind which streams and events, where the device itself knows only whether an event is done.

So whoever asks for an event, or waits for it, hears of a failed read that the event is behind, once; and can wait for the
worker threads first. Jobs are forgotten when they are done and there is nothing to tell, or when it was told.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from ..base.errors import StorageIOError
from .disk_job import DiskJob


@final
@mypyc_attr(native_class=True)
class DiskDependencies:
    """By handle. Law: no list is empty."""

    __slots__ = ("_of_streams", "_of_events")

    _of_streams: Final[dict[int, list[DiskJob]]]
    _of_events: Final[dict[int, list[DiskJob]]]

    def __init__(self) -> None:
        self._of_streams = {}
        self._of_events = {}

    def add(self, stream: int, job: DiskJob) -> None:
        self._of_streams.setdefault(stream, []).append(job)

    def record(self, stream: int, event: int) -> None:
        jobs = self._of_streams.get(stream)
        if jobs is not None:
            self._of_events[event] = list(jobs)

    def wait(self, stream: int, event: int) -> None:
        jobs = self._of_events.get(event)
        if jobs is not None:
            known = self._of_streams.setdefault(stream, [])
            for job in jobs:
                if job not in known:
                    known.append(job)

    def forget_event(self, event: int) -> None:
        self._of_events.pop(event, None)

    def forget_stream(self, stream: int) -> None:
        self._of_streams.pop(stream, None)

    def jobs_of_stream(self, stream: int) -> list[DiskJob]:
        return self._of_streams.get(stream, [])

    def jobs_of_event(self, event: int) -> list[DiskJob]:
        return self._of_events.get(event, [])

    def untold_failures(self) -> list[StorageIOError]:
        """What nobody ever asked for."""
        errors: list[StorageIOError] = []
        for lists in (self._of_streams, self._of_events):
            for jobs in lists.values():
                for job in jobs:
                    if job.is_done and job.read_error is not None and not job.is_told:
                        job.is_told = True
                        errors.append(job.read_error)
        return errors

    def settle(self) -> bool:
        """Forget what is over; returns whether anything is left."""
        _settle(self._of_streams)
        _settle(self._of_events)
        return len(self._of_streams) > 0 or len(self._of_events) > 0


def tell_first(jobs: list[DiskJob]) -> None:
    """Raise the first failed read that nobody was told of."""
    for job in jobs:
        if job.is_done and job.read_error is not None and not job.is_told:
            job.is_told = True
            raise job.read_error


def _settle(lists: dict[int, list[DiskJob]]) -> None:
    for handle in list(lists):
        left = [job for job in lists[handle] if not job.is_done or (job.read_error is not None and not job.is_told)]
        if left:
            lists[handle] = left
        else:
            del lists[handle]
