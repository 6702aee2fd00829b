"""The records of decode steps: 8 bytes where their numbers fit, and the longer forms where they do not."""

from pathlib import Path

import pytest

from kv_cache_manager_v2.journal.call_journal import CallJournal
from kv_cache_manager_v2.journal.journal_format import COMMIT, COMMIT_ONE, DIGEST, DIGEST_EVERY, GROW, MOVE, RESIZE
from kv_cache_manager_v2.testing.journal_reader import JournalReader
from kv_cache_manager_v2.journal.journal_writer import JournalWriter
from kv_cache_manager_v2.reuse.digest_table import DigestTable
from kv_cache_manager_v2.storage.decision_digest import DecisionDigest

HEADER_BYTES = 7
"""Four of magic, one of version, and the lengths of an empty configuration and of no codec."""


def open_journal(path: Path) -> tuple[JournalWriter, CallJournal, DecisionDigest]:
    writer = JournalWriter(path, b"")
    digest = DecisionDigest()
    writer.follow(digest)
    return writer, CallJournal(writer, DigestTable()), digest


def read_back(writer: JournalWriter, path: Path) -> JournalReader:
    writer.flush()
    return JournalReader(path.read_bytes())


@pytest.mark.parametrize("serial, capacity", [(0, 0), (0xFFFFFF, 0x7FFFFFFF), (0x010203, 0x04050607)])
def test_a_resize_that_keeps_the_history_is_8_bytes(tmp_path: Path, serial: int, capacity: int) -> None:
    writer, journal, _digest = open_journal(tmp_path / "j")
    journal.grow(serial, capacity, 5)
    reader = read_back(writer, tmp_path / "j")
    assert [reader.fixed(1), reader.fixed(3), reader.fixed(4), reader.is_at_end] == [GROW, serial, capacity, True]
    writer.close()


@pytest.mark.parametrize("serial, capacity", [(0x1000000, 7), (3, 0x80000000)])
def test_larger_numbers_are_written_at_length(tmp_path: Path, serial: int, capacity: int) -> None:
    writer, journal, _digest = open_journal(tmp_path / "j")
    journal.grow(serial, capacity, 5)
    reader = read_back(writer, tmp_path / "j")
    num_priorities, result = 0, 1
    found = [reader.number() for _ in range(6)]
    assert found == [RESIZE, serial, num_priorities, capacity, 5, result] and reader.is_at_end
    writer.close()


def test_a_resize_that_moves_the_history_is_16_bytes(tmp_path: Path) -> None:
    writer, journal, _digest = open_journal(tmp_path / "j")
    journal.resize(1 << 40, 9, 8, 7, True)
    reader = read_back(writer, tmp_path / "j")
    assert [reader.fixed(1), reader.fixed(7), reader.fixed(4), reader.fixed(4)] == [MOVE, 1 << 40, 9, 8]
    assert reader.is_at_end
    writer.close()


@pytest.mark.parametrize("serial", [0, 0xFFFFFF, 0x1000000])
def test_a_token(tmp_path: Path, serial: int) -> None:
    writer, journal, _digest = open_journal(tmp_path / "j")
    journal.commit_one(serial, 0x7FFFFFFE)
    reader = read_back(writer, tmp_path / "j")
    if serial <= 0xFFFFFF:
        assert [reader.fixed(1), reader.fixed(3), reader.fixed(4)] == [COMMIT_ONE, serial, 0x7FFFFFFE]
    else:
        assert [reader.number(), reader.number(), reader.tokens()] == [COMMIT, serial, [0x7FFFFFFE]]
    assert reader.is_at_end
    writer.close()


def test_digests_stand_between_short_records_too(tmp_path: Path) -> None:
    """One after each `DIGEST_EVERY` records, as it is then, and one at the end."""
    writer, journal, digest = open_journal(tmp_path / "j")
    for step in range(DIGEST_EVERY * 2 + 3):
        digest.record(1, step)
        if step == DIGEST_EVERY - 1:
            first = digest.to_bytes()
        journal.commit_one(1, step) if step % 2 == 0 else journal.grow(1, step, 0)
    writer.close()
    data = (tmp_path / "j").read_bytes()
    records = HEADER_BYTES + DIGEST_EVERY * 8
    assert data[records] == DIGEST and data[records + 1 : records + 9] == first
    assert data[-9] == DIGEST and data[-8:] == digest.to_bytes()
    assert len(data) == HEADER_BYTES + (DIGEST_EVERY * 2 + 3) * 8 + 3 * 9


def test_a_full_buffer_goes_to_the_file(tmp_path: Path) -> None:
    """It is looked at every 1024 records of 8 bytes: 64 KiB are full after 8 such times, so that little is lost with the process."""
    writer, journal, _digest = open_journal(tmp_path / "j")
    for step in range(DIGEST_EVERY * 9):
        journal.grow(1, step, 0)
    assert (tmp_path / "j").stat().st_size >= 1 << 16
    writer.close()
