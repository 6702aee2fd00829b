"""The trace of an option, after its lines were checked: bad ones are reported on the error stream."""

import sys

from .logs.log_file import FORMATS
from .trace import TraceScan, TraceWorkload


def scan_usable(trace: TraceWorkload, skip_bad: bool) -> TraceScan | None:
    """Scan the trace; None, with the reason reported, if the file is unreadable, has no request, or bad lines that must not be skipped."""
    try:
        scan = trace.scan()
    except OSError as failure:
        sys.stderr.write(f"kvcm: {trace.path}: {failure.strerror}\n")
        return None
    for bad_line in scan.bad_lines:
        sys.stderr.write(f"{bad_line}\n")
    if scan.num_bad_lines > len(scan.bad_lines):
        sys.stderr.write(f"... and {scan.num_bad_lines - len(scan.bad_lines)} more bad lines\n")
    if scan.num_bad_lines > 0 and not skip_bad:
        read_as = f"Read as {trace.format_name}; accepted are {FORMATS}"
        sys.stderr.write(f"kvcm: nothing was done; --skip-bad goes on without these lines. {read_as}\n")
        return None
    if scan.summary.num_requests == 0:
        sys.stderr.write(f"kvcm: {trace.path}: there is no request in it\n")
        return None
    return scan
