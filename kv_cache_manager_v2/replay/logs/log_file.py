"""The lines or items of a log file: plain, `.gz`, `.zst` or parquet by their first bytes, or the standard input (``-``).

The standard input is copied to a temporary file, as a log is read more than once. A file that is no log at all, a folder, or one
that ends early is a `BadInputError`, which says what it is and what works.
"""

import gzip
import io
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, Final, final


from ...base.missing_package import missing_package
from ..bad_input import BadInputError

STANDARD_INPUT: Final = "-"
FORMATS: Final = (
    "Mooncake jsonl (timestamp, input_length, output_length, hash_ids), Bailian jsonl (chat_id), AIPerf jsonl (session_id, delay, "
    "text_input, text, turns), ShareGPT json (conversations), batches of OpenAI's and Anthropic's APIs (body, params), requests (messages, "
    "prompt, input), token ids (prompt_token_ids), BurstGPT csv and Azure csv"
)
_GZIP: Final = b"\x1f\x8b"
_PARQUET: Final = b"PAR1"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_OTHERS: Final = {
    b"PK\x03\x04": "a zip file: unpack it first",
    b"BZh": "a bzip2 file: bzcat FILE | kvcm ... -",
    b"\xfd7zXZ": "an xz file: xzcat FILE | kvcm ... -",
    b"ARROW1": "an Arrow file: write it as JSON lines",
    b"%PDF": "a PDF file",
    b"\x89PNG": "an image",
}
_CHUNK: Final = 1 << 20
_MAX_NAMES: Final = 5


@final
class LogFile:
    """A log that can be read from its beginning any number of times."""

    __slots__ = ("path", "num_bytes", "_copy", "_unpacked", "_position_of")

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.num_bytes = 0
        """On disk, for progress."""
        self._copy: Any = None
        self._unpacked: Any = None
        self._position_of: Any = None

    @property
    def position(self) -> int:
        """Bytes read of the file on disk."""
        return 0 if self._position_of is None else int(self._position_of.tell())

    def open(self) -> IO[bytes]:
        """The decompressed bytes from the beginning. The caller closes it."""
        if self._unpacked is not None:
            name: str = self._unpacked.name
            self._position_of = open(name, "rb")
            again: IO[bytes] = self._position_of
            return again
        raw = self._open_raw()
        self._position_of = raw
        head = raw.read(8)
        raw.seek(0)
        if head.startswith(_GZIP):
            unpacked: Any = gzip.GzipFile(fileobj=raw)
            file: IO[bytes] = unpacked
            return file
        if head.startswith(_ZSTD):
            with raw:
                return self._open_unpacked(raw)
        if head.startswith(_PARQUET):
            with raw:
                return self._open_rows(raw)
        for magic, what in _OTHERS.items():
            if head.startswith(magic):
                raw.close()
                raise BadInputError(f"{self.path}: {what}; accepted are {FORMATS}")
        return raw

    def lines(self) -> Iterator[bytes]:
        """Each line, with its end."""
        num_lines = 0
        with self.open() as file:
            try:
                for line in file:
                    num_lines += 1
                    yield line
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise self._cut(num_lines, error) from None

    def items(self) -> Iterator[Any]:
        """Each item of the JSON array that the file is. `BadInputError` where it is not one."""
        decoder = json.JSONDecoder()
        num_items = 0
        with self.open() as file:
            text = io.TextIOWrapper(file, encoding="utf-8")
            try:
                rest = text.read(_CHUNK).lstrip("\ufeff \t\r\n")[1:]
                is_over = False
                while True:
                    rest = rest.lstrip(" \t\r\n,")
                    if rest.startswith("]"):
                        return
                    try:
                        item, end = decoder.raw_decode(rest)
                    except (ValueError, RecursionError) as refusal:
                        # As much again, so that a long item is not begun anew for each chunk.
                        more = "" if is_over else text.read(max(_CHUNK, len(rest)))
                        if more == "":
                            if rest == "":
                                reason = "it ends without a ]"
                            else:
                                reason = f"item {num_items + 1} is not JSON: {refusal}"
                            raise BadInputError(f"{self.path}: a JSON array that cannot be read: {reason}; it may be cut off") from None
                        rest += more
                        continue
                    # A number at the end of the chunk may go on in the next one; objects and lists do not.
                    num_items += 1
                    yield item
                    rest = rest[end:]
                    if len(rest) < _CHUNK and not is_over:
                        more = text.read(_CHUNK)
                        is_over = more == ""
                        rest += more
            except UnicodeDecodeError as error:
                raise BadInputError(f"{self.path}: not UTF-8 after item {num_items}: {error.reason}") from None
            except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
                raise self._cut(num_items, failure) from None

    def _open_raw(self) -> IO[bytes]:
        if self.path == STANDARD_INPUT:
            return self._open_copy()
        if os.path.isdir(self.path):
            names = sorted(os.listdir(self.path))
            logs = [name for name in names if name.partition(".")[2].startswith(("jsonl", "json", "csv"))]
            has = f"it has {', '.join(logs[:_MAX_NAMES])}: name one of them" if len(logs) > 0 else "it has no .jsonl, .json or .csv file"
            raise BadInputError(f"{self.path}: a folder, where a log file was expected; {has}")
        self.num_bytes = os.path.getsize(self.path)
        raw = open(self.path, "rb")
        if not raw.seekable():
            raw.close()
            raise BadInputError(
                f"{self.path}: it is a pipe, and a log is read more than once; write it to a file first, or give it as the standard input: "
                "kvcm ... -"
            )
        return raw

    def _open_copy(self) -> IO[bytes]:
        if self._copy is None:
            source = sys.stdin
            if source is None:
                raise BadInputError("-: there is no standard input; name a file")
            self._copy = tempfile.NamedTemporaryFile(prefix="kvcm-")
            try:
                while True:
                    chunk = source.buffer.read(_CHUNK)
                    if len(chunk) == 0:
                        break
                    self._copy.write(chunk)
                self._copy.flush()
            except OSError as failure:
                raise BadInputError(
                    f"-: the copy of the standard input in {tempfile.gettempdir()}: {failure.strerror}; set TMPDIR to a folder "
                    "with more room"
                ) from None
        name: str = self._copy.name
        self.num_bytes = os.path.getsize(name)
        return open(name, "rb")

    def _open_unpacked(self, raw: IO[bytes]) -> IO[bytes]:
        """The content of a zst file, from a temporary file: zstandard's own reader takes a file that ends early for a whole one."""
        try:
            import zstandard
        except ImportError as missing:
            text = str(missing_package("a .zst file", "zstandard", missing))
            raise BadInputError(f"{self.path}: {text}. Or: zstdcat FILE | kvcm ... -") from None
        unpacked = tempfile.NamedTemporaryFile(prefix="kvcm-")
        decompressor = zstandard.ZstdDecompressor()
        frame: Any = None
        rest = b""
        while True:
            data = rest if len(rest) > 0 else raw.read(_CHUNK)
            rest = b""
            if len(data) == 0:
                break
            if frame is None:
                frame = decompressor.decompressobj()
            try:
                unpacked.write(frame.decompress(data))
            except zstandard.ZstdError as error:
                raise BadInputError(f"{self.path}: a zst file that is damaged ({error}); get it again") from None
            if frame.eof:
                rest = frame.unused_data
                frame = None
        if frame is not None:
            raise BadInputError(f"{self.path}: a zst file that ends early, in the middle of a frame; get it again")
        return self._open_copy_of_content(unpacked)

    def _open_rows(self, raw: IO[bytes]) -> IO[bytes]:
        """The rows of a parquet file as JSON lines, from a temporary file; a column that a row lacks is no field of it."""
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as missing:
            text = str(missing_package("a parquet file", "pyarrow", missing))
            raise BadInputError(f"{self.path}: {text}. Or write it as JSON lines") from None
        lines = tempfile.NamedTemporaryFile(prefix="kvcm-")
        try:
            for batch in parquet.ParquetFile(raw).iter_batches():
                for row in batch.to_pylist():
                    fields = {name: value for name, value in row.items() if value is not None}
                    lines.write(json.dumps(fields, default=str).encode() + b"\n")
        except (pyarrow.ArrowException, OSError) as error:
            raise BadInputError(f"{self.path}: a parquet file that ends early or is damaged ({error}); get it again") from None
        return self._open_copy_of_content(lines)

    def _open_copy_of_content(self, unpacked: Any) -> IO[bytes]:
        unpacked.flush()
        if self._unpacked is not None:
            self._unpacked.close()
        self._unpacked = unpacked
        name: str = unpacked.name
        self._position_of = open(name, "rb")
        self.num_bytes = os.path.getsize(name)
        file: IO[bytes] = self._position_of
        return file

    def _cut(self, num_read: int, error: Exception) -> BadInputError:
        return BadInputError(
            f"{self.path}: a gzip file that ends early or is damaged, after {num_read} whole lines or items ({error}). Get it again, or"
            f" read what is there: zcat FILE 2>/dev/null | kvcm ... --skip-bad -"
        )
