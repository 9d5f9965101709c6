"""A month in the life of a model, on made-up days: gate, serve, labels that come late, drift, alarm, refit, gate.

python examples/month/month.py FOLDER

A churn model scores 600 customers a day, and whether they left is known a week later. On day 8 a campaign brings
other customers, for whom the model states too much. The guide to operating a model quotes what this program prints.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

import hcal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
from app import build

FIRST_DAY = date(2026, 3, 1)
CAMPAIGN = 8
DAYS = 30
ROWS_A_DAY = 600
#: Labels are known after so many days, and the refit waits for the labels of so many days since the campaign.
DELAY = 7
DAYS_TO_REFIT = 5
#: How a file of this model's scores is read.
COLUMNS = ["--scores", "score", "--input", "logits", "--label", "churned", "--id", "customer"]
CLASSES = ["--classes", "stay,churn"]
#: What a calibrator must do before it is used.
GATE = ["--require", "grade>=few", "--require", "ece_ew<0.05"]


@dataclass(frozen=True)
class Day:
    """The customers of one day: ids, the model's scores, and what became known a week later."""

    number: int
    ids: list[str]
    scores: np.ndarray
    churned: np.ndarray


def customers(number: int, rows: int = ROWS_A_DAY) -> Day:
    """Make up the customers of a day; from the campaign on the model's scores are too high."""
    rng = np.random.default_rng(1000 + number)
    log_odds = rng.normal(-1.0, 1.3, rows)
    offset = 0.3 if number < CAMPAIGN else 1.5
    scores = 1.6 * log_odds + offset
    churned = rng.random(rows) < 1 / (1 + np.exp(-log_odds))
    ids = [f"c{number:02}-{row:04}" for row in range(rows)]
    return Day(number, ids, scores.round(4), churned)


def write_table(path: Path, days: list[Day]) -> None:
    """Write labelled rows of days as a csv table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["customer", "score", "churned"])
        for day in days:
            words = np.where(day.churned, "churn", "stay")
            table.writerows(zip(day.ids, day.scores.tolist(), words.tolist(), strict=True))


def run(folder: Path, *arguments: str) -> int:
    """Run an hcal command in the folder, say it as a shell would show it, and return its exit code."""
    print("$", shlex.join(["hcal", *arguments]))
    command = [sys.executable, "-m", "hcal", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        if line.startswith(("failed:", "error:")):
            print(line)
    if done.returncode:
        print(f"exit code {done.returncode}")
    return done.returncode


def fit_and_gate(folder: Path, version: int, days: list[Day]) -> bool:
    """Fit a calibrator on every other row of some days, and pass it through the gate on the others."""
    for name, start in (("fit", 0), ("test", 1)):
        chosen = [
            Day(day.number, day.ids[start::2], day.scores[start::2], day.churned[start::2])
            for day in days
        ]
        write_table(folder / f"{name}-{version}.csv", chosen)
    model = f"model-{version}.hcal"
    run(folder, "fit", f"fit-{version}.csv", *COLUMNS, *CLASSES, "--method", "platt", "-o", model)
    return gate(folder, model, f"test-{version}.csv", f"report-{version}.html")


def gate(folder: Path, model: str, rows: str, page: str) -> bool:
    """Say whether a model passes the gate on labelled rows."""
    return run(folder, "report", rows, "--model", model, "-o", page, *GATE) == 0


@dataclass
class Clock:
    """The day that it is in the story."""

    number: int = 0

    def __call__(self) -> date:
        return FIRST_DAY + timedelta(days=self.number)


@contextmanager
def serving(folder: Path, version: int, clock: Clock) -> Iterator[str]:
    """Serve a version of the model on a free port of this machine, and yield the address."""
    model = str(folder / f"model-{version}.hcal")
    app = build(model, str(folder / f"state-{version}"), clock=clock)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def post(address: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send JSON to the server and return its answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


@dataclass
class Story:
    """What happened when, for the reader and for the test."""

    drift_days: list[int] = field(default_factory=list)
    alarm_day: int | None = None
    refit_day: int | None = None
    old_model_passes: bool | None = None
    new_model_passes: bool | None = None
    alarm_after_refit: bool = False
    joined: int = 0
    unknown: int = 0
    twice: int = 0


def say(clock: Clock, text: str) -> None:
    print(f"day {clock.number:2}: {text}")


def play(folder: Path) -> Story:
    """Play the month in an empty folder."""
    story = Story()
    clock = Clock()
    past = [customers(-number, 2000) for number in (1, 2, 3)]
    assert fit_and_gate(folder, 1, past)
    say(clock, "model-1 passes the gate and is served")
    with serving(folder, 1, clock) as address:
        while story.refit_day is None and clock.number < DAYS:
            clock.number += 1
            live_a_day(address, clock, past[0].scores, story)
            known_since_campaign = clock.number - DELAY - CAMPAIGN + 1
            if story.alarm_day is not None and known_since_campaign == DAYS_TO_REFIT:
                story.refit_day = clock.number
    refit(folder, clock, story)
    reference = customers(CAMPAIGN).scores
    first_day = clock.number + 1
    with serving(folder, 2, clock) as address:
        while clock.number < DAYS:
            clock.number += 1
            answer = live_a_day(address, clock, reference, story, first_day=first_day)
            story.alarm_after_refit |= bool(answer.get("alarm"))
    say(
        clock,
        f"{story.joined:,} labels met their scores; {story.unknown:,} unknown, {story.twice} twice",
    )
    return story


def live_a_day(
    address: str, clock: Clock, reference: np.ndarray, story: Story, *, first_day: int = 1
) -> dict[str, Any]:
    """Score the customers of the day, look for drift, and send the labels that became known."""
    day = customers(clock.number)
    for start in range(0, len(day.ids), 200):
        rows = slice(start, start + 200)
        scores = [[0.0, score] for score in day.scores[rows].tolist()]
        post(f"{address}/predict", {"scores": scores, "ids": day.ids[rows]})
    drift = hcal.drift(reference, day.scores)
    if drift.changed:
        if not story.drift_days:
            say(clock, f"no label yet, and drift: {drift}")
        story.drift_days.append(clock.number)
    day_of_labels = clock.number - DELAY
    if day_of_labels < first_day:
        return {}
    labels = customers(day_of_labels)
    words = np.where(labels.churned, "churn", "stay").tolist()
    body = {"ids": [*labels.ids, labels.ids[0], "nobody"], "labels": [*words, words[0], "stay"]}
    answer = post(f"{address}/labels", body)
    story.joined += answer["joined"]
    story.unknown += answer["unknown"]
    story.twice += answer["twice"]
    if answer["alarm"] and story.alarm_day is None:
        story.alarm_day = clock.number
        say(clock, f"ALARM, with the labels of day {day_of_labels}")
    return answer


def refit(folder: Path, clock: Clock, story: Story) -> None:
    """Fit on the labelled rows since the campaign; the old model fails the gate that the new one passes."""
    days = [customers(CAMPAIGN + number) for number in range(DAYS_TO_REFIT)]
    say(clock, f"refit on {DAYS_TO_REFIT} days of labels since the campaign")
    story.new_model_passes = fit_and_gate(folder, 2, days)
    say(clock, "the old model on the same rows:")
    story.old_model_passes = gate(folder, "model-1.hcal", "test-2.csv", "old.html")
    say(clock, "model-2 is served, with a state of its own")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "month")
    target.mkdir(exist_ok=True)
    play(target)
