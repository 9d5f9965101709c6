"""The learning curve: its page is made from its results, and shows what it claims."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import DATA
from studies import learning_curve as curve


def test_the_page_and_the_figure_are_those_of_the_results() -> None:
    rows, page = curve.read(curve.RESULTS), curve.PAGE.read_text(encoding="utf-8")
    for mark, lines in (("groups", curve.summary(rows)), ("tasks", curve.by_task(rows))):
        assert page.split(f"<!-- {mark} -->\n")[1].split("\n<!-- end -->")[0] == "\n".join(lines)
    assert curve.FIGURE.read_text(encoding="utf-8") == curve.figure(rows) + "\n"


def test_the_default_is_never_worse_than_the_better_of_both_by_more_than_a_hundredth() -> None:
    found = curve.ratios(curve.read(curve.RESULTS))
    assert {task for _, task, _ in found} == {*curve.joint.TASKS, *curve.TABLES}
    for size in curve.SIZES:
        assert np.median([v for (_, _, n), v in found.items() if n == size]) <= 1.01, size


@pytest.mark.data
def test_a_stored_row_is_what_the_study_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (DATA / "tabular").exists():
        pytest.skip("needs the shared data: ../shared/data/tabular or HCAL_DATA")
    monkeypatch.setattr(curve, "SIZES", (30,))
    stored = {
        (r["draw"], r["method"]): float(r["nll"])
        for r in curve.read(curve.RESULTS)
        if r["task"] == "magic_hgb" and r["rows"] == "30"
    }
    fresh = curve.cells("magic_hgb", curve.METHODS, "test")
    assert len(fresh) == len(stored) == 9
    for r in fresh:  # solvers on another machine end in another last digit
        assert float(r["nll"]) == pytest.approx(stored[str(r["draw"]), r["method"]], rel=1e-4)
