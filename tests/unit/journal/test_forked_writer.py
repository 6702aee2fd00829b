"""A forked child's copy of a journal's writer writes nothing, neither what the buffer had nor what comes."""

import os
import warnings
from pathlib import Path

import pytest

from kv_cache_manager_v2.journal.journal_writer import JournalWriter


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_child_writes_nothing(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j", b"")
    writer.raw(b"the parent's")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other tests' threads
        child = os.fork()
    if child == 0:
        writer.flush()
        writer.raw(b"the child's")
        writer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "j").stat().st_size == 0
    writer.close()
    data = (tmp_path / "j").read_bytes()
    assert data.count(b"the parent's") == 1 and b"the child's" not in data
