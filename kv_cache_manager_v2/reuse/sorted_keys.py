"""Byte strings in sorted order, for finding the neighbours of a key that is not there.

A list of sorted runs of at most `RUN_KEYS` keys: insert and remove move one run's tail, whatever the number of keys.
"""

from bisect import bisect_left
from typing import Final, final

from mypy_extensions import i64

RUN_KEYS: Final = 512


@final
class SortedKeys:
    __slots__ = ("_runs", "_last_keys")

    def __init__(self, keys: list[bytes]) -> None:
        ordered = sorted(keys)
        self._runs: Final[list[list[bytes]]] = []
        self._last_keys: Final[list[bytes]] = []
        for start in range(0, len(ordered), RUN_KEYS // 2):
            run = ordered[start : start + RUN_KEYS // 2]
            self._runs.append(run)
            self._last_keys.append(run[-1])

    def add(self, key: bytes) -> None:
        """``key`` is not there yet."""
        run_index = self._run_index(key)
        if run_index < 0:
            self._runs.append([key])
            self._last_keys.append(key)
            return
        run = self._runs[run_index]
        run.insert(bisect_left(run, key), key)
        if len(run) > RUN_KEYS:
            self._runs[run_index] = run[: RUN_KEYS // 2]
            self._runs.insert(run_index + 1, run[RUN_KEYS // 2 :])
            self._last_keys.insert(run_index, self._runs[run_index][-1])
            self._last_keys[run_index + 1] = run[-1]
        else:
            self._last_keys[run_index] = run[-1]

    def remove(self, key: bytes) -> None:
        """``key`` is there."""
        run_index = self._run_index(key)
        run = self._runs[run_index]
        position = bisect_left(run, key)
        assert run[position] == key, "a child that was never added is removed"
        del run[position]
        if len(run) == 0:
            del self._runs[run_index]
            del self._last_keys[run_index]
        else:
            self._last_keys[run_index] = run[-1]

    def _run_index(self, key: bytes) -> int:
        """The run in which ``key`` is or belongs; -1 if there is none."""
        if len(self._runs) == 0:
            return -1
        run_index = bisect_left(self._last_keys, key)
        return run_index if run_index < len(self._runs) else len(self._runs) - 1

    def neighbours(self, key: bytes, count: i64) -> tuple[list[bytes], list[bytes]]:
        """Up to ``count`` keys before ``key``, nearest first, and up to ``count`` keys from ``key`` on, nearest first."""
        before: list[bytes] = []
        after: list[bytes] = []
        run_index = self._run_index(key)
        if run_index < 0:
            return before, after
        position = bisect_left(self._runs[run_index], key)
        at_run = run_index
        at = position
        while len(after) < count:
            if at >= len(self._runs[at_run]):
                at_run += 1
                at = 0
                if at_run >= len(self._runs):
                    break
            after.append(self._runs[at_run][at])
            at += 1
        at_run = run_index
        at = position - 1
        while len(before) < count:
            if at < 0:
                at_run -= 1
                if at_run < 0:
                    break
                at = len(self._runs[at_run]) - 1
            before.append(self._runs[at_run][at])
            at -= 1
        return before, after
