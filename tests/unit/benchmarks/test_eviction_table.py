"""`make eviction-table`: its rows have what docs/eviction.md has, of traces whose hits can be counted by hand."""

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.append(str(FOLDER))

from eviction_table import PAGE, main, write_rows  # noqa: E402

PAIRS = 20
"""Of requests: a trace is two prompts in turn, of two blocks each."""


def write_trace(path: Path) -> Path:
    ids = [[0, 1], [2, 3]] * PAIRS
    requests = [
        {"timestamp": 1000 * number, "input_length": 1024, "output_length": 7, "hash_ids": blocks} for number, blocks in enumerate(ids)
    ]
    path.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
    return path


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_rows_of_a_trace_that_fits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "trace.jsonl")
    assert main([f"agents={trace}", f"other={trace}", "--blocks", "4,1000", "--pieces", "3", "--made", "60"]) == 0
    rows = [cells(line) for line in capfd.readouterr().out.splitlines()]
    # All four blocks fit, so only the first request of each prompt hits nothing.
    hits = f"{100 * (PAIRS - 1) / PAIRS:.1f}"
    assert rows[:5] == [
        ["agents", "4", *[hits] * 8],
        ["agents", "1,000", *[hits] * 8],
        ["other", "4", *[hits] * 8],
        ["other", "1,000", *[hits] * 8],
        ["agents", "500 + 2,000", *[hits] * 6, "", ""],
    ]
    made = [row for row in rows if row[0].startswith("made ")]
    assert [row[:2] for row in made] == [["made chat", "2%"], ["made chat", "10%"], ["made agents", "2%"], ["made agents", "10%"]]
    for row in made:
        lru, *others, optimum = [float(cell) for cell in row[2:]]
        assert max([lru, *others]) <= optimum
    # A piece has room for 30 blocks or more, so no policy loses anything.
    as_it_is, without = rows[-2:]
    assert [as_it_is[0], without[0]] == ["as it is", "without the account"]
    assert as_it_is[1:] == without[1:] and as_it_is[1] == "3" and as_it_is[3:] == ["+0.00", "0", "0", "0.0"]


def test_rows_go_where_the_page_has_them() -> None:
    page = PAGE.read_text(encoding="utf-8")
    row = ("chat", "1,000", *["1.5"] * 8)
    levels = ("agents", "500 + 2,000", *["2.5"] * 6, "", "")
    written = write_rows(page, [row, levels], 2)
    changed = [line for before, line in zip(page.splitlines(), written.splitlines(), strict=True) if before != line]
    assert changed == ["| chat | 1,000 |" + " 1.5 |" * 8, "| agents | 500 + 2,000 |" + " 2.5 |" * 6 + " | |"]
    assert len(cells(changed[0])) == len(cells(changed[1])) == 10
    written = write_rows(page, [("as it is", "7", "1.00", "+0.00", "0", "0", "0.0")], 1)
    assert "| as it is | 7 | 1.00 | +0.00 | 0 | 0 | 0.0 |" in written.splitlines()
    with pytest.raises(KeyError):
        write_rows(page, [("chat", "1,001", *["1.5"] * 8)], 2)


def test_a_trace_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["trace.jsonl"])
    assert leaving.value.code == 2 and "give NAME=TRACE" in capsys.readouterr().err
