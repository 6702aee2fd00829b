"""Disk dependencies: the disk jobs before each stream and event. The device itself knows only whether an event is done.

So a call that tests an event, or waits for it, raises a failed read before it, once; and can wait for the worker threads first. A job
is forgotten when it is done and has no failure, or its failure was raised.
"""

from typing import Final, final


from ..base.errors import StorageIOError
from .disk_job import DiskJob


@final
class DiskDependencies:
    """Jobs by handle. Law: no list is empty."""

    __slots__ = ("_of_streams", "_of_events")

    def __init__(self) -> None:
        self._of_streams: Final[dict[int, list[DiskJob]]] = {}
        self._of_events: Final[dict[int, list[DiskJob]]] = {}

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

    def unreported_failures(self) -> list[StorageIOError]:
        """Failed reads that no call has raised."""
        errors: list[StorageIOError] = []
        for lists in (self._of_streams, self._of_events):
            for jobs in lists.values():
                for job in jobs:
                    if job.is_done and job.read_error is not None and not job.is_reported:
                        job.is_reported = True
                        errors.append(job.read_error)
        return errors

    def settle(self) -> bool:
        """Forget finished jobs; returns whether any job is left."""
        _settle(self._of_streams)
        _settle(self._of_events)
        return len(self._of_streams) > 0 or len(self._of_events) > 0


def raise_first_unreported(jobs: list[DiskJob]) -> None:
    """Raise the first failed read that was not raised yet."""
    for job in jobs:
        if job.is_done and job.read_error is not None and not job.is_reported:
            job.is_reported = True
            raise job.read_error


def _settle(lists: dict[int, list[DiskJob]]) -> None:
    for handle in list(lists):
        left = [job for job in lists[handle] if not job.is_done or (job.read_error is not None and not job.is_reported)]
        if left:
            lists[handle] = left
        else:
            del lists[handle]
