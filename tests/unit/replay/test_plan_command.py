"""`kvcm plan`: the table, what fits, and the exit codes."""

import pytest

from kv_cache_manager_v2.replay.cli import main


def test_a_plan_of_a_full_attention_model(capsys: pytest.CaptureFixture[str]) -> None:
    # llama-3-8b: 32 layers * 2 * 8 heads * 128 * 2 bytes = 131072 bytes per token, 4 MiB per block of 32; 1 GiB is 256
    # blocks.
    assert main(["plan", "--model", "llama-3-8b", "--gpu-memory", "1GiB", "--length", "1000"]) == 0
    output = capsys.readouterr().out
    assert "256" in output and "4,194,304" in output
    assert "longest sequence, decoding: 8,192 tokens" in output
    # 1000 tokens are 32 blocks: 256 // 32.
    assert "8 sequences" in output


def test_whether_a_batch_fits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--model", "llama-3-8b", "--gpu-memory", "1g", "--length", "1000"]
    assert main([*arguments, "--batch", "8"]) == 0
    assert "fits" in capsys.readouterr().out
    assert main([*arguments, "--batch", "9"]) == 1
    assert "lacks 32 slots" in capsys.readouterr().out
    # A system prompt of 30 blocks once, then 2 each: (256 - 30) // 2 = 113.
    assert main([*arguments, "--batch", "113", "--system-prompt", "960"]) == 0
    assert main([*arguments, "--batch", "114", "--system-prompt", "960"]) == 1


def test_scratch_slots_fit_longer_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--model", "gemma-3-12b", "--gpu-memory", "8g", "--host-memory", "16g", "--length", "32768"]
    lengths = []
    for extra in ([], ["--scratch"]):
        assert main([*arguments, "--history", "0", *extra]) == 0
        output = capsys.readouterr().out
        assert "HOST_MEM" in output
        line = next(line for line in output.splitlines() if line.startswith("longest prompt"))
        lengths.append(int(line.split()[-2].replace(",", "")))
    assert lengths[1] > 2 * lengths[0]


def test_equal_slots_and_own_pools_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """40 GiB are 20,480 slots of 8 layers, 2 MiB each. A decoding sequence of 8,192 tokens has 256 blocks in the full layers and 32 in each
    of the five windowed groups, 416 slots; one of 1,024 has 32 blocks in all six, 192: so a mix takes 416 + 8 * 192 = 1,952, 10 times."""
    for extra, first in (([], "own pools: 2"), (["--equal-slots"], "equal slots: 6")):
        assert main(["plan", "gemma-3-12b", "--gpu-memory", "40GiB", *extra]) == 0
        lines = capsys.readouterr().out.splitlines()
        compared = [line.strip() for line in lines if " layer groups, " in line]
        assert compared[0].startswith(first) and len(compared) == 2
        (equal,) = [line for line in compared if line.startswith("equal slots")]
        assert "6 layer groups, 20,480 slots of 2,097,152 bytes, 0.0% unused" in equal and equal.endswith("; 10 mixes")
        is_alone = any("0,1,2,3,4,5  20,480" in line for line in lines)
        assert is_alone == (extra != [])
    assert main(["plan", "llama-3-8b", "--gpu-memory", "40GiB"]) == 0
    assert "equal slots" not in capsys.readouterr().out
