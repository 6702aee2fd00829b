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
