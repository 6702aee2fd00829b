"""Replays over several levels of memory: suspended requests are offloaded and onboarded, and every byte is checked."""

import json
from pathlib import Path

import pytest
from unit.replay.serving import BYTES_PER_BLOCK, MODELS, WINDOWED, replay, request_of

from kv_cache_manager_v2.replay.decoding import Decoding
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.presets import ModelPreset
from kv_cache_manager_v2.replay.report import ReplayReport
from kv_cache_manager_v2.replay.report_rows import plain_report
from kv_cache_manager_v2.replay.serving_limits import ServingLimits
from kv_cache_manager_v2.replay.tier_option import LowerTier, TierSizes, parse_tiers
from kv_cache_manager_v2.replay.workload import Request

LOWER = (LowerTier("host", 8 * BYTES_PER_BLOCK), LowerTier("disk", 200 * BYTES_PER_BLOCK))


def by_model(model: ModelPreset) -> str:
    return model.name


def long_answers(num_requests: int) -> list[Request]:
    """Requests of 24 tokens that have nothing in common, and 40 more tokens each: 16 blocks at their end."""
    return [request_of(number, [(number, 24)], 41) for number in range(num_requests)]


def pages_from_to(report: ReplayReport, source: int, target: int) -> int:
    return sum([one.pages for one in report.transfers if (one.source_level, one.target_level) == (source, target)])


@pytest.mark.parametrize("model", MODELS, ids=by_model)
@pytest.mark.parametrize(("waits", "prefetches"), [(True, False), (False, True)])
def test_every_byte_survives_heavy_preemption(model: ModelPreset, waits: bool, prefetches: bool) -> None:
    limits = ServingLimits(6, 48, 12, preempt_share=0.3, waits=waits, prefetches=prefetches)
    requests = long_answers(9)
    report = replay(
        requests, model=model, memory_bytes=24 * BYTES_PER_BLOCK, lower_tiers=LOWER, limits=limits, verify=True, device="host"
    )
    assert (report.requests, report.requests_refused, report.mismatches) == (9, 0, 0), report.first_mismatches
    # 208 blocks of room below: no request has to start again.
    assert report.restarts == 0
    assert report.forced_preemptions > 9
    for source, target in ((0, 1), (1, 2), (1, 0), (2, 0)):
        assert pages_from_to(report, source, target) > 0, (source, target)


def test_without_room_below_some_start_again() -> None:
    limits = ServingLimits(6, 48, 12, preempt_share=0.5)
    lower = (LowerTier("host", 4 * BYTES_PER_BLOCK),)
    report = replay(
        long_answers(8), memory_bytes=20 * BYTES_PER_BLOCK, lower_tiers=lower, limits=limits, decoding=Decoding(1), verify=True,
        device="host",
    )  # fmt: skip
    assert (report.requests, report.requests_refused, report.mismatches) == (8, 0, 0), report.first_mismatches
    assert report.restarts > 0


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_decisions_are_the_same_without_memory(share: float) -> None:
    limits = ServingLimits(6, 48, 12, preempt_share=share, prefetches=True)
    on_host, without_memory = [
        replay(
            long_answers(8), model=WINDOWED, memory_bytes=30 * BYTES_PER_BLOCK, lower_tiers=LOWER, limits=limits, device=device
        )
        for device in ("host", "none")
    ]
    assert on_host.tiers == without_memory.tiers
    assert on_host.transfers == without_memory.transfers
    assert (on_host.steps, on_host.hit_tokens) == (without_memory.steps, without_memory.hit_tokens)
    assert (on_host.forced_preemptions > 0) == (share > 0.0)


def test_the_report_shows_what_went_where() -> None:
    # One after the other, each 16 blocks long; the second finds no room beside the first's, which go down: then the first
    # comes again and finds its prompt on level 1.
    requests = [
        request_of(0, [(0, 24)], 41), request_of(1, [(1, 24)], 41, after=0), request_of(2, [(0, 24)], 1, after=1)
    ]  # fmt: skip
    report = replay(
        requests, memory_bytes=17 * BYTES_PER_BLOCK, lower_tiers=(LowerTier("host", 40 * BYTES_PER_BLOCK),),
        limits=ServingLimits(1, 64, 64),
    )  # fmt: skip
    host = report.tiers[1]
    assert (report.tiers[0].tier, host.tier) == ("gpu", "host")
    # 23 tokens of the third prompt can be found: 5 whole blocks, of which those that went down count for level 1, and 3
    # tokens of the sixth.
    assert report.hit_tokens == 23
    assert report.tiers[0].hit_tokens + host.hit_tokens == 23
    assert host.hit_tokens > 0
    assert host.pages_in == report.tiers[0].pages_out == pages_from_to(report, 0, 1)
    assert sum([one.bytes for one in report.transfers]) == BYTES_PER_BLOCK * sum([one.pages for one in report.transfers])
    text = plain_report(report)
    assert "hit tokens" in text and "1 host" in text


def test_tiers_are_read_as_they_are_written() -> None:
    assert parse_tiers("gpu=64MiB") == TierSizes(64 << 20, ())
    assert parse_tiers("gpu=2g,host=3k,disk=1t:/some/folder") == TierSizes(
        2 << 30, (LowerTier("host", 3 << 10), LowerTier("disk", 1 << 40, "/some/folder"))
    )
    assert parse_tiers("gpu=1,disk=2:/a:/b:c").lower == (LowerTier("disk", 2, "/a", False, ("/b", "c")),)
    assert parse_tiers("gpu=1,disk=2,disk=3").lower == (LowerTier("disk", 2), LowerTier("disk", 3))


@pytest.mark.parametrize(
    "text",
    [
        "", "host=1g", "gpu", "gpu=", "gpu=lots", "gpu=1,gpu=2", "gpu=1,tape=2", "gpu=1:/folder", "gpu=1,disk=1:", "gpu=1,disk=1:/a:",
        "host=1,gpu=1",
    ],
)
def test_other_tiers_are_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="gpu="):
        parse_tiers(text)
    assert main(["replay", "--tiers", text]) == 2
    assert "gpu=" in capsys.readouterr().err


def test_a_codec_brings_slots_hits_and_fewer_bytes(tmp_path: Path) -> None:
    """One prompt after another over host memory that is too small: 32 numbers of bfloat16, 64 bytes, are 2 + 16 as int4."""
    found = {}
    for codec in ([], ["--codec", "float8"], ["--codec", "int4"]):
        report = tmp_path / "report.json"
        arguments = ["--model", "llama-3-8b", "--tiers", "gpu=1GiB,host=1GiB", "--limit", "300", "--workload", "chat"]
        assert main(["replay", *arguments, *codec, "--quiet", "--json", str(report)]) == 0
        values = json.loads(report.read_text())
        found[codec[-1] if codec else ""] = values
        down = [one for one in values["transfers"] if one["target_level"] > 0]
        page_bytes = {one["bytes"] / one["pages"] for one in down}
        assert page_bytes == {{"": 2**22, "float8": 2**21 * 514 / 512, "int4": 2**22 * 18 / 64}[codec[-1] if codec else ""]}
    slots = {name: values["tiers"][1]["total_slots"] for name, values in found.items()}
    assert slots == {"": 256, "float8": 2**30 // (2**21 * 514 // 512), "int4": 2**30 // (2**22 * 18 // 64)}
    assert found[""]["hit_tokens"] < found["float8"]["hit_tokens"] <= found["int4"]["hit_tokens"]
    assert any("int4" in note for note in found["int4"]["notes"])


def test_the_command_verifies_over_a_disk(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    tiers = f"gpu=1MiB,host=256KiB,disk=16MiB:{tmp_path}"
    arguments = ["--limit", "4", "--verify", "--device", "host", "--model", "gpt-oss-20b", "--tiers", tiers, "--preempt", "0.2"]
    assert main(["replay", *arguments, "--quiet", "--json", str(report)]) == 0
    values = json.loads(report.read_text())
    assert (values["requests"], values["mismatches"]) == (4, 0)
    assert [tier["tier"] for tier in values["tiers"]] == ["gpu", "host", "disk"]
    assert list(tmp_path.iterdir()) == [report]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "sizes"), [("gpt-oss-20b", "gpu=1MiB,host=256KiB"), ("gemma-3-12b", "gpu=2MiB,host=512KiB")])
def test_all_of_a_step_get_their_slots_where_the_first_to_finish_is_young(model: str, sizes: str, tmp_path: Path) -> None:
    """It is resized before older ones, and one that must leave for it may stand before the one that has no room."""
    report = tmp_path / "report.json"
    arguments = ["--model", model, "--shrink", "max", "--tiers", f"{sizes},disk=512KiB:{tmp_path}", "--preempt", "0.3", "--limit", "600"]
    assert main(["replay", *arguments, "--quiet", "--json", str(report)]) == 0
    values = json.loads(report.read_text())
    assert values["requests"] + values["requests_refused"] == 600 and values["requests"] > 500


def test_hits_of_restored_pages_are_not_within_the_possible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run over the same folder hits what the first one has left, which no request of its own has published."""
    report = tmp_path / "report.json"
    (tmp_path / "level").mkdir()
    arguments = ["replay", "--limit", "4", "--tiers", f"gpu=64MiB,disk=1GiB:{tmp_path / 'level'}", "--durable", "--shrink", "max"]
    assert main([*arguments, "--write-policy", "through", "--quiet", "--json", str(report)]) == 0
    first = json.loads(report.read_text())
    assert first["restored_pages"] == 0 and first["hit_tokens"] <= first["reusable_tokens"]
    assert "% possible\n" in capsys.readouterr().out
    assert main([*arguments, "--write-policy", "through", "--quiet", "--json", str(report)]) == 0
    second = json.loads(report.read_text())
    assert second["restored_pages"] > 0 and second["hit_tokens"] > second["reusable_tokens"] == first["reusable_tokens"]
    restored = f"{second['restored_pages']:,}"
    assert f"% possible within this run, and more with the {restored} pages that were restored\n" in capsys.readouterr().out
