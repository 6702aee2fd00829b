"""The question that handles of lower folders ask a manager before a call of theirs: whether it may run now, and in this process."""

from abc import abstractmethod


from .process_bound import ProcessBound


class CallDoor(ProcessBound):
    """The door of a manager's calls; `CallGuard` is it."""

    __slots__ = ()

    @abstractmethod
    def require_own_process(self) -> None:
        """`LogicError` in a process that was forked from the manager's."""

    @abstractmethod
    def require_idle(self) -> None:
        """`LogicError` there, and while a call of the manager runs: from inside a callback, say."""
