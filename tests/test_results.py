"""What every result can do, on those that evaluation returns."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.numerics import softmax
from hcal.results import HTML_ROWS, REPR_LINES, Result, html_table
from helpers import synthetic

LOGITS, Y = synthetic(300, 3)
P = softmax(LOGITS)

RESULTS: dict[str, Callable[[], Result]] = {
    "hcal/evaluation/1": lambda: hcal.evaluate(
        P, Y, metrics=["ece_ew", "nll"], test=True, baseline=P
    ),
    "hcal/reliability/1": lambda: hcal.reliability(P, Y, level="class-wise"),
}


@pytest.mark.parametrize("schema", RESULTS)
def test_a_result_is_plain_values_a_table_and_a_few_lines(schema: str) -> None:
    result = RESULTS[schema]()
    content = result.to_dict()
    assert content["schema"] == schema
    assert set(json.loads(result.to_json())) == set(content)
    assert_plain(content)
    assert len(result.to_frame()) == len(result.to_records()) > 0
    assert len(repr(result).splitlines()) <= REPR_LINES
    assert len(result._repr_html_()) < 300_000


def assert_plain(value: Any) -> None:
    if isinstance(value, dict):
        assert all(type(name) is str for name in value)
        value = list(value.values())
    if type(value) is list:
        for entry in value:
            assert_plain(entry)
    else:
        assert value is None or type(value) in (str, int, float, bool), type(value)


@pytest.mark.parametrize("schema", RESULTS)
def test_a_notebook_shows_a_result_once(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt
    import rich.jupyter

    def refuse(*_: Any) -> None:
        raise AssertionError("rich displays the result by itself")

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(rich.jupyter, "display", refuse)
    plt.close("all")
    result = RESULTS[schema]()
    shown = result._repr_html_()
    assert ("<table" in shown) + ("<img" in shown) == 1
    assert ("<img" in shown) == hasattr(result, "plot")
    assert str(result)
    assert plt.get_fignums() == []  # what pyplot keeps, a notebook shows again


def test_long_tables_are_cut_and_names_are_escaped() -> None:
    table = html_table([{"name": "<b>", "array": [1, 2]}] * (HTML_ROWS + 5))
    assert "&lt;b&gt;" in table
    assert "array" not in table
    assert "5 more rows" in table


def test_values_that_do_not_exist_are_null_in_json_and_nan_in_python() -> None:
    single = hcal.evaluate(P[:1], Y[:1], metrics=["skce"])
    assert np.isnan(single.to_dict()["metrics"]["skce"]["value"])
    assert json.loads(single.to_json())["metrics"]["skce"]["value"] is None
