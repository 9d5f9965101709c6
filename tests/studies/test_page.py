"""The reproduction page: every number on it comes from the results files."""

from __future__ import annotations

import copy
import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import hcal
from hcal.bench.catalog import GROUPS, PAPER_METHODS
from hcal.bench.store import Cell, Key, Results, export_results, read_results
from studies import findings, loss_curves, objectives_section
from studies.__main__ import app
from studies.ablations import ablation_methods
from studies.central_experiment import generated_task
from studies.page import page_text
from studies.published import PAPER_H, printed_rows, read_published

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"


@pytest.fixture
def ablations() -> Results:
    rng = np.random.default_rng(1)
    metrics = [m for group in GROUPS.values() for m in group]
    sets = ("objective", "objective-patient", "robustness", "near-uniform", "published-piecewise")
    names = ["uncal", "ts", *(m.name for s in sets for m in ablation_methods(s))]
    cells = []
    for task in ("alpha", "beta", "gamma"):
        before = dict(zip(metrics, rng.uniform(0.05, 0.2, len(metrics)), strict=True))
        for name in names:
            factor = 0.3 if name.startswith(("obj-h/", "end-h/")) else 0.8
            if task == "gamma" and name == "obj-h/top":
                factor = 4.0  # an unguarded fit that was stopped too early
            post = {m: v * factor * rng.uniform(0.95, 1.05) for m, v in before.items()}
            facts = {
                "mean_confidence": 0.8,
                "collapsed": 0.0,
                "order_inversions": 11.0,
                "argmax_changes": 3.0,
            }
            notes = {"status": {"status": "ok"}, "info": {"epochs": 161}}
            cells.append(Cell(Key(task, name, 0), before, post | facts, notes))
    return Results(cells)


@pytest.fixture
def paper() -> Results:
    cells = []
    for i, task in enumerate(("resnet110_c10", "resnet101_cars", "resnet101scratch_cars")):
        for j, method in enumerate((*PAPER_METHODS, PAPER_H)):
            values = dict.fromkeys(
                ("ece_s1", "ece_ew", "cwece_a", "nll", "tcwece"), 0.01 * (1 + i) + 0.0013 * (1 + j)
            )
            cells.append(Cell(Key(task, method, 0), values, values, {"status": {"status": "ok"}}))
    return Results(cells)


def renamed(results: Results) -> Results:
    """Call the first made-up task by the name of the paper's own."""
    cells = []
    for key, cell in results.cells.items():
        task = "cifar10_resnet110" if key.task == "alpha" else key.task
        cells.append(Cell(Key(task, key.method, key.seed), cell.pre, cell.post, cell.notes))
    return Results(cells)


def scaled(results: Results, factor: float) -> Results:
    """Every stored number times a factor, ratios changed too."""
    cells = copy.deepcopy(list(results.cells.values()))
    for cell in cells:
        cell.post = {k: v * factor for k, v in cell.post.items()}
        cell.pre = {k: v * factor**2 for k, v in cell.pre.items()}
        for name, note in cell.notes.items():
            if "boot" in note:
                cell.notes[name] = {"boot": [v * factor for v in note["boot"]]}
    return Results(cells)


def decimals(text: str) -> list[str]:
    """All numbers with a decimal point; whole numbers are counts and names."""
    return re.findall(r"(?<![\w.])[-+]?\d+\.\d+", text)


def test_no_number_is_typed_by_hand(results: Results, ablations: Results, paper: Results) -> None:
    main = renamed(results)
    factors = (1.0, 1.7)
    pages = [page_text(scaled(main, f), scaled(paper, f**1.5), scaled(ablations, f), {}) for f in factors]
    one, two = (_without_ranks(p) for p in pages)
    pairs = list(zip(decimals(one), decimals(two), strict=True))
    assert len(pairs) > 500
    stayed = [a for a, b in pairs if a == b and float(a) != 0]
    assert stayed == []


def _without_ranks(text: str) -> str:
    """Drop the table of ranks, which no scaling can change."""
    start = text.index("### Mean rank")
    return text[:start] + text[text.index("## Accuracy and cost") :]


def test_verdicts_follow_the_numbers(results: Results, ablations: Results, paper: Results) -> None:
    gap, wins, count = findings.objective_differences(ablations, "top-label", "nll")
    assert gap.verdict == "noise"  # one task of three undone
    patient = objectives_section.renamed(ablations, "end-", "obj-")
    gap, wins, count = findings.objective_differences(patient, "top-label", "nll")
    assert gap.verdict == "lower"
    assert wins == count == 10
    text = page_text(renamed(results), paper, ablations, {})
    before, after = text.split("The schedule is part of the reason")
    assert "- top-label, against NLL: **no difference beyond the noise**" in before
    assert "- top-label, against NLL: **yes**" in after
    assert "On gamma the h fit stopped after 161 epochs" in after
    assert "on 3 of 3 tasks, by more than a fifth on alpha, beta, gamma" in after
    assert "The printed baselines agree" in text or "each other's" in text
    worse = copy.deepcopy(list(ablations.cells.values()))
    for cell in worse:
        if cell.key.method.startswith(("obj-h/", "end-h/")):
            cell.post = {k: v * 10 for k, v in cell.post.items()}
    text = page_text(renamed(results), paper, Results(worse), {})
    assert "- top-label, against NLL: **no, worse**" in text


def test_collapsed_predictors_are_named(results: Results) -> None:
    table = findings.collapse_table(results)
    assert [r.label for r in table.rows] == ["gamma, ts", "gamma, h_class"]
    assert "a predictor collapsed on gamma" in page_text(results, None, None, {})


def test_rank_table_uses_the_selector_of_the_level(results: Results, paper: Results) -> None:
    main = renamed(results)
    table = findings.rank_on_task(main, "cifar10_resnet110", paper)
    by_label = {r.label: r for r in table.rows}
    assert by_label["KS"].values[0] == "h_top"
    assert by_label["tCWECE"].values[0] == "h_class"
    ours = main.value("cifar10_resnet110", "h_top", "ece_s1")
    others = [main.value("cifar10_resnet110", m, "ece_s1") for m in ("ts", "iso")]
    assert by_label["ECE^s (r=1)"].values[2] == f"{1 + sum(v < ours for v in others)} of 3"
    assert by_label["ECE^s (r=1)"].values[6] == "21 of 21 (0.0373)"


def test_page_is_written_with_its_figures(
    results: Results, ablations: Results, paper: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    # another file name than that of the kept results, and a single seed
    single = Results([c for key, c in renamed(results).cells.items() if key.seed == 0])
    for name, r in (("main", single), ("abl", ablations), ("paper", paper)):
        export_results(r, tmp_path / f"{name}.csv")
    monkeypatch.chdir(tmp_path)  # by the command that `make pages` calls; figures cost the time
    asked = ["page", "main.csv", "-o", "page.md", "--published", "paper.csv", "--ablations", "abl.csv"]
    made = CliRunner().invoke(app, asked)
    assert made.exit_code == 0, made.output
    written = made.stdout.split()
    text = Path(written[0]).read_text()
    assert text.startswith("# The paper, reproduced")
    assert all(Path(p).exists() for p in written)
    pictures = set(re.findall(r"\]\((assets/[^)]+)\)", text))
    assert {
        str(p.relative_to(tmp_path)) for p in (tmp_path / "assets" / "reproduction").iterdir()
    } == pictures
    for section in ("own task", "Does the h objective", "Near-uniform", "piecewise map inverts", "CARS rows"):
        assert section in text


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared")
def test_the_papers_numbers_are_read_whole_and_the_cars_rows_are_swapped() -> None:
    published = read_published(SHARED / "paper_tables.csv", SHARED / "paper" / "h-calibration.tex")
    assert published.value("resnet110_c10", "ts", "ece_ew") == pytest.approx(0.01132, abs=5e-6)
    assert published.value("resnet110_c10", PAPER_H, "ece_s1") == 0.0043
    assert findings.swapped(published)
    rows = printed_rows((SHARED / "paper" / "h-calibration.tex").read_text())
    assert rows[Key("resnet101_cars (printed)", "ts", 0)] == 0.0297
    rank, count, _ = findings.rank_among(published, "resnet110_c10", PAPER_H, list(PAPER_METHODS), "ece_s1")
    assert (rank, count) == (2, 21)


def test_the_kept_page_is_what_the_kept_results_say(tmp_path: Path) -> None:
    main, page = ROOT / "results" / "shared.csv", ROOT / "docs" / "reproduction.md"
    if not main.exists() or not page.exists():
        pytest.skip("no complete run is kept yet")
    extra, paper = (ROOT / "results" / f"{n}.csv" for n in ("ablations", "published"))
    sources = [p for p in (main, paper, extra) if p.exists()]
    loaded = [read_results(p) if p.exists() else None for p in (main, paper, extra)]
    links = {
        p.stem: f"assets/reproduction/{p.name}"
        for p in (ROOT / "docs" / "assets" / "reproduction").glob("*.png")
    }
    assert loaded[0] is not None
    losses = loss_curves.read_losses(curves := ROOT / "results" / "loss_curves.csv")
    sources.append(curves)
    assert page_text(loaded[0], loaded[1], loaded[2], links, sources, losses) == page.read_text()


def test_losses_are_told_by_part(tmp_path: Path) -> None:
    task = generated_task("temperature-k3-n300-s0")
    path = tmp_path / "loss_curves.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, loss_curves.COLUMNS)
        writer.writeheader()
        writer.writerows(loss_curves.curves_of(task, 40))
    losses = loss_curves.read_losses(path)
    assert [epoch for epoch, _ in losses[task.name]["test"]] == [0, 20, 40]
    module = hcal.HCalibrationLoss(scale=1.0)
    for part, x, y in (("calibration", task.x_cal, task.y_cal), ("test", task.x_test, task.y_test)):
        first = losses[task.name][part][0][1]
        assert first == pytest.approx(float(module(torch.from_numpy(x).exp(), torch.from_numpy(y))), rel=1e-3)
    (row,) = loss_curves.loss_table(losses).rows
    assert row.values[2] < row.values[0]  # it is trained
    assert row.values[6] == pytest.approx(np.mean([v for _, v in losses[task.name]["chance"]]))


def test_the_map_and_the_bars_show_the_averages(results: Results) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    from studies import overview

    metric = next(m for m in overview.PAPER_METRICS if m in results.metrics)
    expected = results.table(metric, relative=True).mean(axis=0)
    np.testing.assert_allclose(overview.averages(results, metric, relative=True), expected)
    drawn = overview.bars(results, relative=True).axes[0].patches
    np.testing.assert_allclose([b.get_height() for b in drawn], np.sort(expected))
    words = [t.get_text() for t in overview.error_map(results, None).axes[0].texts]
    assert f"{expected[0]:.2f}" in words
    plt.close("all")
