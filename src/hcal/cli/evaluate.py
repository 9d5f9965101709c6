"""``hcal evaluate``: metrics by level, before and after, and a diagram in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from hcal import inputs
from hcal.calibrators.base import Calibrator
from hcal.cli import console, diagram
from hcal.files import DataFile
from hcal.metrics import METRICS, Sample, get_metric
from hcal.numerics import FloatArray, IntArray, softmax


@dataclass(frozen=True)
class Measured:
    """What ``hcal evaluate`` found.

    Attributes
    ----------
    data : DataFile
    probs : array of shape (N, K)
        The probabilities that were judged: the calibrator's, or the file's own.
    raw : array of shape (N, K)
        The file's own probabilities.
    y : array of shape (N,)
    metrics, before : dict of floats
        Of ``probs``, and of ``raw`` where there is a calibrator.
    """

    data: DataFile
    probs: FloatArray
    raw: FloatArray
    y: IntArray
    metrics: dict[str, float]
    before: dict[str, float] | None = None
    method: str | None = None
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able summary."""
        found: dict[str, Any] = {
            "file": str(self.data.path),
            "part": self.data.part or None,
            "input": self.data.kind,
            "rows": len(self.probs),
            "classes": self.probs.shape[1],
            "metrics": self.metrics,
        }
        if self.before is not None:
            found |= {"method": self.method, "before": self.before, "argmax_changed": self.argmax_changed}
        return found | {"warnings": self.warnings}

    @property
    def argmax_changed(self) -> int:
        """How many rows got another most probable class."""
        return int((self.raw.argmax(axis=1) != self.probs.argmax(axis=1)).sum())


def own_probs(data: DataFile) -> FloatArray:
    """Return the probabilities that a file holds or implies: softmax of its logits.

    Parameters
    ----------
    data : DataFile

    Returns
    -------
    array of shape (N, K)
    """
    if data.kind == "probs":
        return inputs.check_probs(data.values)[0]
    return softmax(inputs.check_logits(data.values, input=data.kind)[0])


def measure(data: DataFile, calibrator: Calibrator | None, names: Sequence[str] | None = None) -> Measured:
    """Measure the file's probabilities and, where given, the calibrator's.

    Parameters
    ----------
    data : DataFile
    calibrator : Calibrator, optional
    names : sequence of str, optional
        Metrics; all by default.

    Returns
    -------
    Measured
    """
    wanted = [get_metric(n.strip()).name for n in names] if names else list(METRICS)
    raw = own_probs(data)
    y = inputs.check_labels(data.labels(), *raw.shape)
    before = _all(raw, y, wanted)
    if calibrator is None:
        return Measured(data, raw, raw, y, before)
    probs = inputs.check_probs(calibrator.predict_proba(data.values))[0]
    return Measured(data, probs, raw, y, _all(probs, y, wanted), before, calibrator.name)


def _all(probs: FloatArray, y: IntArray, names: Sequence[str]) -> dict[str, float]:
    sample = Sample(probs, y)
    return {name: float(get_metric(name).function(sample)) for name in names}


def show(measured: Measured, *, draw: bool) -> None:
    """Print the metrics by level and the reliability diagram."""
    out = console.out()
    data = measured.data
    rows, classes = measured.probs.shape
    part = f", {data.part} part" if data.part else ""
    out.print(f"[bold]{data.path.name}[/]{part}: {rows:,} rows, {classes} classes, from {data.kind}\n")
    out.print(_table(measured, explain=out.width >= 110))
    if measured.before is not None:
        out.print(f"\n{measured.argmax_changed:,} of {rows:,} predictions changed their class")
    for warning in measured.warnings:
        console.err().print(f"[bold yellow]warning:[/] {warning}")
    if draw:
        _draw(measured)


def _table(measured: Measured, *, explain: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("metric", style="cyan", no_wrap=True)
    both = measured.before is not None
    for head in ("before", "after") if both else ("value",):
        table.add_column(head, justify="right", no_wrap=True)
    if explain:
        table.add_column("", no_wrap=True, overflow="ellipsis")
    level = ""
    for name, value in measured.metrics.items():
        metric = get_metric(name)
        if metric.level != level:
            level = metric.level
            table.add_row(f"[bold]{level}[/]")
        values = [f"{measured.before[name]:.5f}"] if measured.before is not None else []
        words = [f"[dim]{metric.explain}[/]"] if explain else []
        table.add_row(f"  {name}", *values, f"{value:.5f}", *words)
    return table


def _draw(measured: Measured) -> None:
    out = console.out()
    sides = [("before", measured.raw), ("after", measured.probs)]
    for title, probs in sides if measured.before is not None else [("", measured.probs)]:
        out.print()
        out.print(diagram.draw(diagram.bins_of(probs, measured.y), title=title))
    out.print("[dim]bar: accuracy, │: mean confidence; ░ over-confident, ▓ under-confident[/]")
