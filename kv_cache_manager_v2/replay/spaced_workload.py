"""A workload with other times: a new session every so often, later turns when the one before is done."""

from collections.abc import Iterator
from typing import Final, final


from .workload import Request, Workload, WorkloadSummary


@final
class SpacedWorkload(Workload):
    """The requests of another workload; sessions come at equal distances, ``rate`` of them a second."""

    __slots__ = ("_workload", "_gap_ms")

    def __init__(self, workload: Workload, rate: float) -> None:
        self._workload: Final = workload
        self._gap_ms: Final = 1000.0 / rate

    @property
    def name(self) -> str:
        return self._workload.name

    def summary(self) -> WorkloadSummary:
        return self._workload.summary()

    def requests(self) -> Iterator[Request]:
        times: dict[int, float] = {}
        num_sessions = 0
        requests: list[Request] = []
        for request in self._workload.requests():
            if request.after is None:
                time_ms = num_sessions * self._gap_ms
                num_sessions += 1
            else:
                time_ms = times[request.after]
            times[request.id] = time_ms
            requests.append(
                Request(
                    request.id, time_ms, request.segment_codes, request.segment_lengths, request.num_output_tokens, request.after,
                    request.pause_steps, request.delay_ms, request.continues,
                )  # fmt: skip
            )
        return iter(sorted(requests, key=_arrival))


def _arrival(request: Request) -> float:
    return request.arrival_ms
