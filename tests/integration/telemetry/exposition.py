"""The metrics of a server, parsed as Prometheus does."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class Exposition:
    def __init__(self, text: bytes) -> None:
        self.families: dict[str, Metric] = {
            family.name: family for family in text_string_to_metric_families(text.decode())
        }

    @property
    def samples(self) -> Iterable[Sample]:
        return [sample for family in self.families.values() for sample in family.samples]

    def series(self) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        return {(sample.name, frozenset(sample.labels.items())) for sample in self.samples}

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the sample with exactly these labels."""
        [found] = [sample.value for sample in self.samples if sample.name == name and sample.labels == labels]
        return found

    def labels(self) -> dict[str, set[str]]:
        """Return the label names of each sample name."""
        found: dict[str, set[str]] = {}
        for sample in self.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        return found
