"""A Prometheus scrape gets the manager's figures under stable names, in base units; the log gets the same, structured."""

import errno
import json
import logging
import re
from pathlib import Path

import kv_cache_manager_v2
import pytest
from kv_cache_manager_v2 import (
    GPU_LEVEL,
    DropReason,
    HostDevice,
    KVCacheEventManager,
    KVCacheManager,
    LogicError,
    PrometheusExporter,
    StatisticsClock,
    StatisticsLog,
    is_compiled,
)
from kv_cache_manager_v2.metrics.metric_samples import COUNTER
from kv_cache_manager_v2.metrics.shared_samples import sample_shared, sample_shared_times
from small_models import config_of, manager_of, run_prompt
from tiered_models import Bench, tiered_config
from unit.device.fake_files import FakeFiles

prometheus_client = pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DASHBOARD = EXAMPLES / "grafana_dashboard.json"
ALERTS = EXAMPLES / "prometheus_alerts.yml"


# Dashboards of others name them; a name here is never dropped or given another meaning.
NAMES = {
    "kvcm_cache_usage_ratio", "kvcm_blocks", "kvcm_clean_copies", "kvcm_sequences", "kvcm_requests_total", "kvcm_suspends_total",
    "kvcm_resumes_total", "kvcm_dropped_handles",
    "kvcm_prefix_tokens_queried_total", "kvcm_prefix_tokens_hit_total", "kvcm_missed_tokens_total",
    "kvcm_allocated_blocks_total", "kvcm_reused_blocks_total", "kvcm_missed_blocks_total", "kvcm_generated_blocks_total",
    "kvcm_transfer_bytes_total", "kvcm_transfer_blocks_total", "kvcm_evicted_blocks_total", "kvcm_events_dropped_total",
    "kvcm_events_published_total", "kvcm_block_lifetime_seconds", "kvcm_block_reuse_gap_seconds",
    "kvcm_block_idle_before_evict_seconds", "kvcm_transfer_seconds", "kvcm_refusals_total", "kvcm_level_closed", "kvcm_build_info",
    "kvcm_durable_failed", "kvcm_restored_pages", "kvcm_damaged_pages_total",
}  # fmt: skip


def name_in_prometheus(metric):
    return f"{metric.name}_total" if metric.kind == COUNTER else metric.name


# Of a shared level: name and labels.
SHARED = {name_in_prometheus(metric): metric.label_names for metric in sample_shared(None)}
SHARED |= {metric.name: (*metric.label_names, "le") for metric in [sample_shared_times(None)]}

# No failure that operators must be told of, or one that a rule about another metric tells of.
NO_ALERT = {
    "kvcm_blocks", "kvcm_clean_copies", "kvcm_sequences", "kvcm_resumes_total", "kvcm_missed_tokens_total", "kvcm_restored_pages",
    "kvcm_dropped_handles",
    "kvcm_allocated_blocks_total", "kvcm_reused_blocks_total", "kvcm_missed_blocks_total", "kvcm_generated_blocks_total",
    "kvcm_transfer_blocks_total", "kvcm_events_published_total", "kvcm_block_lifetime_seconds",
    "kvcm_block_reuse_gap_seconds", "kvcm_block_idle_before_evict_seconds",
    "kvcm_shared_lookups_total", "kvcm_shared_pages_total", "kvcm_shared_bytes_total", "kvcm_shared_failures_total",
    "kvcm_shared_dropped_pages_total", "kvcm_shared_refusals_total", "kvcm_shared_slots", "kvcm_shared_seconds",
}  # fmt: skip


def scrape(registry):
    return prometheus_client.generate_latest(registry).decode()


def value_of(text, sample):
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    assert found is not None, f"no {sample} in\n{text}"
    return float(found.group(1))


def test_a_scrape_shows_what_is_there():
    registry = prometheus_client.CollectorRegistry()
    with manager_of(num_slots=8) as manager:
        exporter = PrometheusExporter(manager, registry=registry, labels={"model": "small"})
        kv_cache = run_prompt(manager, list(range(8)))
        text = scrape(registry)
        assert value_of(text, 'kvcm_prefix_tokens_queried_total{model="small"}') == 8
        assert value_of(text, 'kvcm_missed_tokens_total{cause="not_remembered",model="small"}') == 8
        assert value_of(text, 'kvcm_missed_blocks_total{layer_group="0",model="small"}') == 2
        # 2 of 8 slots are locked.
        assert value_of(text, 'kvcm_cache_usage_ratio{model="small",pool_group="0",tier="gpu"}') == 0.25
        assert value_of(text, 'kvcm_sequences{model="small",status="active"}') == 1
        kv_cache.close()
        again = run_prompt(manager, list(range(8)))
        again.close()
        text = scrape(registry)
        assert value_of(text, 'kvcm_prefix_tokens_hit_total{model="small",tier="gpu"}') == 8
        assert value_of(text, 'kvcm_cache_usage_ratio{model="small",pool_group="0",tier="gpu"}') == 0
        assert value_of(text, 'kvcm_blocks{model="small",pool_group="0",state="kept",tier="gpu"}') == 2
        exporter.update()
        again = run_prompt(manager, list(range(8)))
        again.close()
    # Of a manager that is shut down the last figures stay.
    assert value_of(scrape(registry), 'kvcm_prefix_tokens_hit_total{model="small",tier="gpu"}') == 8
    exporter.close()
    exporter.close()
    assert scrape(registry) == ""


def test_refused_calls_are_counted_where_slots_were_missing():
    """Whichever call it was: one each, and none for a call that succeeded."""
    registry = prometheus_client.CollectorRegistry()
    with Bench(tiered_config(4, [("host", 2)]), HostDevice()) as bench:
        manager = bench.manager
        exporter = PrometheusExporter(manager, registry=registry)
        first = bench.suspended(1, 16)
        second = manager.create_kv_cache(id=2)
        assert second.resume() and second.resize(8)
        counts = []
        for refuse in (lambda: second.resize(64), lambda: second.resize(12), lambda: manager.resize(GPU_LEVEL, 64), lambda: first.resume()):
            before = refusals_of(manager)
            assert not refuse()
            assert sum(refusals_of(manager)) == sum(before) + 1
            counts.append(refusals_of(manager))
        # 16 slots for 4: missing on level 0. One more held page for the host's two full slots: missing on the last level.
        assert counts[0] == [1, 0] and counts[1] == [1, 1]
        assert second.resize(8) and refusals_of(manager) == counts[-1]
        exporter.update()
        text = scrape(registry)
        assert [value_of(text, f'kvcm_refusals_total{{pool_group="0",tier="{tier}"}}') for tier in ("gpu", "host")] == counts[-1]
        exporter.close()
        second.close()
        first.close()


def refusals_of(manager):
    """Refused calls by level, of the one pool group."""
    return [manager.get_storage_statistics(level)[0].refusals for level in range(len(manager.cache_tier_list))]


def test_a_closed_level_is_shown():
    registry = prometheus_client.CollectorRegistry()
    files = FakeFiles()
    with Bench(tiered_config(4, [("host", 2), ("disk", 12)]), HostDevice(files=files)) as bench:
        exporter = PrometheusExporter(bench.manager, registry=registry)
        files.fail(errno.ENOSPC, writes=True)
        open_ones = [bench.suspended(number, 16) for number in (1, 2)]
        open_ones[0].prefetch(1)  # calls that plan slots see that the disk has failed
        exporter.update()
        text = scrape(registry)
        assert [value_of(text, f'kvcm_level_closed{{tier="{tier}"}}') for tier in ("gpu", "host", "disk")] == [0, 0, 1]
        assert bench.manager.describe()["levels"][2]["failure"] is not None
        exporter.close()
        for kv_cache in reversed(open_ones):
            kv_cache.close()


def test_what_runs_is_shown():
    registry = prometheus_client.CollectorRegistry()
    with manager_of() as manager:
        exporter = PrometheusExporter(manager, registry=registry)
        build = "compiled" if is_compiled() else "interpreted"
        device = manager.device.name
        labels = f'build="{build}",device="{device}",version="{kv_cache_manager_v2.__version__}"'
        assert value_of(scrape(registry), f"kvcm_build_info{{{labels}}}") == 1
        exporter.close()


def test_names_follow_the_conventions():
    registry = prometheus_client.CollectorRegistry()
    events = KVCacheEventManager(16)
    with KVCacheManager(config_of(), device=HostDevice(), event_manager=events) as manager:
        exporter = PrometheusExporter(manager, registry=registry, event_manager=events)
        names = set()
        for line in scrape(registry).splitlines():
            if line.startswith("# TYPE"):
                _, _, name, kind = line.split()
                assert name.endswith("_total") is (kind == "counter"), line
                names.add(name)
        exporter.close()
    assert names == NAMES


@pytest.mark.parametrize("registry", [None, "own"])
def test_several_managers_share_a_registry(registry):
    """``None``: the registry that `prometheus_client` serves by default, where ranks and models of one process meet."""
    chosen = prometheus_client.REGISTRY if registry is None else prometheus_client.CollectorRegistry()
    before = scrape(chosen)
    with manager_of() as first, manager_of() as second, manager_of() as third:
        given = None if registry is None else chosen
        exporters = [
            PrometheusExporter(first, registry=given, labels={"rank": "0"}),
            PrometheusExporter(second, registry=given, labels={"rank": "1"}, event_manager=KVCacheEventManager(16)),
            PrometheusExporter(third, registry=given, labels={"rank": "1", "model": "draft"}),
        ]
        run_prompt(second, list(range(8))).close()
        for exporter in exporters:
            exporter.update()
        text = scrape(chosen)
        assert value_of(text, 'kvcm_prefix_tokens_queried_total{rank="0"}') == 0
        assert value_of(text, 'kvcm_prefix_tokens_queried_total{rank="1"}') == 8
        assert value_of(text, 'kvcm_prefix_tokens_queried_total{model="draft",rank="1"}') == 0
        assert value_of(text, 'kvcm_events_dropped_total{rank="1"}') == 0
        headers = [line for line in text.splitlines() if line.startswith("# TYPE kvcm")]
        assert len(headers) == len(set(headers)), "a metric is announced once, whatever the number of managers"
        exporters[1].close()
        assert '{rank="1"}' not in (text := scrape(chosen)) and value_of(text, 'kvcm_requests_total{rank="0"}') == 0
        # Its labels are free again.
        PrometheusExporter(second, registry=given, labels={"rank": "1"}).close()
        exporters[0].close()
        exporters[2].close()
        assert scrape(chosen).count("\n") == before.count("\n")
        PrometheusExporter(first, registry=given).close()


def test_exporters_that_could_not_be_told_apart_are_refused():
    registry = prometheus_client.CollectorRegistry()
    with manager_of() as first, manager_of() as second:
        exporter = PrometheusExporter(first, registry=registry, labels={"model": "small", "rank": "0"})
        text = scrape(registry)
        with pytest.raises(ValueError, match=r"labels=.*'rank'"):
            PrometheusExporter(second, registry=registry, labels={"rank": "0", "model": "small"})
        for name, wrong in (("tier", "label of"), ("le", "label of"), ("no-dash", "no label name"), ("__x", "no label name"), ("", "no")):
            with pytest.raises(ValueError, match=wrong):
                PrometheusExporter(second, registry=registry, labels={name: "0"})
        assert scrape(registry) == text
        exporter.close()
    assert scrape(registry) == ""


def test_another_collector_with_one_of_the_names_is_refused():
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    with manager_of() as manager:
        exporter = PrometheusExporter(manager, registry=registry)
        for name in sorted(NAMES):
            with pytest.raises(ValueError, match=name.removesuffix("_total")):
                prometheus_client.Gauge(name.removesuffix("_total"), "taken", registry=registry)
        exporter.close()
        taken = prometheus_client.Gauge("kvcm_blocks", "of another library", registry=registry)
        with pytest.raises(ValueError, match="kvcm_blocks"):
            PrometheusExporter(manager, registry=registry)
        registry.unregister(taken)
        PrometheusExporter(manager, registry=registry).close()


class StepClock(StatisticsClock):
    def __init__(self):
        self.now = 1000.0

    def seconds(self):
        return self.now


def test_how_long_blocks_stay_and_return_after():
    registry = prometheus_client.CollectorRegistry()
    clock = StepClock()
    with manager_of(num_slots=4, block_times_sampling=1) as manager:
        exporter = PrometheusExporter(manager, registry=registry, clock=clock)
        run_prompt(manager, list(range(8))).close()
        clock.now += 2
        # Two blocks are found again, 2 s after they were last used.
        again = run_prompt(manager, list(range(8)))
        clock.now += 5
        again.close()
        clock.now += 50
        # Four new blocks in four slots: both are gone, 57 s old, 50 s after they were last used.
        run_prompt(manager, list(range(100, 116))).close()
        exporter.update()
        text = scrape(registry)
        for name, count, total, bounds in (
            ("block_reuse_gap_seconds", 2, 4, ("1.0", "3.0")),
            ("block_lifetime_seconds", 2, 114, ("30.0", "100.0")),
            ("block_idle_before_evict_seconds", 2, 100, ("30.0", "100.0")),
        ):
            assert value_of(text, f"kvcm_{name}_count") == count
            assert value_of(text, f"kvcm_{name}_sum") == total
            assert [value_of(text, f'kvcm_{name}_bucket{{le="{bound}"}}') for bound in bounds] == [0, count]
        exporter.close()


def test_how_long_transfers_take():
    registry = prometheus_client.CollectorRegistry()
    clock = StepClock()
    with Bench(tiered_config(8, [("host", 12)]), HostDevice(clock=clock)) as bench:
        exporter = PrometheusExporter(bench.manager, registry=registry, labels={"model": "small"})
        first = bench.suspended(1, 24)
        # 6 of the 8 slots are held; 6 more need 4 of them, which are offloaded. The clock stands still, so in no time.
        second = bench.suspended(2, 24)
        exporter.update()
        text = scrape(registry)
        down, up = 'dst="host",model="small",src="gpu"', 'dst="gpu",model="small",src="host"'
        offloads = value_of(text, f"kvcm_transfer_seconds_count{{{down}}}")
        assert value_of(text, 'kvcm_transfer_blocks_total{dst="host",model="small",src="gpu"}') == 4 and 1 <= offloads <= 4
        assert value_of(text, f"kvcm_transfer_seconds_sum{{{down}}}") == 0
        assert value_of(text, 'kvcm_transfer_seconds_bucket{dst="host",le="1e-05",model="small",src="gpu"}') == offloads
        assert value_of(text, f"kvcm_transfer_seconds_count{{{up}}}") == 0
        assert first.resume()
        exporter.update()
        assert value_of(scrape(registry), f"kvcm_transfer_seconds_count{{{up}}}") >= 1
        first.close()
        second.close()
        exporter.close()


def test_without_a_sample_there_are_no_times():
    registry = prometheus_client.CollectorRegistry()
    with manager_of(block_times_sampling=0) as manager:
        exporter = PrometheusExporter(manager, registry=registry)
        assert "block_" not in scrape(registry).replace("kvcm_transfer", "")
        exporter.close()


def test_events_are_counted_by_type():
    registry = prometheus_client.CollectorRegistry()
    events = KVCacheEventManager(16)
    with KVCacheManager(config_of(), device=HostDevice(), event_manager=events) as manager:
        exporter = PrometheusExporter(manager, registry=registry, event_manager=events)
        run_prompt(manager, list(range(8))).close()
        manager.clear_reusable_blocks()
        events.flush_iteration_events()
        exporter.update()
        assert value_of(scrape(registry), 'kvcm_events_published_total{type="stored"}') == 0, "it was not drained"
        events.get_latest_events()
        exporter.update()
        counts = {kind: value_of(scrape(registry), f'kvcm_events_published_total{{type="{kind}"}}') for kind in events.num_published}
        assert counts == events.num_published == {"created": 1, "stored": 1, "removed": 1, "updated": 0}
        exporter.close()


def test_the_dashboard_shows_all_that_there_is():
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"kvcm_\w+?(?=_bucket|_sum|\W)", query)}
    # The names of a scrape, as test_names_follow_the_conventions holds.
    names = NAMES | set(SHARED)
    assert asked == names, f"not shown: {names - asked}; not there: {asked - names}"


def test_the_dashboard_has_a_place_for_each_panel():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + column, place["y"] + row) for column in range(place["w"]) for row in range(place["h"])}
        assert all(column < 24 for column, _ in cells), f"{panel['title']} is wider than a dashboard"
        assert not cells & covered, f"{panel['title']} lies on another panel"
        covered |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_what_the_dashboard_groups_by_are_labels_that_there_are():
    registry = prometheus_client.CollectorRegistry()
    events = KVCacheEventManager(16)
    with Bench(tiered_config(8, [("host", 12)]), HostDevice(), event_manager=events) as bench:
        exporter = PrometheusExporter(bench.manager, registry=registry, event_manager=events)
        text = scrape(registry)
        exporter.close()
    # "instance" is Prometheus' own.
    labels = {"instance": NAMES | set(SHARED)}
    for name, found in re.findall(r"^(kvcm_\w+?)(?:_bucket|_sum|_count)?\{(.*)\}", text, re.MULTILINE):
        for label in re.findall(r'(\w+)="', found):
            labels[label] = labels.get(label, set()) | {name}
    for name, found in SHARED.items():
        for label in found:
            labels[label] = labels.get(label, set()) | {name}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            names = set(re.findall(r"kvcm_\w+?(?=_bucket|_sum|\W)", target["expr"]))
            grouped = [label for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(", ")]
            selected = re.findall(r"(\w+)=~?\"", target["expr"])
            shown = re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))
            for label in grouped + selected + shown:
                assert any(name in labels[label] for name in names), f"{panel['title']}: {target['expr']}: no {label}"


def test_alerts_ask_for_what_there_is_and_are_explained():
    rules = ALERTS.read_text()
    alerts = re.findall(r"- alert: (\w+)\n +expr: (.*?)\n +(?:for|labels):", rules, re.DOTALL)
    assert len(alerts) == rules.count("alert:") > 9
    watched: set[str] = set()
    for name, expression in alerts:
        asked = {found.removesuffix("_bucket").removesuffix("_sum") for found in re.findall(r"kvcm_\w+", expression)}
        assert asked and asked <= NAMES | set(SHARED), f"{name}: {asked - NAMES}"
        watched |= asked
        assert all(reason in {one.name.lower() for one in DropReason} for reason in re.findall(r'reason="(\w+)"', expression))
    page = (ALERTS.parents[1] / "docs" / "operations.md").read_text()
    assert re.findall(r"^\| `(Kvcm\w+)` \|", page, re.MULTILINE) == [name for name, _ in alerts]
    silent = (NAMES | set(SHARED)) - watched
    assert silent == NO_ALERT, f"say of {silent ^ NO_ALERT} whether operators must be told: a rule, or NO_ALERT"


def test_the_page_has_every_metric():
    page = (ALERTS.parents[1] / "docs" / "statistics.md").read_text()
    listed = set(re.findall(r"`(kvcm_\w+)[`{]", page.partition("| here | vLLM |")[2].partition("## OpenTelemetry")[0]))
    assert NAMES | set(SHARED) == listed


def test_without_statistics_there_is_nothing_to_export():
    registry = prometheus_client.CollectorRegistry()
    with manager_of(enable_stats=False) as manager:
        with pytest.raises(LogicError):
            PrometheusExporter(manager, registry=registry)
    assert scrape(registry) == ""


def test_the_log_has_a_line_and_fields(caplog):
    with manager_of() as manager:
        log = StatisticsLog(manager)
        with caplog.at_level(logging.INFO, "kv_cache_manager_v2.statistics"):
            kv_cache = run_prompt(manager, list(range(8)))
            log.write()
            log.write()
            kv_cache.close()
        first, second = caplog.records
        fields = vars(first)["kvcm"]
        assert (fields["prompt_tokens"], fields["missed_not_remembered"], fields["missed_blocks"]) == (8, 8, 2)
        assert "missed_blocks=2" in first.getMessage() and "suspends" not in first.getMessage()
        assert second.getMessage() == "nothing happened"
