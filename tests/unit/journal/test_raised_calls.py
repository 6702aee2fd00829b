"""A call that raises is in no record, and neither are the priorities that it asked for."""

from pathlib import Path

import pytest

from kv_cache_manager_v2.base.change_count import ChangeCount
from kv_cache_manager_v2.journal.call_journal import CallJournal
from kv_cache_manager_v2.journal.journal_format import RESIZE
from kv_cache_manager_v2.testing.journal_reader import JournalReader
from kv_cache_manager_v2.journal.journal_writer import JournalWriter
from kv_cache_manager_v2.reuse.digest_table import DigestTable
from kv_cache_manager_v2.sequence.call_guard import CallGuard


def test_the_next_call_records_its_own_priorities_only(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j", b"")
    guard = CallGuard(ChangeCount(), CallJournal(writer, DigestTable()))
    with pytest.raises(LookupError), guard as records:
        records.priority(10)
        raise LookupError("the user's callback")
    with guard as records:
        records.priority(40)
        records.resize(3, 7, 5, 5, True)
    writer.flush()
    reader = JournalReader((tmp_path / "j").read_bytes())
    num_priorities, result = 1, 1
    assert [reader.number() for _ in range(7)] == [RESIZE, 3, num_priorities, 40, 7, 5, result]
    assert reader.is_at_end
    writer.close()
