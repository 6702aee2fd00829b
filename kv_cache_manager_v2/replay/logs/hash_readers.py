"""Logs whose prompts are lists of hash ids: Mooncake, and Bailian (Qwen), whose blocks are 16 tokens and times seconds.

Ids may be ints of any size or strings; equal ids mean equal tokens.
"""

from typing import Any, Final, final

import numpy as np

from ..tokens import NUM_SEGMENT_IDS
from ..workload import Request
from .log_error import LineError, count_of, list_of, require_length, required, shown, time_of
from .log_reader import LogOptions, LogReader
from .token_runs import CodeTable

MOONCAKE_BLOCK_TOKENS: Final = 512
BAILIAN_BLOCK_TOKENS: Final = 16
CONTINUES: Final = {"tool_use": True, "tool_calls": True, "end_turn": False, "stop": False}
"""Stop reasons that say whether the session goes on."""
PROMPTS_ONLY: Final = (
    "hash ids are of prompts alone: where a prompt repeats an earlier answer, those tokens are no hits here and would be some in service; "
    "a log of texts or tokens has them, converted or not"
)


@final
class IdTable:
    """Codes of hash ids. Small ints are their own codes until ``is_dense`` is set, which a first pass finds out (`has_wide_ids`)."""

    __slots__ = ("is_dense", "has_wide_ids", "_table")

    def __init__(self, is_dense: bool, table: CodeTable | None = None) -> None:
        self.is_dense: Final = is_dense
        self.has_wide_ids = False
        """Some id was no int under 2**29."""
        self._table: Final = CodeTable() if table is None else table

    def codes_of(self, ids: list[Any]) -> list[int]:
        codes: list[int] = []
        for position, value in enumerate(ids):
            if type(value) is int:
                if not 0 <= value < NUM_SEGMENT_IDS:
                    self.has_wide_ids = True
            elif isinstance(value, str) and value != "":
                self.has_wide_ids = True
            else:
                raise LineError(f"hash_ids[{position}] is {shown(value)}, not an int or a string")
            codes.append(self._table.code(value) if self.is_dense else value if not self.has_wide_ids else 0)
        return codes


def lengths_of_blocks(num_tokens: int, num_ids: int, block_tokens: int) -> list[int]:
    """Of each block; the last one may be cut."""
    num_blocks = -(-num_tokens // block_tokens)
    if num_ids != num_blocks:
        raise LineError(
            f"{num_ids} hash_ids for input_length {num_tokens}: that many tokens are {num_blocks} blocks of {block_tokens} (--trace-block)"
        )
    lengths = [block_tokens] * num_blocks
    lengths[-1] = num_tokens - (num_blocks - 1) * block_tokens
    return lengths


def request_of_record(record: dict[str, Any], request_id: int, block_tokens: int, ids: IdTable) -> Request:
    """A record of Mooncake's format."""
    if not isinstance(record, dict):
        raise LineError(f"a JSON {type(record).__name__} where an object with timestamp, input_length, ... belongs")
    arrival_ms = time_of(required(record, "timestamp"), "timestamp")
    input_tokens = count_of(required(record, "input_length"), "input_length", 1)
    output_tokens = count_of(required(record, "output_length"), "output_length", 0)
    require_length(input_tokens, output_tokens)
    hash_ids = list_of(required(record, "hash_ids"), "hash_ids")
    lengths = lengths_of_blocks(input_tokens, len(hash_ids), block_tokens_of(record, block_tokens))
    codes = np.array(ids.codes_of(hash_ids), dtype=np.int64)
    continues = CONTINUES.get(str(record.get("stop")))
    return Request(request_id, arrival_ms, codes, np.array(lengths, dtype=np.int64), output_tokens, continues=continues)


def block_tokens_of(record: dict[str, Any], default: int) -> int:
    """Tokens per hash id: the record's own, which `kvcm convert` writes, or the default."""
    own = record.get("block_tokens")
    return default if own is None else count_of(own, "block_tokens", 1)


@final
class MooncakeReader(LogReader):
    """Independent requests with time stamps."""

    __slots__ = ("ids", "_block_tokens")

    def __init__(self, options: LogOptions, is_dense: bool) -> None:
        self.ids: Final = IdTable(is_dense)
        self._block_tokens: Final[int] = options.block_tokens or MOONCAKE_BLOCK_TOKENS

    def requests_of(self, record: dict[str, Any], first_id: int) -> list[Request]:
        return [request_of_record(record, first_id, self._block_tokens, self.ids)]

    def notes(self) -> list[str]:
        return [PROMPTS_ONLY]


@final
class BailianReader(LogReader):
    """Turns of chats: each prompt is whole, and follows that of its parent."""

    __slots__ = ("_ids", "_block_tokens", "_chats")

    def __init__(self, options: LogOptions) -> None:
        self._ids: Final = IdTable(True)
        self._block_tokens: Final[int] = options.block_tokens or BAILIAN_BLOCK_TOKENS
        self._chats: Final[dict[object, tuple[int, float]]] = {}

    def requests_of(self, record: dict[str, Any], first_id: int) -> list[Request]:
        chat = required(record, "chat_id")
        if type(chat) not in (int, str):
            raise LineError(f"chat_id is {shown(chat)}, not an int or a string")
        arrival_ms = time_of(required(record, "timestamp"), "timestamp", "seconds") * 1000.0
        input_tokens = count_of(required(record, "input_length"), "input_length", 1)
        output_tokens = count_of(required(record, "output_length"), "output_length", 0)
        require_length(input_tokens, output_tokens)
        hash_ids = list_of(required(record, "hash_ids"), "hash_ids")
        lengths = lengths_of_blocks(input_tokens, len(hash_ids), block_tokens_of(record, self._block_tokens))
        codes = np.array(self._ids.codes_of(hash_ids), dtype=np.int64)
        after: int | None = None
        parent = record.get("parent_chat_id")
        if type(parent) in (int, str):
            known = self._chats.get(parent)
            if known is not None and known[1] <= arrival_ms:
                after = known[0]
        self._chats[chat] = (first_id, arrival_ms)
        return [Request(first_id, arrival_ms, codes, np.array(lengths, dtype=np.int64), output_tokens, after)]

    def notes(self) -> list[str]:
        return [PROMPTS_ONLY]
