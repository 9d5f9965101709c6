"""Files that memory does not hold: rows by blocks, and who works on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hcal.cli import console
from hcal.cli.files import Ask, as_fitted

if TYPE_CHECKING:
    from pathlib import Path

    from hcal.calibrators.base import Calibrator
    from hcal.io import Batches, Part
    from hcal.passes import Driver


@dataclass(frozen=True)
class Scale:
    """What the options say: rows of a block, processes of this machine, or a Dask scheduler."""

    batch_rows: int | None = None
    workers: int | None = None
    scheduler: str | None = None

    def __post_init__(self) -> None:
        for option, value in (("--batch-rows", self.batch_rows), ("--workers", self.workers)):
            if value is not None and value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}")
        if self.workers is not None and self.scheduler is not None:
            raise ValueError("--workers are of this machine, --scheduler has its own: give one of them")

    def by_blocks(self, ask: Ask) -> bool:
        """Whether rows are read by blocks: it was asked for, or the files are many."""
        return ask.several or self.asked

    @property
    def asked(self) -> bool:
        """Whether any of the options was given."""
        return (self.batch_rows, self.workers, self.scheduler) != (None, None, None)

    @contextmanager
    def driver(self) -> Iterator[Driver | None]:
        """Yield who works on the pieces; None for this process."""
        if self.scheduler is not None:
            from hcal.integrations import dask

            with dask.Driver(self.scheduler) as driver:
                yield driver
        elif self.workers is not None and self.workers > 1:
            from hcal.passes import Processes

            with Processes(self.workers) as processes:
                yield processes
        else:
            yield None

    @contextmanager
    def working(self, text: str, source: Batches, *, quiet: bool) -> Iterator[dict[str, Any]]:
        """Yield what a pass is told: who works on it, and a bar with rows a second and the time left."""
        from hcal.progress import progress, silent

        with self.driver() as driver:
            if quiet:
                with silent():
                    yield {"driver": driver}
                return
            with progress(console.name(text), source.n_rows or 0, unit="rows") as advance:
                yield {"driver": driver, "advance": advance}


def open_batches(
    ask: Ask,
    scale: Scale,
    calibrator: Calibrator | None = None,
    model: Path | None = None,
    *,
    part: Part = "test",
) -> Batches:
    """Return the rows of an ask by blocks, as the model wants them where there is one."""
    if calibrator is None or model is None:
        return ask.batches(scale.batch_rows, part=part)
    order = getattr(calibrator, "class_names_", None)
    return as_fitted(
        calibrator, model, ask, lambda kind: ask.batches(scale.batch_rows, part=part, kind=kind, order=order)
    )


def describe(source: Batches) -> str:
    """Return names and shape of a source, for a progress line."""
    return f"{source.name} ({source.n_rows:,} × {source.n_classes:,})"
