"""``hcal watch``: check batches of predictions and labels as they come."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from hcal.cli import console
from hcal.cli.decide import probabilities, text_names
from hcal.cli.options import FAILED, Files, Model, check_output, command, load_model, with_file
from hcal.progress import logger
from hcal.text import JsonObject, quoted

if TYPE_CHECKING:
    from hcal.certificates import Drift, Monitor
    from hcal.io import DataFile
    from hcal.methods.base import Calibrator
    from hcal.operation.score_store import ScoreStore


@command(
    "watch",
    "hcal watch monday.npz tuesday.npz --model model.hcal --state watch.json",
    "hcal watch monday.csv --model model.hcal --store scores.sqlite --id key",
    "hcal watch labels.csv --late-labels --store scores.sqlite --state watch.json --id key",
)
@dataclass(frozen=True, kw_only=True)
class Watch(Files):
    """Check batches of predictions and labels as they come: is the model still calibrated?"""

    schema = "hcal/watch/1"

    model: Model = None
    confidence: Annotated[
        float | None, Option(help="probability of no false alarm over all time; 0.95 by default")
    ] = None
    tolerance: Annotated[
        str | None,
        Option(help="error that raises no alarm; default: auto (by the fit) with --model, else 0"),
    ] = None
    state: Annotated[
        Path | None, Option(help="continue from this file if it exists, and update it")
    ] = None
    store: Annotated[
        Path | None, Option(help="keep scores without labels in this file until labels come")
    ] = None
    late_labels: Annotated[
        bool, Option("--late-labels", help="the files hold ids and labels for scores in --store")
    ] = False
    keep_days: Annotated[
        int | None, Option(min=1, help="delete stored scores after so many days; 90 at first")
    ] = None
    reset: Annotated[
        bool, Option("--reset", help="forget the evidence so far, keep the settings")
    ] = False
    since: Annotated[str | None, Option(help="show recent rows from this date on")] = None
    date: Annotated[str | None, Option(help="the date of these files; today by default")] = None
    reference: Annotated[
        Path | None, Option(help="compare scores with this file's, without labels")
    ] = None
    prometheus: Annotated[Path | None, Option(help="write counts for a textfile collector")] = None

    def run(self) -> None:
        """Add the files to the monitor or the store; end with the exit code 3 as long as an alarm stands."""
        from hcal.certificates.monitor import check_day
        from hcal.certificates.monitor_file import shared_state
        from hcal.operation.score_store import day_that_has_come

        check_day(self.since)
        day = day_that_has_come(self.date)
        for path in (self.state, self.store, self.prometheus):
            check_output(path, *self.file, self.model, self.reference)
        calibrator = load_model(self.model)
        settings = {"confidence": self.confidence, "tolerance": self.tolerance}
        begin = partial(_new_monitor, settings, calibrator)
        watching = Watching(
            files=self,
            calibrator=calibrator,
            store=_open_store(self.store, self.keep_days, self.late_labels, calibrator),
            state=self.state,
            day=day,
            reference=self.reference,
        )
        # Other processes wait until this one has added its files, so that no row is lost.
        state = nullcontext(begin()) if self.state is None else shared_state(self.state, begin)
        with state as monitor:
            _check_settings(monitor, settings, self.state)
            if self.reset:
                monitor.reset()
            self._add_files(watching, monitor)
            self._write_counts(watching, monitor)
        content = {
            "rows": monitor.n,
            "log_evidence": monitor.log_evidence,
            "alarm": None if monitor.alarm is None else vars(monitor.alarm),
            "files": monitor.files,
            "windows": monitor.windows(self.since),
            "drift": {name: drift.to_dict() for name, drift in watching.drifts.items()},
            "store": None if watching.store is None else watching.store.counts,
        }
        self.show(content, _nothing)
        if monitor.alarm is not None:
            raise Exit(FAILED)

    def _add_files(self, watching: Watching, monitor: Monitor) -> None:
        """Add every file, and print what came of it."""
        add = watching.add_labels if self.late_labels else watching.add_rows
        doing = f"watching {len(self.file):,} files"
        with console.working(doing, len(self.file), quiet=self.silent) as advance:
            for file in self.file:
                lines = add(monitor, file)
                advance(1)
                if not self.silent:
                    console.show_lines("\n".join(lines))

    def _write_counts(self, watching: Watching, monitor: Monitor) -> None:
        """Write the counts while no other process can write newer ones."""
        from hcal.io import atomic_path

        if self.prometheus is not None:
            with atomic_path(self.prometheus) as temporary:
                text = monitor.prometheus() + watching.prometheus()
                temporary.write_text(text, encoding="utf-8")


def _nothing() -> None:
    """Print nothing: each file was reported when it was added."""


def _open_store(
    path: Path | None, keep_days: int | None, late_labels: bool, calibrator: Calibrator | None
) -> ScoreStore | None:
    """Return the store of scores that wait for labels; None where labels come with the scores."""
    from hcal.fit_record import fitted_names
    from hcal.operation import ScoreStore

    if path is None:
        if late_labels or keep_days is not None:
            raise ValueError(
                "--late-labels and --keep-days need --store, the file of stored scores"
            )
        return None
    if late_labels and not path.exists():
        raise ValueError(f"there is no {path}: keep scores with --store before their labels come")
    return ScoreStore(path, keep_days=keep_days, classes=fitted_names(calibrator))


@dataclass
class Watching:
    """What one call of the command does with each of its files.

    Attributes
    ----------
    files : Files
    calibrator : Calibrator or None
    store : ScoreStore or None
        Where scores wait for their labels.
    state : Path or None
        The state file of the monitor.
    day : str
    reference : Path or None
        The file whose scores new ones are compared with.
    drifts : dict of Drift
        By the name of the file.
    """

    files: Files
    calibrator: Calibrator | None
    store: ScoreStore | None
    state: Path | None
    day: str
    reference: Path | None
    drifts: dict[str, Drift] = field(default_factory=dict)

    def add_rows(self, monitor: Monitor, file: Path) -> list[str]:
        """Add a file of scores: with labels to the monitor, without labels to the store."""
        data = with_file(self.files, file).read(self.calibrator)
        if self.store is not None:
            words = self._keep(data)
        elif data.y is None and self.reference is not None:
            words = f"{len(data.values):,} rows without labels"
        else:
            self._add_labelled(monitor, data)
            words = str(monitor)
        return [f"{file.name}: {words}", *self._drift(data)]

    def add_labels(self, monitor: Monitor, file: Path) -> list[str]:
        """Add a file of ids and labels to the monitor, with the scores that the store holds for them."""
        from hcal.class_names import label_cells, labels_by_number
        from hcal.io.reading import read_columns

        assert self.store is not None
        label = self.files.label or "y"
        id_column = self._id_column()
        columns = read_columns(file, [id_column, label])
        classes = self.store.classes
        labels = labels_by_number(label_cells(columns[label], classes), classes)
        joined = self.store.add_to_monitor(
            monitor, columns[id_column], labels, state=self.state, name=file.name, day=self.day
        )
        if joined.twice and not joined.ids:
            logger.info("%s: each label of a stored row was added before", file.name)
        return [f"{file.name}: {joined}", str(monitor)]

    def prometheus(self) -> str:
        """Return the counts of the store as Prometheus text."""
        if self.store is None:
            return ""
        lines = []
        for name, count in self.store.counts.items():
            metric = "hcal_store_waiting" if name == "waiting" else f"hcal_store_{name}_total"
            kind = "gauge" if name == "waiting" else "counter"
            lines.append(f"# TYPE {metric} {kind}\n{metric} {count}\n")
        return "".join(lines)

    def _id_column(self) -> str:
        """Return the column of ids: as the option says, else as in the calibrator's fit."""
        name = self.files.request(self.calibrator).id
        if name is None:
            raise ValueError(
                "labels find their scores by the id of the row: name its column with --id"
            )
        return name

    def _keep(self, data: DataFile) -> str:
        """Keep the scores of a file until their labels come, and return how many in words."""
        assert self.store is not None
        if data.y is not None:
            raise ValueError(
                f"{data.name} has labels: leave out --store, or the label's column (--label); "
                "files that hold labels alone are read with --late-labels"
            )
        if data.ids is None:
            raise ValueError(
                "labels find their scores by the id of the row: name its column with --id"
            )
        probs = probabilities(data, self.calibrator)
        new = self.store.add(data.ids, probs, day=self.day)
        waiting = self.store.counts["waiting"]
        return f"{new:,} new rows of {len(data.ids):,}; {waiting:,} rows wait for their labels"

    def _add_labelled(self, monitor: Monitor, data: DataFile) -> None:
        """Add labelled rows to a monitor; the first file with class names names the classes for all.

        A file that was added before is passed over, so that a job that is repeated ends with the present alarm.
        """
        from hcal.operation.monitoring import update_by_name

        digest = data.checksum()
        if _was_added(monitor, data.path.name, digest):
            return
        probs = probabilities(data, self.calibrator)
        file = {"name": data.path.name, "digest": digest, "date": self.day}
        update_by_name(monitor, probs, data.labels(), text_names(data), **file)

    def _drift(self, data: DataFile) -> list[str]:
        """Compare the scores of a file with those of the reference, which needs no labels."""
        import hcal

        if self.reference is None:
            return []
        files = replace(with_file(self.files, self.reference), unlabelled="error")
        old = files.read(self.calibrator)
        drift = hcal.drift(old.values, data.values, input=data.kind)
        self.drifts[data.path.name] = drift
        return [f"  {drift}"]


def _was_added(monitor: Monitor, name: str, digest: str) -> bool:
    """Say whether the rows of a file were added before, with a note."""
    before = [entry for entry in monitor.files if entry["digest"] == digest]
    if before:
        words = f"{name} was added before, as {before[0]['name']} ({before[0]['date']})"
        logger.info("%s: its rows do not count again", words)
    return bool(before)


def _new_monitor(settings: JsonObject, calibrator: Calibrator | None) -> Monitor:
    """Return a monitor without rows; without a model nothing but a number can be the tolerance."""
    from hcal.certificates import Monitor

    tolerance = settings["tolerance"]
    if tolerance is None:
        tolerance = "0" if calibrator is None else "auto"
    if tolerance == "auto" and calibrator is None:
        raise ValueError(
            "--tolerance auto is decided by the fit of a model: add --model, or a number"
        )
    confidence = 0.95 if settings["confidence"] is None else settings["confidence"]
    allowed = "auto" if tolerance == "auto" else _number(tolerance)
    return Monitor(confidence=confidence, tolerance=allowed, calibrator=calibrator)


def _number(tolerance: str) -> float:
    """Return the number that a tolerance states."""
    try:
        return float(tolerance)
    except ValueError:
        raise ValueError(f"--tolerance is auto or a number, got {quoted(tolerance)}") from None


def _check_settings(monitor: Monitor, settings: JsonObject, state: Path | None) -> None:
    """Refuse options that differ from those with which the state was begun."""
    for name, value in settings.items():
        begun = getattr(monitor, name)
        if value is None or str(begun) == str(value):
            continue
        if value == "auto" or begun == "auto" or float(begun) != _number(value):
            raise ValueError(
                f"--{name} is {value}, and {state} was begun with {begun}: leave it out, or "
                "choose another --state"
            )
