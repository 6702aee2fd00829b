"""Which tests are the first to ask about a change of some file: its folder's own, and the promises that rest on it."""

from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
_PROMISES = {
    "layout": "tiers_can capacity_is page_indices page_tables scratch_slots windows_free pool_views recurrent_state_is_kept",
    "pools": "nothing_leaks tiers_can refusals_change leased_pages tiers_hold resized_caches caches_outlive ranks_keep",
    "storage": (
        "tiers_ clean_pages failing_tiers eviction_policies least_value retention refused_copies slow_tiers refusals_change scopes_can "
        "debug_fill transfers_are caches_outlive restored_prefixes unreadable_pages evicted_prefixes hints_pay ranks_keep"
    ),
    "reuse": (
        "prefixes_are coverage equal_blocks misses_have published_ends scopes_can recurrent_state_is_reused tokens_in eviction_pol "
        "events_say retention statistics_add caches_outlive one_step failing_tiers evicted_prefixes"
    ),
    "sequence": (
        "a_batch batches_never beams decode_batches forks indices_stay input_is leased one_step prefill recurrent refusals_change "
        "scratch_slots starting states_arrive steps_cost trees_of windows_free retention equal_blocks published_ends misuse slow_tiers "
        "refused_copies forked_processes other_ unreadable_pages failing_tiers tiers_can arrivals statistics_add misses_have "
        "evicted_prefixes coverage rewound_prompts"
    ),
    "shared": "evicted_prefixes prefixes_are_shared recurrent_states_are_shared shared_levels dead_stores stores_",
    "durable": "caches_outlive durable_ restarts_keep",
    "integrations": "",
    "device": "slow_tiers refused_copies tiers_hold states_arrive forks leased pauses",
}
_PROPERTIES = {
    "pools": "tests/property/test_durable_crashes.py",
    "reuse": (
        "tests/property/test_useless_windowed_pages_go.py tests/property/test_events_rebuild_the_tree.py"
    ),
    "sequence": (
        "tests/property/test_finish_orders_exist.py tests/property/test_questions_foretell_resizes.py "
        "tests/property/test_copies_are_made_first.py tests/property/test_beams_make_room_for_their_steps.py"
    ),
    "storage": "tests/property/test_useless_windowed_pages_go.py",
}
_UNIT = {
    "device": "unit/device/test_stream_order_calls.py unit/device/test_stream_order.py unit/device/test_streams_that_come_and_go.py",
}


def fitting_tests(file: str) -> list[str]:
    """Paths of tests, from the repository's root, for a file of the package: those that name it come first."""
    folder = file.split("/")[0]
    names = _UNIT.get(folder, f"unit/{folder}").split()
    paths = [path for name in names for path in _list_tests(_TESTS / name)]
    if folder not in _UNIT:
        paths += _list_tests(_TESTS / "property" / folder)
    paths += [_TESTS.parent / name for name in _PROPERTIES.get(folder, "").split()]
    for beginning in _PROMISES[folder].split():
        found = sorted((_TESTS / "promises").glob(f"test_{beginning}*.py"))
        assert found, f"no promise begins with {beginning}"
        paths += found
    stem = Path(file).stem
    paths.sort(key=lambda path: stem not in path.read_text())
    return list(dict.fromkeys([str(path.relative_to(_TESTS.parent)) for path in paths]))


def _list_tests(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("test_*.py"))
