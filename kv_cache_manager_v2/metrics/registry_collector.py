"""The one collector of a Prometheus registry: merges the samples of all exporters that were made for that registry.

A registry refuses a second collector with the same metric names, and a scrape must have each metric once, with the samples of
all managers. Exporters are told apart by their labels.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any, Final, final



@final
class RegistryCollector:
    """Invariant: registered with ``registry`` exactly while it has members. Members may join and leave from any thread."""

    __slots__ = ("_registry", "_lock", "_members", "_described")

    def __init__(self, registry: Any, described: list[Any]) -> None:
        """``described``: one empty family for each metric that any member may ever show."""
        self._registry: Final = registry
        self._lock: Final = Lock()
        self._members: list[tuple[frozenset[tuple[str, str]], Callable[[], list[Any]]]] = []  # replaced, never changed: scrapes iterate it
        self._described = described

    def join(self, labels: frozenset[tuple[str, str]], collect: Callable[[], list[Any]]) -> None:
        """Add an exporter. `ValueError` if another has the same labels, or another collector of the registry the same names."""
        with self._lock:
            for taken, _ in self._members:
                if taken == labels:
                    shown = dict(sorted(labels))
                    raise ValueError(
                        f"labels={shown}: another PrometheusExporter of this registry has the same labels, so their samples could not "
                        "be told apart; give each its own, such as labels={'rank': '1'}, or close() the other one"
                    )
            if not self._members:
                self._registry.register(self)
            self._members = [*self._members, (labels, collect)]

    def leave(self, labels: frozenset[tuple[str, str]]) -> bool:
        """Remove an exporter; True if it was the last."""
        with self._lock:
            self._members = [member for member in self._members if member[0] != labels]
            if not self._members:
                self._registry.unregister(self)
            return not self._members

    def describe(self) -> list[Any]:
        """All metric names, so that the registry can refuse another collector with one of them."""
        return self._described

    def collect(self) -> list[Any]:
        """The samples of a scrape; from any thread."""
        families: dict[str, Any] = {}
        for _, collect in self._members:
            for family in collect():
                merged = families.setdefault(family.name, family)
                if merged is not family:
                    merged.samples.extend(family.samples)
        return list(families.values())
