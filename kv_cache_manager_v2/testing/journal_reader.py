"""Journal reader: record by record. Its errors say where and why: a wrong file, another version, a torn end."""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..journal.journal_format import MAGIC, MIXED, NOTHING, NUMBER, PACKED, RESTORED, TEXT, VERSION

_MAX_SHIFT: Final = 56


@mypyc_attr(native_class=False)
class JournalError(ValueError):
    """The journal cannot be read (further): the offset in bytes, and the reason."""


@final
@mypyc_attr(native_class=False)
class TornJournalError(JournalError):
    """The journal ends inside a record: its process was killed, or its disk was full. What is before that record is whole."""


@final
class JournalReader:
    """A cursor over the bytes of a journal, already past its header."""

    __slots__ = ("config", "codec", "position", "_data")

    config: Final[bytes]
    """The configuration of the recorded manager, as `decode_config` reads it."""
    codec: Final[bytes]
    """What `describe_codec` said of its codec; empty if it had none."""

    def __init__(self, data: bytes) -> None:
        self._data: Final = data
        self.position: i64 = len(MAGIC) + 1
        if len(data) == 0:
            raise JournalError("it is empty: its process was killed early, or its disk was full; nothing can be done again")
        if data[: len(MAGIC)] != MAGIC:
            raise JournalError("this is no journal of a KVCacheManager")
        if len(data) <= len(MAGIC) or data[len(MAGIC)] != VERSION:
            raise JournalError(f"this journal is not of version {VERSION}, the only one that this release reads")
        try:
            self.config = self.raw(self.number())
            self.codec = self.raw(self.number())
        except TornJournalError:
            raise JournalError("the journal ends inside its configuration: nothing can be done again") from None

    @property
    def num_bytes_left(self) -> int:
        return len(self._data) - int(self.position)

    @property
    def is_at_end(self) -> bool:
        return self.position >= len(self._data)

    def restored(self) -> list[bytes]:
        """The restored prefixes that the manager found on its durable level: to be read before the first call."""
        pieces: list[bytes] = []
        begin = self.position
        while not self.is_at_end and self._data[self.position] == RESTORED:
            try:
                self.number()
                pieces.append(self.raw(self.number()))
            except TornJournalError:
                self.position = begin
                raise JournalError("the journal ends inside what its manager had restored: nothing can be done again") from None
        return pieces

    def number(self) -> i64:
        value: i64 = 0
        shift: i64 = 0
        data = self._data
        while True:
            if self.position >= len(data):
                raise TornJournalError(f"byte {self.position}: the journal ends inside a record")
            byte: i64 = data[self.position]
            self.position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > _MAX_SHIFT:
                raise JournalError(f"byte {self.position}: a number is longer than any that was ever written")

    def raw(self, num_bytes: i64) -> bytes:
        end = self.position + num_bytes
        if end > len(self._data):
            raise TornJournalError(f"byte {self.position}: the journal ends inside a record")
        data = self._data[self.position : end]
        self.position = end
        return data

    def fixed(self, num_bytes: i64) -> i64:
        """A number of that many bytes, up to 7."""
        value: i64 = 0
        shift: i64 = 0
        for byte in self.raw(num_bytes):
            value |= i64(byte) << shift
            shift += 8
        return value

    def scope_part(self) -> int | str | None:
        kind = self.number()
        if kind == NOTHING:
            return None
        if kind == NUMBER:
            form = self.number()
            magnitude = int.from_bytes(self.raw(form // 2), "little")
            return -magnitude - 1 if form % 2 == 1 else magnitude
        if kind == TEXT:
            try:
                return self.raw(self.number()).decode(errors="surrogatepass")
            except UnicodeDecodeError:
                raise JournalError(f"byte {self.position}: a scope's text is not UTF-8") from None
        raise JournalError(f"byte {self.position}: {kind} is no kind of scope")

    def tokens(self) -> list[int | bytes]:
        count = self.number()
        form = self.number()
        tokens: list[int | bytes] = []
        if form == PACKED:
            tokens.extend(memoryview(self.raw(count * 4)).cast("i"))
            return tokens
        if form != MIXED:
            raise JournalError(f"byte {self.position}: {form} is no form of tokens")
        for position in range(count):
            token = self.number()
            tokens.append(self.raw(self.number()) if token == 0 else int(token) - 1)
        return tokens
