"""Whatever filters and handlers raise, and wherever standard error goes: what is logged costs a line at most."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO

import pytest

from kv_cache_manager_v2 import is_compiled
from kv_cache_manager_v2.base.package_log import PackageLog

NAME = "kv_cache_manager_v2.test_package_log"


@pytest.fixture
def plain() -> Iterator[logging.Logger]:
    """The logger behind it."""
    logger = logging.getLogger(NAME)
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.filters.clear()
    logger.handlers.clear()


class Raises(logging.Filter):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def filter(self, record: logging.LogRecord) -> bool:
        raise self.error


class RaisingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit("the collector is gone")


class Gone:
    def write(self, text: str) -> int:
        raise OSError("standard error is gone")


def every_level(log: PackageLog) -> list[Callable[..., None]]:
    return [log.debug, log.inform, log.warning, log.error, log.critical, log.exception]


def test_levels_texts_and_exceptions_are_those_of_logging(plain: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    log = PackageLog(NAME)
    for method in every_level(log):
        method("page %d of %s is gone", 7, "group 1")
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "ERROR"]
    assert {record.getMessage() for record in caplog.records} == {"page 7 of group 1 is gone"}
    assert {record.name for record in caplog.records} == {NAME}
    caplog.clear()
    try:
        raise ValueError("no such page")
    except ValueError:
        log.exception("failed")
        log.debug("failed", with_error=True)
        log.error("failed")
    assert [record.exc_info is not None for record in caplog.records] == [True, True, False]
    if not is_compiled():
        assert {record.filename for record in caplog.records} == {"test_package_log.py"}


@pytest.mark.parametrize("error", [AttributeError("request_id"), SystemExit(3), GeneratorExit()])
def test_what_a_filter_raises_goes_to_standard_error(plain: logging.Logger, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.addFilter(Raises(error))
    log = PackageLog(NAME)
    for method in every_level(log):
        monkeypatch.setattr(sys, "stderr", written := StringIO())
        method("page %d is gone", 7)
        assert "page %d is gone" in written.getvalue() and type(error).__name__ in written.getvalue()


def test_what_a_handler_raises_goes_to_standard_error(plain: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.addHandler(RaisingHandler())
    monkeypatch.setattr(sys, "stderr", written := StringIO())
    PackageLog(NAME).error("page %d is gone", 7)
    assert "the collector is gone" in written.getvalue()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(sys, "stderr", written := StringIO())
    PackageLog(NAME).error("page %d is gone", 7)
    assert written.getvalue() == ""


@pytest.mark.parametrize("stream", [None, Gone()])
def test_without_standard_error_it_is_lost(plain: logging.Logger, stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.addFilter(Raises(AttributeError("request_id")))
    monkeypatch.setattr(sys, "stderr", stream)
    PackageLog(NAME).error("page %d is gone", 7)


def test_arguments_that_do_not_fit_are_no_error(plain: logging.Logger) -> None:
    plain.addHandler(logging.StreamHandler(StringIO()))
    PackageLog(NAME).error("page %d is gone", "seven")


def test_a_ctrl_c_meanwhile_comes_later(plain: logging.Logger) -> None:
    """As a signal does: between two lines of the caller."""
    plain.addFilter(Raises(KeyboardInterrupt()))
    came = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: came.set())
    try:
        PackageLog(NAME).error("page %d is gone", 7)
        assert came.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)
