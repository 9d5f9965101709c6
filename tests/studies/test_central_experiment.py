"""The central experiment: its trainings are those of the library, its scores those of the metrics."""

from __future__ import annotations

import csv
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hcal

torch = pytest.importorskip("torch")

from hcal.maps.presets import build_map  # noqa: E402
from hcal.objective.torch_loss import torch_nll  # noqa: E402
from hcal.solvers.adam import AdamSettings, train  # noqa: E402
from hcal.solvers.monitors import SELECTORS, epoch_ece_ew  # noqa: E402
from studies import central_experiment as central  # noqa: E402
from studies import central_parallel as parallel  # noqa: E402
from studies.central_losses import OBJECTIVES, SCORES, brier  # noqa: E402
from studies.central_table import Table, merge_tables  # noqa: E402
from studies.central_training import Schedule, Start, build_members, train_together  # noqa: E402


@pytest.fixture(scope="module")
def task() -> central.Task:
    return central.generated_task("temperature-k4-n300-s1")


@pytest.mark.parametrize("name", ["piecewise-10", "monotonic-2", "ensemble-16"])
@pytest.mark.parametrize("objective", ["h", "nll"])
def test_a_member_is_trained_as_the_library_trains(task: central.Task, name: str, objective: str) -> None:
    x, y = torch.from_numpy(task.x_cal), torch.from_numpy(task.y_cal)
    settings = Schedule(epochs=60, plateau=5, patience=15)
    (member,) = build_members([Start(name, "published", 3)], x, y, OBJECTIVES[objective](), settings)
    train_together([member])
    new = build_map(name, x, init="published", random_state=3).to(x.dtype)
    done = train(
        new, x, y, OBJECTIVES[objective](), monitor=epoch_ece_ew, select=SELECTORS,
        settings=AdamSettings(epochs=60, plateau=5, patience=15),
    )  # fmt: skip
    for select, choice in member.choices().items():
        best = done.best[select]
        assert choice.epoch == best.epoch
        assert choice.score == pytest.approx(best.score, rel=1e-5)
        new.load_state_dict(best.parameters)
        torch.testing.assert_close(member.predict(select, x), new(x).detach(), rtol=1e-4, atol=1e-6)


def test_a_stopped_member_keeps_its_choice(task: central.Task) -> None:
    x, y = torch.from_numpy(task.x_cal), torch.from_numpy(task.y_cal)
    start = [Start("piecewise-10", "identity", 0)]
    short, long = (
        build_members(start, x, y, torch_nll, Schedule(epochs=e, plateau=3, patience=4)) for e in (40, 90)
    )
    train_together(short)
    train_together(long)
    assert float(short[0].active) == 0  # else this test says nothing
    assert short[0].choices() == long[0].choices()


def test_scores_are_the_metrics() -> None:
    rng = np.random.default_rng(0)
    probs = hcal.softmax(rng.normal(size=(500, 6)) * 2)
    y = rng.integers(0, 6, 500)
    tensors = torch.from_numpy(probs), torch.from_numpy(y)
    for name in ("ece_ew", "dece", "ks", "cwece_a", "tcwece", "nll", "brier", "mean_confidence"):
        ours = float(SCORES[name](*tensors))
        assert ours == pytest.approx(float(getattr(hcal.metrics, name)(probs, y)), abs=1e-12), name


def test_proper_rivals_are_least_at_the_truth_and_improper_ones_are_not() -> None:
    truth = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)

    def expected(objective: str, p: torch.Tensor) -> float:
        rows = p.expand(3, 3)
        losses = [OBJECTIVES[objective]()(rows[i : i + 1], torch.tensor([i])) for i in range(3)]
        return float(sum(t * v for t, v in zip(truth, losses, strict=True)))

    flatter = 0.95 * truth + 0.05 / 3  # what smoothed labels ask for
    for objective, proper in (("nll", True), ("brier", True), ("focal", False), ("smoothing", False)):
        assert (expected(objective, truth) < expected(objective, flatter)) is proper, objective
    assert float(brier(truth[None], torch.tensor([0]))) == pytest.approx(0.09 + 0.04 + 0.01)


def test_every_start_is_trained_once_and_stands_for_those_it_equals(task: central.Task) -> None:
    maps = ("piecewise-1", "monotonic-2", "ensemble-16")
    x, y = torch.from_numpy(task.x_cal), torch.from_numpy(task.y_cal)
    members = build_members(central.starts_of(maps, 3), x, y, torch_nll, Schedule(epochs=1))
    for init in central.STARTS:
        for seed in range(3):
            found = central.candidates(members, init, seed)
            assert [m.start.map for m in found] == list(maps)
            (net,) = (m for m in found if m.start.map == "monotonic-2")
            assert (net.start.init, net.start.seed) == (init, seed)


def test_a_run_continues_where_it_ended(tmp_path: Path, task: central.Task) -> None:
    out, every = tmp_path / "c.csv", tmp_path / "all.csv"
    common = ["--data", str(tmp_path), "--out", str(out), "--all-maps", str(every), "--seeds", "1"]
    np.savez(
        tmp_path / "tiny.npz", logits_cal=task.x_cal, y_cal=task.y_cal, probs_test=np.exp(task.x_test),
        logits_test=task.x_test, y_test=task.y_test,
    )  # fmt: skip
    small = [
        *common,
        "--tasks",
        "tiny",
        "--epochs",
        "2",
        "--maps",
        "piecewise-1",
        "--schedules",
        "early-stop",
    ]
    central.main([*small, "--objectives", "nll"])
    first = out.read_text()
    central.main([*small, "--objectives", "nll,brier"])
    text = out.read_text()
    assert text.startswith(first)
    rows = list(csv.DictReader(text.splitlines()))
    assert [r["objective"] for r in rows].count("uncal") == 1
    assert [r["objective"] for r in rows].count("nll") == 6  # two starts, three selectors
    assert {r["map"] for r in rows if r["objective"] != "uncal"} == {"piecewise-1"}
    central.main([*small, "--objectives", "focal", "--minutes", "0"])
    assert out.read_text() == text  # nothing is begun when the time is over


def test_processes_share_the_groups_and_their_files_become_one(tmp_path: Path, task: central.Task) -> None:
    for name in ("large", "small"):
        rows = slice(300 if name == "large" else 40)
        np.savez(
            tmp_path / f"{name}.npz", logits_cal=task.x_cal[rows], y_cal=task.y_cal[rows],
            logits_test=task.x_test, y_test=task.y_test,
        )  # fmt: skip
    out = tmp_path / "c.csv"
    tasks = parallel.order_tasks([central.load_task(tmp_path, n) for n in ("small", "large", task.name)])
    assert [t.name for t in tasks] == ["large", "small", task.name]  # a generated task comes last
    groups = [parallel.Group(t.name, "nll", "early-stop", t.x_cal.size) for t in tasks[:2]]
    wanted = parallel.Wanted(tmp_path, out, ["piecewise-1"], 1, 2, float("inf"))
    late = replace(wanted, until=0.0)
    parallel.work(0, "cpu", late, groups, nullcontext())
    assert len(groups) == 2  # the time was over
    for number in (0, 1):
        parallel.work(number, "cpu", wanted, one := [groups.pop()], nullcontext())
        assert not one
    parts = [wanted.part(number) for number in (0, 1)]
    assert merge_tables(out, parts) == 2 * 7  # before, and two starts × three selectors
    text = out.read_text()
    assert [line.split(",")[0] for line in text.splitlines()[1::7]] == ["small", "large"]
    assert merge_tables(out, parts) == 0
    assert out.read_text() == text


def test_a_choice_among_maps_may_be_made_in_parts(tmp_path: Path) -> None:
    some, others = (Table(tmp_path / f"{n}.csv") for n in ("some", "others"))
    for table, name, scores in (
        (some, "piecewise-1", (0.1, 0.3, 0.2)),
        (others, "ensemble-16", (0.2, 0.1, 0.2)),
    ):
        key = {"task": "t", "objective": "h", "schedule": "early-stop", "start": "identity", "seed": 0}
        table.append([{"task": "t", "objective": "uncal", "seed": 0, "nll": 1.0}])
        table.append(
            [
                {**key, "map": name, "selector": selector, "selected_by": score}
                for selector, score in zip(SELECTORS, scores, strict=True)
            ]
        )
    assert merge_tables(some.path, [others.path]) == 0
    with some.path.open() as file:
        assert [r["map"] for r in csv.DictReader(file)] == ["", "piecewise-1", "ensemble-16", "piecewise-1"]


def test_one_start_alone_is_the_same_as_beside_the_other(tmp_path: Path, task: central.Task) -> None:
    rows = {}
    for starts in (central.STARTS, central.STARTS[1:]):
        table = Table(tmp_path / f"{len(starts)}.csv")
        central.run(
            iter([task]), table, None, maps=["piecewise-1", "monotonic-2"], seeds=1, starts=starts,
            objectives=["nll"], schedules={"early-stop": Schedule(epochs=3)},
        )  # fmt: skip
        rows[len(starts)] = table.path.read_text().splitlines()
    assert len(rows[1]) == 5  # header, before, three selectors
    assert rows[1] == [line for line in rows[2] if ",published," not in line]
