"""Traces that `kvcm convert` wrote: the very requests that it read, generated answers included.

`codes` and `lengths` are the segments of a prompt (see `tokens`); code 2**29 + N is the answer of the request with `request_id` N. The hash
ids beside them are for readers of Mooncake's format, which knows whole blocks of prompts only.
"""

from typing import Any, Final, final

import numpy as np

from ..tokens import NUM_SEGMENT_IDS
from ..workload import Request
from .hash_readers import CONTINUES
from .log_error import LineError, count_of, list_of, require_length, required, shown, text_of, time_of
from .log_reader import LogReader


@final
class ConvertedReader(LogReader):
    """Reads requests that keep their ids. One that follows no request of the file starts at its own time."""

    __slots__ = ("_ids", "_notes")

    def __init__(self) -> None:
        self._ids: Final[set[int]] = set()
        self._notes: Final[list[str]] = []

    def requests_of(self, record: dict[str, Any], first_id: int) -> list[Request]:
        own = count_of(required(record, "request_id"), "request_id", 0)
        if own >= NUM_SEGMENT_IDS or own in self._ids:
            raise LineError(f"request_id {own} is there twice" if own in self._ids else f"request_id {own} is over {NUM_SEGMENT_IDS - 1}")
        arrival_ms = time_of(required(record, "timestamp"), "timestamp")
        delay_ms = time_of(record.get("delay", 0), "delay")
        output_tokens = count_of(required(record, "output_length"), "output_length", 0)
        codes = _numbers(record, "codes", 0, 2 * NUM_SEGMENT_IDS - 1)
        lengths = _numbers(record, "lengths", 1, NUM_SEGMENT_IDS - 1)
        input_tokens = count_of(required(record, "input_length"), "input_length", 1)
        if len(codes) != len(lengths) or sum(lengths) != input_tokens:
            raise LineError(f"{len(codes)} codes and {len(lengths)} lengths, in all {sum(lengths)}; input_length is {input_tokens}")
        require_length(input_tokens, output_tokens)
        after = None if record.get("after") is None else count_of(record["after"], "after", 0)
        self._notes.extend([text_of(note, "a note") for note in list_of(record.get("notes", []), "notes")])
        self._ids.add(own)
        return [
            Request(
                own, arrival_ms, np.array(codes, dtype=np.int64), np.array(lengths, dtype=np.int64), output_tokens,
                after if after in self._ids else None, 0, delay_ms, CONTINUES.get(str(record.get("stop"))),
            )  # fmt: skip
        ]

    def notes(self) -> list[str]:
        return self._notes


def _numbers(record: dict[str, Any], name: str, least: int, most: int) -> list[int]:
    numbers = list_of(required(record, name), name)
    for number in numbers:
        if type(number) is not int or not least <= number <= most:
            raise LineError(f"{name} has {shown(number)}, not an int from {least} to {most}")
    return numbers
