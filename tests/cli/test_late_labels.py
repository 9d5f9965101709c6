"""``hcal watch`` with scores today and labels in three weeks: kept, joined by id, counted, deleted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hcal
from command_line import run

STORE = ("--store", "scores.sqlite")
STATE = ("--state", "watch.json")
SCORES = ("--scores", "p", "--input", "probs", "--id", "key")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_scores(name: str, first: int, n: int = 1000) -> np.ndarray:
    """Write P(positive) of rows with ids, and return them."""
    p = np.random.default_rng(first).uniform(0.05, 0.95, n).round(6)
    lines = [f"{first + i},{value}" for i, value in enumerate(p)]
    Path(name).write_text("\n".join(["key,p", *lines]))
    return p


def write_labels(name: str, p: np.ndarray, first: int, off: float = 0.0) -> None:
    rng = np.random.default_rng(first + 1)
    y = (rng.random(len(p)) < p - off).astype(int)
    lines = [f"{first + i},{label}" for i, label in enumerate(y)]
    Path(name).write_text("\n".join(["key,churned", *lines]))


def labels_command(name: str, day: str) -> tuple[str, ...]:
    options = ("--late-labels", "--id", "key", "--label", "churned", "--date", day)
    return ("watch", name, *STORE, *STATE, *options)


def test_scores_wait_for_their_labels_and_an_alarm_comes_with_them() -> None:
    good = write_scores("week1.csv", 0)
    bad = write_scores("week2.csv", 1000)
    output = run("watch", "week1.csv", *SCORES, *STORE, "--date", "2026-01-05").stdout
    assert "1,000 new rows of 1,000; 1,000 rows wait for their labels" in output
    run("watch", "week2.csv", *SCORES, *STORE, "--date", "2026-01-12")
    again = run("watch", "week2.csv", *SCORES, *STORE, "--date", "2026-01-12").stdout
    assert "0 new rows of 1,000; 2,000 rows wait" in again
    write_labels("labels1.csv", good, 0)
    write_labels("labels2.csv", bad, 1000, off=0.2)
    output = run(*labels_command("labels1.csv", "2026-01-26")).stdout
    assert "1,000 rows have scores and labels now, 1,000 still wait" in output
    assert "no alarm" in output
    run(*labels_command("labels2.csv", "2026-02-02"), code=3)
    again = run(*labels_command("labels2.csv", "2026-02-02"), code=3)
    assert "was added before" in again.stderr
    assert hcal.Monitor.load("watch.json").n == 2000


def test_a_date_that_has_not_come_is_refused_before_anything_is_done() -> None:
    p = write_scores("week1.csv", 0, 100)
    run("watch", "week1.csv", *SCORES, *STORE, "--date", "2026-01-05")
    write_scores("week2.csv", 100, 10)
    write_labels("labels.csv", p, 0)
    labelled = ("watch", "rows.csv", "--input", "probs", "--scores", "p", "--label", "churned")
    Path("rows.csv").write_text("p,churned\n0.5,1\n0.5,0\n")
    for command in (
        ("watch", "week2.csv", *SCORES, *STORE, "--date", "2999-01-05"),
        labels_command("labels.csv", "2999-01-05"),
        (*labelled, *STATE, "--date", "2999-01-05"),
    ):
        assert "has not come yet" in run(*command, code=1).stderr
    assert len(hcal.ScoreStore("scores.sqlite")) == 100
    assert not Path("watch.json").exists()


def test_late_and_double_labels_are_counted_and_old_scores_deleted() -> None:
    p = write_scores("week1.csv", 0, 100)
    run("watch", "week1.csv", *SCORES, *STORE, "--date", "2026-01-05", "--keep-days", "30")
    write_labels("half.csv", p[:50], 0)
    write_labels("more.csv", p[:60], 0)
    run(*labels_command("half.csv", "2026-01-20"))
    run(*labels_command("more.csv", "2026-01-21"))
    write_labels("late.csv", p, 0)
    write_scores("week9.csv", 5000, 10)
    run("watch", "week9.csv", *SCORES, *STORE, "--date", "2026-03-01")
    result = run(*labels_command("late.csv", "2026-03-02"), "--prometheus", "counts.prom", "--json")
    counts = json.loads(result.stdout)["store"]
    assert counts == {
        "scored": 110,
        "joined": 60,
        "unknown": 100,
        "twice": 50,
        "deleted": 100,
        "deleted_unlabelled": 40,
        "waiting": 10,
    }
    assert "hcal_store_unknown_total 100" in Path("counts.prom").read_text()
    assert hcal.Monitor.load("watch.json").n == 60


def test_a_run_that_ends_between_the_two_files_counts_no_row_twice() -> None:
    """The state was written, the store was not: the next run marks the labels and adds nothing."""
    p = write_scores("week1.csv", 0, 100)
    run("watch", "week1.csv", *SCORES, *STORE)
    before = Path("scores.sqlite").read_bytes()
    write_labels("labels.csv", p, 0)
    run(*labels_command("labels.csv", "2026-01-26"))
    Path("scores.sqlite").write_bytes(before)
    run(*labels_command("labels.csv", "2026-01-26"))
    assert hcal.Monitor.load("watch.json").n == 100
    assert hcal.ScoreStore("scores.sqlite").counts["waiting"] == 0


def test_what_fails_in_the_monitor_leaves_the_labels_unmarked() -> None:
    store = hcal.ScoreStore("scores.sqlite")
    store.add(["a"], [[0.2, 0.3, 0.5]])
    with hcal.certificates.monitor_file.shared_state("watch.json", hcal.Monitor) as monitor:
        monitor.update([[0.5, 0.5]], [0])
    with pytest.raises(ValueError, match="this monitor checks 2"):
        store.update_monitor("watch.json", ["a"], [0])
    assert store.counts["waiting"] == 1


def test_drift_needs_no_labels_and_runs_at_once() -> None:
    write_scores("reference.csv", 0)
    p = write_scores("new.csv", 7)
    lines = [f"{i},{value}" for i, value in enumerate(np.sqrt(p))]
    Path("shifted.csv").write_text("\n".join(["key,p", *lines]))
    options = ("--reference", "reference.csv", "--json")
    calm = json.loads(run("watch", "new.csv", *SCORES, *STORE, *options).stdout)["drift"]
    moved = json.loads(run("watch", "shifted.csv", *SCORES, *options).stdout)["drift"]
    assert calm["new.csv"]["changed"] is False
    assert moved["shifted.csv"]["changed"] is True


def test_names_of_classes_travel_from_the_model_to_the_labels() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=900)
    rate = 1 / (1 + np.exp(-z))
    y = np.where(rng.random(900) < rate, "yes", "no")
    lines = [f"r{i},{value:.6f},{label}" for i, (value, label) in enumerate(zip(z, y, strict=True))]
    Path("cal.csv").write_text("\n".join(["key,logit_yes,answer", *lines]))
    fit = ("--scores", "logit_yes", "--label", "answer", "--id", "key", "--classes", "no,yes")
    run("fit", "cal.csv", *fit, "--method", "platt", "-o", "m.hcal")
    unlabelled = [line.rpartition(",")[0] for line in lines]
    Path("new.csv").write_text("\n".join(["key,logit_yes", *unlabelled]))
    labelled = [f"{line.split(',')[0]},{line.rpartition(',')[2]}" for line in lines]
    Path("labels.csv").write_text("\n".join(["key,answer", *reversed(labelled)]))
    run("watch", "new.csv", "--model", "m.hcal", *STORE)
    late = ("watch", "labels.csv", "--model", "m.hcal", *STORE, *STATE, "--late-labels")
    run(*late, "--label", "answer")
    monitor = hcal.Monitor.load("watch.json")
    assert monitor.n == 900
    assert monitor.classes == ("no", "yes")
    assert monitor.alarm is None


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("late.csv", "--late-labels", "--id", "key"), "need --store"),
        (("late.csv", "--late-labels", "--id", "key", "--store", "no.sqlite"), "there is no"),
        (("week.csv", "--scores", "p", "--input", "probs", *STORE), "name its column with --id"),
        (("both.csv", *SCORES, "--label", "y", *STORE), "has labels: leave out --store"),
        (("week.csv", "--scores", "p", "--input", "probs"), "has no labels"),
    ],
)
def test_what_does_not_fit_together_is_one_sentence(command: tuple[str, ...], words: str) -> None:
    write_scores("week.csv", 0, 10)
    Path("late.csv").write_text("key,y\n1,1")
    Path("both.csv").write_text("key,p,y\n1,0.5,1")
    assert words in " ".join(run("watch", *command, code=1).stderr.split())
