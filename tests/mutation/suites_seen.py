"""Notes which suites of statements a test begins: a plugin of pytest, and the module that a marked copy of the package writes into.

`covering_tests.py` copies this file beside the marked package. It stands alone: processes that tests start import it too.
"""

import json
import os

SEEN = bytearray(1 << 16)
"""By number of a suite: 1 if it was begun since the test began."""
_NOTHING = bytes(len(SEEN))
_begun = 0.0
_failed = False


def _processor_seconds() -> float:
    return sum(os.times()[:4])


def pytest_runtest_logstart(nodeid: str, location: object) -> None:
    global _begun, _failed
    SEEN[:] = _NOTHING
    _begun, _failed = _processor_seconds(), False


def pytest_runtest_logreport(report: object) -> None:
    global _failed
    if getattr(report, "outcome", "") != "passed":
        _failed = True


def pytest_runtest_logfinish(nodeid: str, location: object) -> None:
    """A line per test that passes: its name, processor seconds, suites."""
    if _failed:
        return
    seconds = _processor_seconds() - _begun
    numbers: list[int] = []
    at = SEEN.find(1)
    while at >= 0:
        numbers.append(at)
        at = SEEN.find(1, at + 1)
    with open(os.environ["SUITES_SEEN"], "a", encoding="utf-8") as file:
        file.write(json.dumps([nodeid, round(seconds, 3), numbers]) + "\n")
