"""What identity.json in a durable level's folder says: its format, whose it is, its slots, and where its parts are."""

import json
import os
from collections.abc import Sequence
from typing import Any, Final

from ..device.file_bytes import read_named
from ..device.file_port import FilePort
from .folder_parts import describe_part, find_part_fault, read_object, read_part

IDENTITY_NAME: Final = "identity.json"
_FORMAT: Final = 2
_FORMAT_OF_PARTS: Final = 4
"""The format of a level on several paths."""


def read_parts(files: FilePort, path: str) -> dict[str, Any]:
    """The parts, as identity.json says; empty for a level on one path. `ValueError` where it cannot be known."""
    return read_identity(files, path)[3]


def list_part_folders(files: FilePort, path: str, parts: dict[str, Any], more_paths: Sequence[str] = ()) -> list[str]:
    """The folder that has the index, and those of the parts: where the last manager that wrote had them, or else in one of
    ``more_paths``."""
    name = os.path.basename(os.path.normpath(path))
    folders = [path, *[os.path.join(str(parent), name) for parent in parts.get("paths", [])[1:]]]
    for number in range(1, len(folders)):
        noted = folders[number]
        for folder in (noted, *[os.path.join(other, name) for other in more_paths], *more_paths):
            folders[number] = folder
            if find_part_fault(files, folders, parts, number) == "":
                break
            folders[number] = noted
    return folders


def read_identity(files: FilePort, path: str) -> tuple[dict[str, Any], dict[str, Any], list[list[int]], dict[str, Any]]:
    """`parse_identity` of the folder's; nothing is changed."""
    name = os.path.join(path, IDENTITY_NAME)
    try:
        data = read_named(files, name)
    except FileNotFoundError:
        part = read_part(files, path)
        if part is not None:
            raise ValueError(describe_part(part)) from None
        raise ValueError("there is no identity.json, so what it has is unknown") from None
    return parse_identity(data)


def encode_identity(identity: dict[str, Any], layout: dict[str, Any], parts: dict[str, Any]) -> bytes:
    """``parts``: empty for a level on one path."""
    described = {"format": _FORMAT, "identity": identity, "layout": layout}
    if len(parts) > 0:
        described["format"] = _FORMAT_OF_PARTS
        described["parts"] = parts
    return json.dumps(described, indent=1).encode()


def parse_identity(data: bytes) -> tuple[dict[str, Any], dict[str, Any], list[list[int]], dict[str, Any]]:
    """Identity, layout, the bytes of slots by pool group and pool, and the parts, empty for a level on one path. `ValueError` if it does
    not say so, or has another format."""
    described = read_object(data)
    if described is None:
        raise ValueError("identity.json there cannot be read, so what it has is unknown")
    number = described.get("format")
    parts = described.get("parts", {})
    # Another format may say it otherwise.
    if number in (_FORMAT, _FORMAT_OF_PARTS) and (not isinstance(parts, dict) or (len(parts) > 0 and not _are_parts(parts))):
        raise ValueError("identity.json there does not say which parts it has, so what it has is unknown")
    expected = _FORMAT_OF_PARTS if parts else _FORMAT
    if number != expected:
        raise ValueError(f"it has format {number}, and this release reads format {expected} only; the release that made it still reads it")
    identity = described.get("identity")
    layout = described.get("layout")
    if not isinstance(identity, dict) or not isinstance(layout, dict):
        raise ValueError("identity.json there has no identity or no layout, so what it has is unknown")
    slots = layout.get("slots")
    if not isinstance(slots, list) or not all([_are_sizes(sizes) for sizes in slots]):
        raise ValueError("identity.json there does not say how large the slots are, so what it has is unknown")
    return identity, layout, [list(sizes) for sizes in slots], parts


def _are_parts(parts: dict[str, Any]) -> bool:
    paths = parts.get("paths")
    return isinstance(paths, list) and all([isinstance(path, str) for path in paths]) and "set" in parts


def _are_sizes(sizes: object) -> bool:
    return isinstance(sizes, list) and all([isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes])
