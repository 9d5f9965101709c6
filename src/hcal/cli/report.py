"""``hcal report``: from a file to the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hcal.calibrators.base import Calibrator
from hcal.cli import console
from hcal.io import DataFile
from hcal.io.limits import open_regular
from hcal.reporting import ReportVerdict, Source, judge_report, measure_report, write_page


def write(
    output: Path,
    data: DataFile,
    calibrator: Calibrator | None,
    *,
    names: Path | None = None,
    ci: float = 0.95,
    positive: str | None = None,
) -> ReportVerdict:
    """Measure, write the page and return its verdict.

    ``names`` is a text file with one class name a line, ``positive`` the name or number of the positive
    class.
    """
    listed = data.classes if names is None else _lines(names)
    content = measure_report(
        data.values,
        data.labels(),
        calibrator,
        input=data.kind,
        class_names=listed,
        source=Source(data.name, data.part, data.kind, data.checksum()),
        notes=same_file(calibrator, data),
        ci=ci,
        positive=class_number(positive, listed),
        groups=data.groups,
    )
    write_page(output, content)
    return judge_report(content)


def to_dict(verdict: ReportVerdict, page: Path) -> dict[str, Any]:
    """Return what the page says, JSON-able."""
    return {
        "report": str(page), "grade": verdict.grade, "headline": verdict.headline, "chips": verdict.chips,
        "sentences": verdict.sentences, "alarms": verdict.alarms,
    }  # fmt: skip


def show_verdict(verdict: ReportVerdict, page: Path) -> None:
    """Print what the page says, and where it is."""
    console.out().print(f"[bold]{console.name(verdict.headline)}[/]")
    console.out().print("\n".join(verdict.sentences), markup=False)
    console.out().print(f"\nwrote [bold]{console.name(page)}[/]: open it in any browser")


def _lines(path: Path) -> list[str]:
    with open_regular(path) as file:
        try:
            return file.read().decode("utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise ValueError(f"{path.name} is not UTF-8 text") from None


def class_number(name: str | None, names: Sequence[Any] | None) -> int:
    """Return the class that a name or a number means; class 1 by default.

    >>> class_number("sick", ["well", "sick"]), class_number("0", None), class_number(None, None)
    (1, 0, 1)
    """
    if name is None:
        return 1
    texts = None if names is None else [str(n) for n in names]
    if texts is not None and name in texts:
        return texts.index(name)
    if name in ("0", "1"):
        return int(name)
    known = "0, 1" if texts is None else ", ".join(texts)
    raise ValueError(f"--positive {name}: no such class; there are {known}")


def origin(data: DataFile) -> dict[str, str]:
    """Return what names the rows of a file: kept with a fitted model, compared when it is judged."""
    return {"file": data.name, "part": data.part, "sha256": data.checksum()}


def same_file(calibrator: Calibrator | None, data: DataFile) -> list[str]:
    """Return a note where this is the file that a calibrator of an older version learned from.

    Newer ones know their rows (:func:`hcal.evaluation.learned_from`), in whatever file they come.
    """
    fitted_on = {} if calibrator is None else calibrator.info_.get("fitted_on", {})
    if getattr(calibrator, "fitted_on_", None) is not None or "sha256" not in fitted_on:
        return []
    same = fitted_on["sha256"] == data.checksum() and fitted_on.get("part") == data.part
    return ["these are the rows that the calibrator learned from: judge it on others"] if same else []
