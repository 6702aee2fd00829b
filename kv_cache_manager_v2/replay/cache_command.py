"""The command ``cache``: what durable levels have on the disk, whether it is whole, and its removal. See `cli` for exit codes."""

import argparse
import json
import os
import sys
from dataclasses import replace
from typing import Any, Final, TextIO

from .. import LogicError, StorageIOError
from ..device.checksum import require_xxhash
from ..device.os_files import OsFiles
from ..device.read_only_files import ReadOnlyFiles
from ..durable.folder_removal import remove_folder, require_removable
from .bad_input import BadInputError
from .exit_codes import EXIT_BAD_INPUT, EXIT_OK, EXIT_WRONG, describe_exit_codes
from .folder_contents import FolderContents, ScopeFigures, find_folders, find_level_of_part, remove_scopes
from .read_progress import ReadProgress
from .report_rows import aligned, format_bytes
from .slot_check import SlotCheck
from .stored_index import list_stored_pages

CACHE_HELP: Final = "durable disk levels: what they have, whether it is whole, and how to remove it"
_FAULTS_SHOWN: Final = 20
_NO_FAULTS: Final[list[str]] = []


def add_cache_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="cache_action", metavar="ACTION", required=True)
    codes = describe_exit_codes("cache")
    listing = actions.add_parser("ls", help="what is there, by model and scope", description="List what durable levels have.", epilog=codes)
    _add_folder(listing)
    listing.add_argument("--json", action="store_true", help="the figures as JSON instead of tables")
    listing.add_argument("--salts", action="store_true", help="the salts as they are; a person who knows one can test what its tenant asks")
    check = actions.add_parser(
        "verify", help="read every page, compare checksums", description="Read every page and compare it with its checksums.", epilog=codes
    )
    _add_folder(check)
    check.add_argument("--json", action="store_true", help="the result as JSON instead of sentences")
    check.add_argument("--quiet", action="store_true", help="no progress")
    removal = actions.add_parser(
        "rm", help="remove folders, or scopes of them", description="Remove what durable levels have.", epilog=codes
    )
    _add_folder(removal)
    removal.add_argument(
        "--salt",
        action="append",
        default=[],
        metavar="SALT",
        help="only reuse scopes with that salt, an int or a text that is written so; may be given several times",
    )
    removal.add_argument("--incomplete", action="store_true", help="also a level of which parts are not found; these stay where they are")
    removal.add_argument("--yes", action="store_true", help="remove without a question")


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the path of a durable DiskCacheTierConfig, or one kvcm-... folder in it")
    parser.add_argument(
        "more_paths", metavar="PATH", nargs="*", help="where its further paths are now, if they have moved since a manager had the level"
    )


def run_cache_command(options: argparse.Namespace, answers: TextIO | None = None) -> int:
    """Returns the exit code. ``answers``: where the answer to a question is read; None: the standard input."""
    try:
        require_xxhash()
    except ImportError as error:
        raise BadInputError(str(error)) from None
    folders = _find(options.folder)
    more_paths: list[str] = options.more_paths
    for path in more_paths:
        _require_folder(path)
    if options.cache_action == "ls":
        return _list(folders, more_paths, options.json, options.salts)
    if options.cache_action == "verify":
        return _verify(folders, more_paths, options.json, options.quiet)
    return _remove(folders, options, sys.stdin if answers is None else answers)


def _require_folder(path: str) -> None:
    if not os.path.isdir(path):
        raise BadInputError(f"{path}: that is a file; give a folder" if os.path.exists(path) else f"{path}: there is no such folder")


def _find(path: str) -> list[str]:
    _require_folder(path)
    folders = find_folders(ReadOnlyFiles(), path)
    if len(folders) == 0:
        raise BadInputError(f"{path}: there is no kvcm-... folder in it; give the path of a durable DiskCacheTierConfig")
    return folders


def _read(path: str, more_paths: list[str]) -> FolderContents:
    try:
        return FolderContents(ReadOnlyFiles(), path, more_paths)
    except ValueError as error:
        raise BadInputError(f"{path}: {error}") from None
    except OSError as failure:  # another name: mypyc gives one name one type
        raise BadInputError(_name_failure(path, failure)) from None


def _name_failure(path: str, failure: OSError) -> str:
    name = "" if failure.filename is None or failure.filename == path else f"{os.path.basename(str(failure.filename))}: "
    return f"{path}: {name}{failure.strerror or failure}"


def _refuse(reason: object) -> None:
    """Say why a folder is left as it is; the command goes on with the others."""
    sys.stderr.write(f"kvcm: {reason}\n")


def _find_part_faults(contents: FolderContents) -> list[str]:
    faults = [contents.find_part_fault(ReadOnlyFiles(), number) for number in range(len(contents.part_folders))]
    return [fault for fault in faults if fault]


# -- ls -------------------------------------------------------------------------------------------------------------------


def _list(folders: list[str], more_paths: list[str], as_json: bool, with_salts: bool) -> int:
    """A folder that cannot be read is named, and the others are listed."""
    code = EXIT_OK
    figures: list[dict[str, Any]] = []
    for path in folders:
        try:
            contents = _read(path, more_paths)
        except BadInputError as error:
            _refuse(error)
            code = EXIT_BAD_INPUT
            continue
        scopes = contents.list_scopes()
        if not with_salts:
            scopes = [one if one.salt is None else replace(one, salt=f"hidden {number}") for number, one in enumerate(scopes)]
        if as_json:
            figures.append(_to_figures(contents, scopes))
        else:
            sys.stdout.write(_describe(contents, scopes))
    if as_json:
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return code


def _to_figures(contents: FolderContents, scopes: list[ScopeFigures]) -> dict[str, Any]:
    return {
        "folder": contents.path,
        "identity": contents.identity,
        "in_use_by": contents.holder,
        "file_bytes": contents.file_bytes,
        "folders": contents.part_folders,
        "scopes": [
            {"salt": scope.salt, "blocks": scope.blocks, "tokens": scope.tokens, "pages": scope.pages, "bytes": scope.bytes}
            for scope in scopes
        ],
    }


def _describe(contents: FolderContents, scopes: list[ScopeFigures]) -> str:
    lines = [contents.path, f"  {_name_model(contents.identity)}; files of {format_bytes(contents.file_bytes)}"]
    if contents.holder is not None:
        lines[1] += f"; in use by {contents.holder}"
    if len(contents.part_folders) > 1:
        lines.append(f"  on {len(contents.part_folders)} paths: {', '.join([os.path.dirname(folder) for folder in contents.part_folders])}")
        lines.extend([f"  {fault}" for fault in _find_part_faults(contents)])
    if len(scopes) == 0:
        lines.append("  no pages")
    else:
        rows = [["scope", "blocks", "tokens", "pages", "bytes"]]
        for scope in scopes:
            rows.append([_name_scope(scope.salt), f"{scope.blocks:,}", f"{scope.tokens:,}", f"{scope.pages:,}", format_bytes(scope.bytes)])
        lines.extend(["  " + line for line in aligned(rows)])
    return "\n".join(lines) + "\n"


def _name_model(identity: dict[str, Any]) -> str:
    words = [str(identity.get("name"))]
    for key in ("revision", "dtype", "salt_domain", "codec"):
        if identity.get(key):
            words.append(f"{key} {identity[key]}")
    heads: Any = identity.get("heads")
    if isinstance(heads, list) and len(heads) == 2:
        words.append(f"heads {heads[0]} to {heads[1]}")
    layers: Any = identity.get("layers")
    if isinstance(layers, list):
        words.append(f"{len(layers)} layers")
    words.append(f"{identity.get('tokens_per_block')} tokens per block")
    details: Any = identity.get("details")
    if isinstance(details, list):
        words.extend([" ".join([str(part) for part in pair]) for pair in details if isinstance(pair, list)])
    return ", ".join(words)


def _name_scope(salt: int | str | None) -> str:
    return "without salt" if salt is None else f"salt {salt!r}"


# -- verify ---------------------------------------------------------------------------------------------------------------


def _verify(folders: list[str], more_paths: list[str], as_json: bool, is_quiet: bool) -> int:
    """A folder that cannot be read is named, and the others are read."""
    code = EXIT_OK
    figures: list[dict[str, Any]] = []
    for path in folders:
        progress = ReadProgress(sys.stderr, is_quiet)
        reason = ""
        num_pages, num_bytes, faults = 0, 0, _NO_FAULTS
        try:
            num_pages, num_bytes, faults = _check_pages(path, more_paths, progress)
        except BadInputError as error:
            reason = str(error)
        except OSError as failure:  # another name: mypyc gives one name one type
            reason = _name_failure(path, failure)
        finally:
            progress.stop()
        if reason:
            _refuse(reason)
            code = EXIT_BAD_INPUT
            continue
        if len(faults) > 0 and code == EXIT_OK:
            code = EXIT_WRONG
        if as_json:
            figures.append({"folder": path, "pages": num_pages, "bytes": num_bytes, "faults": faults})
            continue
        sys.stdout.write(f"{path}: {num_pages:,} pages of {format_bytes(num_bytes)}: {_count_faults(len(faults))}\n")
        for fault in faults[:_FAULTS_SHOWN]:
            sys.stdout.write(f"  {fault}\n")
        if len(faults) > _FAULTS_SHOWN:
            sys.stdout.write(f"  ... and {len(faults) - _FAULTS_SHOWN:,} more (--json has all)\n")
    if as_json:
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return code


def _count_faults(number: int) -> str:
    return "all as they were written" if number == 0 else f"{number:,} damaged; each of them is a miss when it is read"


def _check_pages(path: str, more_paths: list[str], progress: ReadProgress) -> tuple[int, int, list[str]]:
    """Pages, their bytes, and what is wrong with them; the folder is locked meanwhile."""
    files = ReadOnlyFiles()
    lock = -1
    try:
        lock = files.lock(os.path.join(path, "lock"))
    except FileNotFoundError:
        pass  # no manager had it yet, or it is a copy
    except BlockingIOError:
        holder = _read(path, more_paths).holder or "another process"
        raise BadInputError(f"{path}: it is in use by {holder}, and its pages change; shut that manager down first") from None
    try:
        contents = _read(path, more_paths)
        faults = _find_part_faults(contents)
        if len(faults) > 0:
            said = "; ".join(faults)
            raise BadInputError(f"{path}: {said}; mount the disk that has it, or give the paths where they are now after the first one")
        check = SlotCheck(files, contents)
        try:
            return _check_all(contents, check, progress)
        finally:
            check.close()
    finally:
        if lock >= 0:
            files.close_file(lock)


def _check_all(contents: FolderContents, check: SlotCheck, progress: ReadProgress) -> tuple[int, int, list[str]]:
    faults: list[str] = []
    num_bytes = 0
    pages = list_stored_pages(contents.state)
    done = 0
    # In the order in which they lie on the disk.
    for place in sorted(pages):
        pool_group, slot = place
        fault = check.find_fault(pool_group, slot, pages[place])
        if fault:
            faults.append(f"pool group {pool_group}, slot {slot}: {fault}")
        if pool_group < len(contents.slot_bytes):
            num_bytes += sum(contents.slot_bytes[pool_group])
        done += 1
        progress.update(contents.path, done, len(pages))
    return done, num_bytes, faults


# -- rm -------------------------------------------------------------------------------------------------------------------


def _remove(folders: list[str], options: argparse.Namespace, answers: TextIO) -> int:
    """A folder that cannot be removed is named and left as it is, and the others are removed."""
    more_paths: list[str] = options.more_paths
    removable: list[str] = []
    for path in folders:
        reason = _find_reason_to_keep(path, more_paths, options)
        if reason:
            _refuse(f"{path}: {reason}")
        else:
            removable.append(path)
    if len(options.salt) > 0:
        is_done = _remove_scopes(removable, options, answers)
    else:
        is_done = _remove_folders(removable, options, answers)
    return EXIT_OK if is_done and len(removable) == len(folders) else EXIT_BAD_INPUT


def _find_reason_to_keep(path: str, more_paths: list[str], options: argparse.Namespace) -> str:
    """Why nothing of that folder is removed; empty if it may be."""
    try:
        if len(options.salt) == 0:
            require_removable(ReadOnlyFiles(), path)
        level = find_level_of_part(ReadOnlyFiles(), path)
    except ValueError as error:
        return str(error)
    except OSError as failure:  # another name: mypyc gives one name one type
        return _name_failure(path, failure).removeprefix(f"{path}: ")
    if level:
        return f"{level}; give that one"
    missing = "" if options.incomplete else _find_missing(path, more_paths)
    if missing:
        return (
            f"{missing}; nothing is removed. Name the paths where the parts are now, after the first one, or say --incomplete to remove "
            "what is found"
        )
    return ""


def _remove_folders(folders: list[str], options: argparse.Namespace, answers: TextIO) -> bool:
    """Whether none of them refused."""
    more_paths: list[str] = options.more_paths
    if len(folders) == 0 or not _is_agreed([_say_folder(path, more_paths) for path in folders], options.yes, answers):
        return True
    num_removed = 0
    for path in folders:
        missing = _find_missing(path, more_paths)
        if not _try_remove(path, more_paths, None, []):
            continue
        num_removed += 1
        if missing:
            sys.stdout.write(f"  without what stays where it is: {missing}\n")
    return num_removed == len(folders)


def _remove_scopes(folders: list[str], options: argparse.Namespace, answers: TextIO) -> bool:
    """Whether none of them refused."""
    salts: list[str] = options.salt
    more_paths: list[str] = options.more_paths
    chosen: list[tuple[FolderContents, list[int | str | None]]] = []
    questions: list[str] = []
    is_done = True
    for path in folders:
        try:
            contents = _read(path, more_paths)
        except BadInputError as error:
            _refuse(error)
            is_done = False
            continue
        scopes = [scope for scope in contents.list_scopes() if scope.salt is not None and str(scope.salt) in salts]
        if len(scopes) > 0:
            chosen.append((contents, [scope.salt for scope in scopes]))
            questions.extend([f"{path}: {_name_scope(scope.salt)}, {scope.blocks:,} blocks" for scope in scopes])
    if len(chosen) == 0:
        named = " or ".join([repr(salt) for salt in salts])
        which = "scope there" if is_done else "scope of the folders that can be read"
        _refuse(f"{options.folder}: no {which} has the salt {named}; see kvcm cache ls")
        return False
    known = {str(salt) for _contents, found in chosen for salt in found}
    for salt in salts:
        if salt not in known:
            _refuse(f"{options.folder}: no scope has the salt {salt!r}")
            is_done = False
    if _is_agreed(questions, options.yes, answers):
        for contents, found in chosen:
            is_done = _try_remove(contents.path, more_paths, contents, found) and is_done
    return is_done


def _find_missing(path: str, more_paths: list[str]) -> str:
    """Which parts of the level are not found; empty if all are, or if what is there is no level that can be read."""
    try:
        contents = FolderContents(ReadOnlyFiles(), path, more_paths)
    except (ValueError, OSError):
        return ""
    return "; ".join(_find_part_faults(contents))


def _say_folder(path: str, more_paths: list[str]) -> str:
    try:
        contents = FolderContents(ReadOnlyFiles(), path, more_paths)
    except (ValueError, OSError) as error:
        return f"{path}: {error}"
    return f"{path}: {_name_model(contents.identity)}, {len(contents.state.list_pages()):,} pages, {format_bytes(contents.file_bytes)}"


def _is_agreed(what: list[str], is_sure: bool, answers: TextIO) -> bool:
    if is_sure:
        return True
    if not answers.isatty():
        raise BadInputError("rm asks before it removes anything, and the input is no terminal; say --yes")
    sys.stdout.write("\n".join(what) + "\nremove this for good? [y/N] ")
    sys.stdout.flush()
    if answers.readline().strip().lower() in ("y", "yes"):
        return True
    sys.stdout.write("nothing is removed\n")
    return False


def _try_remove(path: str, more_paths: list[str], contents: FolderContents | None, salts: list[int | str | None]) -> bool:
    """False, with the reason reported, where the folder refuses."""
    reason = ""
    try:
        if contents is None:
            remove_folder(OsFiles(), path, more_paths)
        else:
            remove_scopes(OsFiles(), contents, salts)
    except (LogicError, ValueError, StorageIOError) as refusal:
        reason = str(refusal)
    except OSError as failure:  # another name: mypyc gives one name one type
        reason = _name_failure(path, failure)
        if contents is not None:
            reason += "; its index is as it was: free some space, or mount the disk for writing, and say it again"
    if reason:
        _refuse(reason if path in reason else f"{path}: {reason}")
        return False
    sys.stdout.write(f"removed {path}\n" if contents is None else f"removed {len(salts)} scopes of {path}\n")
    return True
