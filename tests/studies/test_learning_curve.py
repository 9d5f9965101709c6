"""The learning curve: its means by hand, and the sentence of the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from studies import learning_curve as study


def row(method: str, size: int, ratio: float, task: str = "a") -> dict[str, str]:
    names = {"group": "networks", "task": task, "method": method}
    return names | {"rows": str(size), "ratio": str(ratio)}


def test_means_are_geometric_over_tasks_and_plain_over_draws() -> None:
    rows = [row("ts", 100, 0.4), row("ts", 100, 0.6), row("ts", 100, 0.32, task="b")]
    assert study.mean_ratio(rows, "networks", "ts", 100) == pytest.approx(0.4)


def test_rows_saved_is_the_first_size_that_is_better_than_all_others() -> None:
    sizes = study.SIZES["networks"]
    ratios = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    rows = [row("pool", size, ratio) for size, ratio in zip(sizes, ratios, strict=True)]
    rows += [row(method, size, 0.75) for method in study.METHODS[1:] for size in sizes]
    assert study.rows_saved(rows, "networks") == 500
    assert study.rows_saved([r | {"ratio": "1"} for r in rows], "networks") is None


def test_methods_see_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(150, 3)), rng.integers(0, 3, 150)
    seen: list[tuple[str, bytes]] = []

    def predict(method: str, cal: np.ndarray, *arguments: Any) -> np.ndarray:
        seen.append((method, cal.tobytes()))
        return np.full((150, 3), 1 / 3)

    monkeypatch.setattr(study, "predict", predict)
    monkeypatch.setattr(study, "any_task", lambda task: ((*data, *data), "logits"))
    rows = list(study.curve("tables", "made up"))
    assert {r["ratio"] for r in rows} == {1.0}
    assert sum(r["rows"] == 100 for r in rows) == study.DRAWS * len(study.METHODS)
    assert sum(r["rows"] == 250 for r in rows) == len(study.METHODS)  # all rows, so one draw
    first = [chosen for method, chosen in seen[1:] if method == "pool"]
    second = [chosen for method, chosen in seen[1:] if method == "ts"]
    assert first == second


def test_the_committed_curve_says_what_the_page_says() -> None:
    rows = study.read_rows(study.FILE)
    assert study.rows_saved(rows, "networks") == 1000
    assert study.rows_saved(rows, "tables") == 1000
