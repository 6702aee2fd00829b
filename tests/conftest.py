"""Says which build the tests run on, and refuses to run on another one than was asked for.

KV_CACHE_MANAGER_V2_EXPECT_BUILD is "compiled" or "interpreted"; unset takes what there is. The make targets set it.
"""

import gc
import os
import signal
from pathlib import Path

import pytest

try:
    import rawref
    from kv_cache_manager_v2.base import build_mode
except ModuleNotFoundError as missing:
    if missing.name not in ("rawref", "rawref._rawref", "kv_cache_manager_v2"):
        raise
    raise pytest.UsageError(f"{missing}: use `make testp` or `make testc`, which build and set PYTHONPATH") from missing

BUILD = "compiled" if build_mode.is_compiled() else "interpreted"


def pytest_configure(config: pytest.Config) -> None:
    expected = os.environ.get("KV_CACHE_MANAGER_V2_EXPECT_BUILD", BUILD)
    if expected != BUILD:
        raise pytest.UsageError(f"the {expected} build was asked for, and {build_mode.__file__} is {BUILD}")
    # A shell's background jobs ignore Ctrl-C, and so would the children that tests interrupt.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves to `make test-all`; a tidy test holds the list."""
    names = set((Path(__file__).parent / "long_tests.txt").read_text(encoding="utf-8").splitlines())
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name in names or name.partition("[")[0] in names:
            item.add_marker("long")


def pytest_collection_finish(session: pytest.Session) -> None:
    """A full collection looks at a million objects of the collected tests, 0.6 s each time, unless they are hidden from it."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Python hears of a signal in whatever runs next. Were that a callback of Hypothesis' about the collector, it would be lost there."""
    gc.callbacks.clear()


def pytest_report_header(config: pytest.Config) -> str:
    assert rawref.__file__ is not None
    package, extension = Path(build_mode.__file__).parent.parent, Path(rawref.__file__).parent
    return f"kv_cache_manager_v2 {build_mode.VERSION}: {BUILD}, from {package}; rawref from {extension}"
