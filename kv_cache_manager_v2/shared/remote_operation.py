"""An operation of a request: a look-up or a load, from the call that begins it until its end is admitted.

    state      guaranteed                                               ways out
    WAITING    a copy still reads its slots, no thread has it           start -> BUSY; abandon -> ANSWERED
    BUSY       threads have it                                          all tasks over, no progress for too long, or late -> ANSWERED
    ANSWERED   `lengths` never changes                                  its end is admitted, and no thread has it -> gone

Only `admit` changes what the request knows of it; how far it is here decides nothing.
"""

from collections.abc import Sequence
from time import monotonic
from typing import Final

from ..base.handle import Handle
from .remote_report import RemoteAnswer
from .shared_store import PROGRESS_SECONDS
from .store_tasks import StagedPage
from .store_workers import StoreWorkers, Task

_GRACE_SECONDS: Final = 0.05
"""A connection that keeps its deadline fails first."""


class RemoteOperation(Handle):
    """``kind``: of its tasks' queue. ``slots``: of staging, which are its own until the end is admitted. ``salt``: of the scope."""

    def __init__(
        self,
        request: int,
        step: int,
        kind: int,
        tasks: Sequence[Task],
        pages: list[StagedPage],
        begin: int,
        num_blocks: int,
        salt: int | str | None = None,
    ) -> None:
        self.request: Final = request
        self.step: Final = step
        self.kind: Final = kind
        self.tasks: Final = tuple(tasks)
        self.pages: Final = pages
        self.slots: Final = [page.slot for page in pages]
        self.salt: Final = salt
        self.begin: Final = begin
        """The first block that the sequence had not committed. The pages of windows may begin later, or there are none."""
        self.num_blocks: Final = num_blocks
        """The length that a load was begun for."""
        self.is_started = False
        self.has_failed = False
        self.answer: tuple[tuple[int, int], ...] | None = None
        self.is_admitted = False
        self.is_abandoned = False

    def start(self, workers: StoreWorkers) -> None:
        self.is_started = True
        for task in self.tasks:
            workers.submit(self.kind, task)

    @property
    def is_ended(self) -> bool:
        """Whether no thread has it, nor ever will."""
        return self.is_started and all([task.is_over for task in self.tasks])

    def is_answerable(self, workers: StoreWorkers) -> bool:
        """Whether all its tasks are over, or make no progress: then they are cut off as far as they have not begun."""
        if not self.is_started:
            return False
        if all([task.is_over for task in self.tasks]):
            return True
        now = monotonic()
        for task in self.tasks:
            is_late = now > task.deadline + _GRACE_SECONDS
            if not task.is_over and not is_late and now - workers.last_progress(self.kind, task) < PROGRESS_SECONDS:
                return False
            if is_late:
                workers.record_late(task)
        self.has_failed = True
        self.cancel()
        return True

    def cancel(self) -> None:
        for task in self.tasks:
            task.is_cancelled = True

    def to_answer(self) -> RemoteAnswer:
        assert self.answer is not None, "an operation without an answer is in a report"
        return RemoteAnswer(self.request, self.step, self.answer, self.is_ended, self.has_failed)
