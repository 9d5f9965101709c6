"""What every result can do, on one of each: a new result class fails here until it has a row in the table."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.evaluation.ranking import Ranking
from hcal.numerics import softmax
from hcal.operation.fitting import model_facts
from hcal.reporting import measure_report
from hcal.reporting.page import verdict_of
from hcal.results import HTML_ROWS, REPR_LINES, Result, html_table
from helpers import synthetic

LOGITS, Y = synthetic(300, 3)
P = softmax(LOGITS)
RISK = softmax(LOGITS[:, :2])[:, 1]
EVENT = (np.random.default_rng(0).random(300) < RISK).astype(int)
HALF = np.where(np.arange(300) % 2, "a", "b")


def applied(folder: Path) -> Result:
    calibrator = hcal.make_calibrator("ts").fit(LOGITS, Y)
    np.savez(folder / "rows.npz", logits=LOGITS)
    return hcal.apply(calibrator, folder / "rows.npz", folder / "out.npz")


def joined(folder: Path) -> Result:
    store = hcal.ScoreStore(folder / "scores.sqlite")
    store.add(range(300), P)
    return store.join([1, 2, 999], [0, 1, 2])


def evaluation(_: Path) -> Result:
    return hcal.evaluate(P, Y, metrics=["ece_ew", "nll"], test=True, baseline=P)


def validation(_: Path) -> Result:
    from sklearn.linear_model import LogisticRegression

    return hcal.validate(LogisticRegression(), LOGITS[:, :2], EVENT, resamples=20)


RESULTS: dict[str, Callable[[Path], Result]] = {
    "hcal/abstention/1": lambda _: hcal.abstain_below(P, Y, error=0.4),
    "hcal/apply/1": applied,
    "hcal/calibration_test/1": lambda _: hcal.metrics.calibration_test(P, Y, resamples=99),
    "hcal/certify/1": lambda _: hcal.certify(P, Y, by=HALF),
    "hcal/clinical/1": lambda _: hcal.clinical(RISK, EVENT),
    "hcal/compare/1": lambda _: hcal.compare(
        LOGITS[:150], Y[:150], LOGITS[150:], Y[150:], methods=["ts"], progress=False, n_jobs=1
    ),
    "hcal/cost-table/1": lambda _: hcal.thresholds(P, Y, cost=1 - np.eye(3)),
    "hcal/cross_fit/1": lambda _: hcal.cross_fit("ts", LOGITS, Y, resamples=5),
    "hcal/drift/1": lambda _: hcal.drift(LOGITS[:150], LOGITS[150:]),
    "hcal/evaluate/1": evaluation,
    "hcal/gate/1": lambda folder: hcal.require(evaluation(folder), ["nll<0", "ece_ew<1"]),
    "hcal/info/1": lambda _: model_facts(hcal.make_calibrator("ts").fit(LOGITS, Y)),
    "hcal/joined/1": joined,
    "hcal/estimate/1": lambda _: hcal.estimate(P, by=HALF),
    "hcal/certify_out_of_fold/1": lambda _: hcal.certify("ts", LOGITS, Y, out_of_fold=True),
    "hcal/ranking/1": lambda _: Ranking.of("nll", {"ts": P[:9, 0], "iso": P[:9, 1]}),
    "hcal/reliability/1": lambda _: hcal.reliability(P, Y, level="class-wise"),
    "hcal/report/1": lambda _: verdict_of(measure_report(LOGITS, Y, by=HALF)),
    "hcal/thresholds/1": lambda _: hcal.thresholds(RISK, EVENT, cost={"fn": 5, "fp": 1}),
    "hcal/validation/1": validation,
}


@cache
def subclasses() -> dict[str, type[Result]]:
    """Return every result class of the package by its schema."""
    for module in pkgutil.walk_packages(hcal.__path__, "hcal."):
        if ".integrations" not in module.name and not module.name.endswith(("__main__", "_triton")):
            importlib.import_module(module.name)
    return {kind.schema: kind for kind in below(Result) if kind.__module__.startswith("hcal.")}


def below(kind: type[Result]) -> Iterator[type[Result]]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """Return each result, made once."""
    return cache(lambda schema: RESULTS[schema](tmp_path_factory.mktemp("result")))


def test_every_result_class_is_in_the_table() -> None:
    assert set(subclasses()) == set(RESULTS)


@pytest.mark.parametrize("schema", RESULTS)
def test_a_result_is_plain_values_a_table_and_a_few_lines(
    schema: str, results: Callable[[str], Result]
) -> None:
    result = results(schema)
    assert type(result) is subclasses()[schema]
    content = result.to_dict()
    assert content["schema"] == schema
    assert len(content) > 1
    assert set(json.loads(result.to_json())) == set(content)
    assert_plain(content)
    assert len(result.to_frame()) == len(result.to_records()) > 0
    assert 0 < len(repr(result).splitlines()) <= REPR_LINES
    assert len(repr(result)) < 1200
    assert str(result)


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
def test_a_notebook_shows_a_result_once_and_small(
    schema: str, results: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib.pyplot as plt
    import rich.jupyter

    result = results(schema)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(rich.jupyter, "display", refuse)
    plt.close("all")
    html = result._repr_html_()
    assert ("<table" in html) + ("<img" in html) == 1
    assert ("<img" in html) == hasattr(result, "plot")
    assert len(html) < (300_000 if "<img" in html else 20_000)
    assert not hasattr(result, "_repr_mimebundle_")  # a notebook would show that one
    assert str(result)
    assert plt.get_fignums() == []  # what pyplot keeps, a notebook shows again


def refuse(*_: Any) -> None:
    raise AssertionError("rich displays the result by itself")


def test_long_tables_are_cut_and_names_are_escaped() -> None:
    table = html_table([{"name": "<b>", "array": [1, 2]}] * (HTML_ROWS + 5))
    assert "&lt;b&gt;" in table
    assert "array" not in table
    assert "5 more rows" in table


def test_values_that_do_not_exist_are_null_in_json_and_nan_in_python() -> None:
    single = hcal.evaluate(P[:1], Y[:1], metrics=["skce"])
    assert np.isnan(single.to_dict()["metrics"]["skce"]["value"])
    assert json.loads(single.to_json())["metrics"]["skce"]["value"] is None
