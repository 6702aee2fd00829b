"""Parsers of option values: a number, an amount of memory, a file to write. An invalid one is refused with
an example of a valid one."""

import argparse
import math
import os
import re
import sys
from pathlib import Path
from typing import Final

from ..base.checks import MAX_COUNT

_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_MAX_BYTES: Final = 1 << 62
_LEAST_MEMORY: Final = 4096
"""Less is a number without its unit: 40 for 40g."""
_MAX_DIGITS: Final = 18
"""Of a number: it then fits in 63 bits, whatever it is compared or multiplied with."""
_MAX_BEAMS: Final = 65536
"""As `KVCache.beam_width`."""
_MAX_DRAFTS: Final = 4096
"""Far over what any engine drafts."""


def to_count(text: str) -> int:
    """A whole number from 0 on."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on, of at most {_MAX_DIGITS} digits")
    return int(text)


def to_positive(text: str) -> int:
    number = to_count(text)
    if number == 0:
        raise argparse.ArgumentTypeError("0 is too few: at least 1")
    return number


def to_tokens(text: str) -> int:
    """Of a sequence or a step: at least one, and no more than the manager takes."""
    return _require_at_most(to_positive(text), MAX_COUNT, "tokens")


def to_beams(text: str) -> int:
    return _require_at_most(to_positive(text), _MAX_BEAMS, "beams")


def to_drafts(text: str) -> int:
    return _require_at_most(to_positive(text), _MAX_DRAFTS, "drafts a step")


def _require_at_most(number: int, most: int, what: str) -> int:
    if number > most:
        raise argparse.ArgumentTypeError(f"{number} is too many: at most {most} {what}")
    return number


def to_float_within(text: str, least: float, most: float, refusal: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(refusal)
    return number


def to_share(text: str) -> float:
    return to_float_within(text, 0.0, 1.0, f"{text!r} is no share between 0 and 1")


def to_rate(text: str) -> float:
    """A number of requests a second, over 0."""
    return to_float_within(text, 1e-6, 1e6, f"{text!r} is no rate between 0.000001 and 1000000 a second")


def to_ratio(text: str) -> tuple[float, ...]:
    """Numbers above 0, one for each pool group."""
    what = "is no share; give a number over 0 for each pool group, as in 0.4,0.6"
    return tuple([to_float_within(part, sys.float_info.min, 1e9, f"{part!r} {what}") for part in text.split(",")])


def to_sizes(text: str) -> tuple[float, ...]:
    """Factors of a tier's size; none for ``none``."""
    if text == "none":
        return ()
    what = "is no size between 0.001 and 1000, in present sizes; say 0.5,2,8 or none"
    return tuple([to_float_within(part, 0.001, 1000.0, f"{part!r} {what}") for part in text.split(",")])


def parse_size(text: str) -> int | None:
    """Bytes of ``64MiB``, ``40g``, ``1000``; None where it is no size. One that is too large is a `ValueError`, which says so."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([kmgt]?)(?:i?b)?", text.lower())
    num_bytes = 0 if match is None else int(float(match.group(1)) * (1 << _UNITS[match.group(2)]))
    if num_bytes >= _MAX_BYTES:
        raise ValueError(f"{text!r} is too much: under {_MAX_BYTES >> 40}TiB")
    return num_bytes if num_bytes > 0 else None


def to_size(text: str) -> int:
    try:
        num_bytes = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if num_bytes is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size in bytes; say 67108864, 64MiB or 40g")
    if num_bytes < _LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text!r} is {num_bytes} bytes; {text.lower().rstrip('kib ')}g?")
    return num_bytes


def require_file(parser: argparse.ArgumentParser, option: str, path: str | None, *inputs: str | None) -> None:
    """As `require_writable`, of an option that does not write to the output."""
    if path == "-":
        parser.error(f"{option} -: it is not written to the output; name a file, as in {option} ./-")
    require_writable(parser, option, path, *inputs)


def require_writable(parser: argparse.ArgumentParser, option: str, path: str | None, *inputs: str | None) -> None:
    """A file that cannot be written, or that is one of the inputs, is a usage error at the start: the run before it may take hours.
    ``-`` is the output."""
    if path is None or path == "-":
        return
    if path == "":
        parser.error(f"{option}: its name is empty; name a file")
    for name in inputs:
        if name is not None and _are_same(path, name):
            parser.error(f"{option} {path}: that is the input, and it would be replaced; name another file")
    if not Path(path).parent.is_dir():
        parser.error(f"{option} {path}: there is no such folder")
    if Path(path).is_dir():
        parser.error(f"{option} {path}: that is a folder; name a file")


def require_apart(parser: argparse.ArgumentParser, **paths: str | None) -> None:
    """Outputs of one name are a usage error: one would replace the other. By the options' names, ``_`` for ``-``; OUT stands for itself."""
    known: list[tuple[str, str]] = []
    for name, path in paths.items():
        if path is None or path == "-":
            continue
        option = name if name.isupper() else "--" + name.replace("_", "-")
        for other, other_path in known:
            if os.path.realpath(path) == os.path.realpath(other_path) or _are_same(path, other_path):
                parser.error(f"{other} {other_path} and {option} {path} are one file; name another one for one of them")
        known.append((option, path))


def _are_same(path: str, other: str) -> bool:
    """Whether both names are of one regular file."""
    try:
        return os.path.isfile(path) and os.path.samefile(path, other)
    except OSError:
        return False
