"""Journal writer: owns the file, and a buffer that is flushed when it is full; a record costs a few bytes.

Records of fixed length are written by `CallJournal` straight into the buffer: it counts them, and calls `pass_milestone` when a
digest is due; others are built with the methods for fields, and end with `end_record`.

A journal never stands in the way of serving: when the file cannot be written (a full disk), that is logged once, recording
ends, and `error` says why; what was written so far can be read up to its last whole record.

A forked child writes nothing: the file, and what the buffer had at the fork, are its parent's.
"""

import os
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from ..base.package_log import PackageLog
from ..device.claimed_file import ClaimedFile
from ..storage.decision_digest import DecisionDigest
from .journal_format import (
    DIGEST,
    DIGEST_EVERY,
    MAGIC,
    MIXED,
    NOTHING,
    NUMBER,
    PACKED,
    TEXT,
    VERSION,
)

_FLUSH_BYTES: Final = 1 << 16
_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class JournalWriter:
    __slots__ = ("path", "error", "buffer", "num_records", "_file", "_digest", "_process")

    def __init__(self, path: str | os.PathLike[str], config: bytes, codec: bytes = b"") -> None:
        """``codec``: as `describe_codec` has it.

        Creates the file, or empties it; `OSError` if that fails, `BlockingIOError` where another writer has it open."""
        self.path: Final[str] = os.fspath(path)
        self.error: OSError | None = None
        """Why recording has ended early; None while all is well."""
        self.buffer = BytesWriter()
        """Bytes that the file does not have yet; another one after each flush."""
        self.num_records: i64 = 0
        self._digest: DecisionDigest | None = None
        """The manager's, which stands between records; None before `follow`."""
        self._process: Final[int] = os.getpid()
        """The one that made the file."""
        self._file: ClaimedFile | None = ClaimedFile(self.path)
        self.buffer.write(MAGIC)
        self.buffer.append(VERSION)
        for text in (config, codec):
            self.number(len(text))
            self.buffer.write(text)

    def follow(self, digest: DecisionDigest) -> None:
        """Write this digest between the records from now on."""
        self._digest = digest

    # -- fields -------------------------------------------------------------------------------------------------------

    def number(self, value: i64) -> None:
        """An unsigned varint."""
        buffer = self.buffer
        while value >= 128:
            low: u8 = u8(value & 127)
            buffer.append(low | 128)
            value >>= 7
        last: u8 = u8(value)
        buffer.append(last)

    def raw(self, data: bytes) -> None:
        """Its length, and the bytes."""
        self.number(len(data))
        self.buffer.write(data)

    def scope_part(self, part: int | str | None) -> None:
        if part is None:
            self.number(NOTHING)
        elif isinstance(part, int):
            self.number(NUMBER)
            magnitude = part if part >= 0 else -part - 1
            digits = magnitude.to_bytes((magnitude.bit_length() + 7) // 8, "little")
            self.number(len(digits) * 2 + (part < 0))
            self.buffer.write(digits)
        else:
            self.number(TEXT)
            self.raw(part.encode(errors="surrogatepass"))  # any str may be a salt

    def packed_tokens(self, packed: bytes) -> None:
        """Tokens without digests."""
        self.number(len(packed) // 4)
        self.number(PACKED)
        self.buffer.write(packed)

    def mixed_tokens(self, tokens: list[int | bytes]) -> None:
        self.number(len(tokens))
        self.number(MIXED)
        for token in tokens:
            if isinstance(token, int):
                self.number(token + 1)
            else:
                self.number(0)
                self.raw(token)

    # -- records ------------------------------------------------------------------------------------------------------

    def end_record(self) -> None:
        """A record is whole."""
        num_records = self.num_records + 1
        self.num_records = num_records
        if num_records & (DIGEST_EVERY - 1) == 0 or len(self.buffer) >= _FLUSH_BYTES:
            self.pass_milestone()

    def pass_milestone(self) -> None:
        """Between two records: from time to time the digest of all decisions is put there, and the buffer goes to the file."""
        if self.num_records & (DIGEST_EVERY - 1) == 0:
            self._write_digest()
        if len(self.buffer) >= _FLUSH_BYTES:
            self.flush()

    def _write_digest(self) -> None:
        digest = self._digest
        if digest is not None:
            self.number(DIGEST)
            self.buffer.write(digest.to_bytes())

    def flush(self) -> None:
        """Hand everything recorded so far to the operating system."""
        data = self.buffer.getvalue()
        self.buffer = BytesWriter()
        file = self._file
        if file is None or os.getpid() != self._process:
            return
        try:
            num_written = file.write(data)
            while num_written < len(data):
                # The file may take less than it is given.
                num_written += file.write(data[num_written:])
        except OSError as error:
            self._end_early(error)

    def _end_early(self, error: OSError) -> None:
        self.error = error
        _logger.error("the journal %s ends here, the manager goes on: %s", self.path, error)
        file = self._file
        self._file = None
        if file is not None:
            try:
                file.close()
            except OSError:
                _logger.debug("closing the journal %s failed", self.path, with_error=True)

    def close(self) -> None:
        """Write the final digest and close the file. Twice is fine."""
        if self._file is None:
            return
        self._write_digest()
        self.flush()
        file = self._file
        if file is not None:
            self._file = None
            try:
                file.close()
            except OSError as error:
                self._end_early(error)
