"""One file that a person looks at: its columns, what was chosen, and what public functions made of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hcal.io import Request, batches, checksum
from hcal.io.reading import preview
from hcal.io.request import plan_of
from hcal.methods import make_calibrator
from hcal.methods.files import save
from hcal.operation.applying import apply
from hcal.reporting import ReportVerdict, Source, measure_report, write_page
from hcal.text import JsonObject

#: The files that a person can download, by their names in the address.
REPORT: Final = "report.html"
MODEL: Final = "model.hcal"
CALIBRATED: Final = "calibrated"
#: The rows of a preview.
_SHOWN: Final = 5


@dataclass(frozen=True)
class ColumnChoice:
    """What a person chose: the columns, what the scores are, and the method."""

    scores: tuple[str, ...]
    label: str
    input: str
    method: str
    classes: str = ""
    by: str = ""

    @classmethod
    def first(cls, columns: Sequence[str]) -> ColumnChoice:
        """Return what the names of the columns say themselves; nothing where they do not."""
        try:
            plan = plan_of(columns, Request(), "test", table=True)
        except ValueError:
            return cls((), "", "probs", "pool")
        return cls(tuple(plan.scores), plan.roles.get("label", ""), plan.kind, "pool")

    def request(self) -> Request:
        """Return how the file is read; raise a ValueError if columns are missing."""
        if not self.scores or not self.label:
            raise ValueError("choose the columns of the scores, and the column of the labels")
        if any("," in name for name in (*self.scores, self.by)):
            raise ValueError("the name of a chosen column has a comma: rename the column")
        names = [name.strip() for name in self.classes.split(",")]
        return Request(
            scores=",".join(self.scores),
            label=self.label,
            input=self.input,
            classes=tuple(names) if self.classes.strip() else None,
            by=self.by or None,
        )


@dataclass
class Sheet:
    """One file, and how far the work on it is; a page reads it while a thread works.

    Attributes
    ----------
    path : Path
        The file.
    folder : Path
        Where results are written.
    choice : ColumnChoice
    stage : str
        What is being done; empty before and after.
    done, total : int
        Rows.
    error : str
        Why the last attempt ended.
    verdict : ReportVerdict, optional
        What the report says first.
    """

    path: Path
    folder: Path
    columns: Mapping[str, Sequence[object]] = field(init=False)
    choice: ColumnChoice = field(init=False)
    stage: str = ""
    done: int = 0
    total: int = 0
    began: float = 0.0
    error: str = ""
    verdict: ReportVerdict | None = None

    def __post_init__(self) -> None:
        self.columns = preview(self.path, _SHOWN)
        self.choice = ColumnChoice.first(list(self.columns))

    @property
    def shown_rows(self) -> list[tuple[object, ...]]:
        """The first rows."""
        return list(zip(*self.columns.values(), strict=True))

    def result(self, name: str) -> Path:
        """Return the path of a file that can be downloaded."""
        if name == CALIBRATED:
            return self.folder / f"{self.path.stem}-calibrated{self.path.suffix.lower()}"
        return self.folder / name

    def progress(self) -> JsonObject:
        """Return how far the work is."""
        seconds = round(time.monotonic() - self.began)
        return {"stage": self.stage, "done": self.done, "total": self.total, "seconds": seconds}

    def begin(self, stage: str, total: int = 0) -> None:
        """Say what is being done now, and how many rows it concerns."""
        self.stage = stage
        self.done = 0
        self.total = total

    def work(self, choice: ColumnChoice) -> None:
        """Write the report, the model and the calibrated file; what goes wrong is kept as a sentence."""
        self.choice = choice
        self.verdict = None
        self.error = ""
        self.began = time.monotonic()
        try:
            self.verdict = self._calibrate(choice)
        except (ValueError, OSError, ImportError) as error:
            self.error = str(error)
        except Exception as error:  # the page has to say why there is no result
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.begin("")

    def _calibrate(self, choice: ColumnChoice) -> ReportVerdict:
        request = choice.request()
        source = batches(self.path, request)
        self.begin("Reading", source.n_rows)
        rows = source.as_source(advance=self._advance).sample()

        self.begin("Predicting every row by a fit that did not see it", len(rows))
        content = measure_report(
            rows,
            None,
            choice.method,
            input=rows.kind,
            cross_fit=True,
            source=Source(self.path.name, kind=rows.kind, checksum=checksum(self.path)),
        )
        verdict = write_page(self.result(REPORT), content)

        self.begin("Writing the calibrated file", source.n_rows)
        calibrator = make_calibrator(choice.method, input=rows.kind).fit(rows)
        remembered = request.for_refit(rows.kind, segmented=False)
        calibrator.remember_source(remembered, self.path.name, "", checksum(self.path))
        save(calibrator, self.result(MODEL))
        apply(calibrator, self.path, self.result(CALIBRATED), keep=True)
        return verdict

    def _advance(self, rows: int) -> None:
        self.done += rows
