"""The benchmark has no list of metrics of its own: the registry is the only one."""

from __future__ import annotations

import hcal
from hcal.bench.catalog import GROUPS, PAPER_METRICS, group_of, label_of
from hcal.cli.bench import _metric_names
from hcal.metrics import METRICS


def test_every_metric_is_in_the_group_of_its_level_and_nothing_else_is() -> None:
    assert sorted(m for group in GROUPS.values() for m in group) == sorted(METRICS)
    for name, metric in METRICS.items():
        assert name in GROUPS[metric.level]
        assert group_of(name) == metric.level
        assert label_of(name) == metric.label


def test_all_means_all() -> None:
    assert sorted(_metric_names("all")) == sorted(hcal.list_metrics())


def test_the_papers_metrics_are_metrics() -> None:
    assert set(PAPER_METRICS) <= set(METRICS)
    assert {group_of(m) for m in PAPER_METRICS} == {"top-label", "class-wise", "canonical"}
