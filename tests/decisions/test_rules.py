"""A rule counts classes in the order of the rows that it was chosen on, whatever the order of the new columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import hcal
from hcal.cli.app import app
from hcal.cli.options import class_number

NAMES = ["no", "yes"]
TURNED = ["yes", "no"]
COST = {"fn": 20, "fp": 1}
TABLE = np.array([[0.0, 1.0], [20.0, 0.0]])
METRICS = ["recall", "precision", "accuracy"]

RULES: dict[str, Callable[..., Any]] = {
    "threshold": lambda *rows, **names: hcal.thresholds(*rows, cost=COST, **names),
    "table": lambda *rows, **names: hcal.thresholds(*rows, cost=TABLE, **names),
    "abstention": lambda *rows, **names: hcal.abstain_below(*rows, error=0.1, **names),
    "judge": lambda *rows, **names: hcal.abstain_below(*rows, error=0.6, positive=1, **names),
}
ESTIMATED = ["threshold", "table"]


def labelled(n: int = 2000) -> tuple[pd.DataFrame, np.ndarray]:
    """Return probabilities of the classes "no" and "yes", and labels as 0 and 1."""
    rng = np.random.default_rng(0)
    p = rng.beta(1, 4, n)
    y = (rng.random(n) < p).astype(int)
    return pd.DataFrame({"no": 1 - p, "yes": p}), y


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("saved", [False, True])
def test_columns_in_another_order_are_decided_alike(kind: str, saved: bool, tmp_path: Path) -> None:
    frame, y = labelled()
    chosen: Any = RULES[kind](frame, np.array(NAMES)[y])
    rule = chosen
    if saved:
        rule = tmp_path / "rule.json"
        rule.write_text(chosen.to_json(), encoding="utf-8")
    turned = frame[TURNED]

    decisions = hcal.decide(frame, rule)

    assert set(decisions) <= {*NAMES, None}
    assert set(decisions) & set(NAMES)
    for probs, classes in [
        (turned, None),
        (turned, TURNED),
        (turned.to_numpy(), TURNED),
        (frame.to_numpy(), NAMES),
        (frame.to_numpy(), None),
    ]:
        np.testing.assert_array_equal(hcal.decide(probs, rule, classes=classes), decisions)
    with pytest.raises(ValueError, match="the columns are a, b, and the classes are no, yes"):
        hcal.decide(frame.to_numpy(), rule, classes=["a", "b"])
    with pytest.raises(ValueError, match="no, maybe"):
        hcal.decide(frame.rename(columns={"yes": "maybe"}), rule)


@pytest.mark.parametrize("kind", RULES)
def test_columns_are_remembered_where_classes_have_no_names(kind: str, tmp_path: Path) -> None:
    frame, y = labelled()
    columns = {"no": "p_no", "yes": "p_yes"}
    frame = frame.rename(columns=columns)
    rule: Any = RULES[kind](frame, y)
    path = tmp_path / "rule.json"
    path.write_text(rule.to_json(), encoding="utf-8")
    decisions = hcal.decide(frame, rule)
    for form in (rule, path):
        np.testing.assert_array_equal(hcal.decide(frame[["p_yes", "p_no"]], form), decisions)


@pytest.mark.parametrize("kind", ESTIMATED)
def test_columns_in_another_order_are_estimated_alike(kind: str) -> None:
    frame, y = labelled()
    rule: Any = RULES[kind](frame, np.array(NAMES)[y])
    expected = hcal.estimate(frame, METRICS, rule=rule)
    turned = frame[TURNED]
    for probs, classes in [(turned, None), (turned, TURNED), (turned.to_numpy(), TURNED)]:
        estimates = hcal.estimate(probs, METRICS, rule=rule, classes=classes)
        if kind == "threshold":
            assert estimates.values == pytest.approx(expected.values)
        assert estimates["accuracy"].value == pytest.approx(expected["accuracy"].value)


def test_a_threshold_without_a_rule_is_of_the_positive_class() -> None:
    frame, _ = labelled()
    risk = frame["yes"].to_numpy()
    of_no = hcal.estimate(risk, METRICS, rule=0.7, positive=0)
    same = hcal.estimate(1 - risk, METRICS, rule=0.7)
    assert of_no.values == pytest.approx(same.values)
    assert "class 0 from P = 0.7" in of_no.decision


def test_a_rule_and_another_positive_class_are_refused() -> None:
    frame, y = labelled()
    rule = hcal.thresholds(frame, y, cost=COST)
    with pytest.raises(ValueError, match="positive is class 0, and the rule is a threshold of P"):
        hcal.estimate(frame, METRICS, rule=rule, positive=0)


@pytest.mark.parametrize("kind", ESTIMATED)
def test_a_saved_rule_brings_its_costs(kind: str, tmp_path: Path) -> None:
    frame, y = labelled()
    rule: Any = RULES[kind](frame, y)
    path = tmp_path / "rule.json"
    path.write_text(rule.to_json(), encoding="utf-8")
    assert hcal.estimate(frame, rule=path)["cost"] == hcal.estimate(frame, rule=rule)["cost"]


def test_a_saved_rule_with_broken_costs_is_refused(tmp_path: Path) -> None:
    frame, y = labelled()
    content = hcal.thresholds(frame, y, cost=COST).to_json()
    path = tmp_path / "rule.json"
    path.write_text(content.replace('"fn": 20.0', '"fn": "many"'), encoding="utf-8")
    with pytest.raises(ValueError, match="'wanted' must hold the costs"):
        hcal.decide(frame, path)


def test_the_commands_find_the_classes_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame, y = labelled()
    frame.assign(y=np.array(NAMES)[y]).to_csv("labelled.csv", index=False)
    frame[TURNED].to_csv("turned.csv", index=False)

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--input", "probs"])
        assert result.exit_code == 0, result.output
        return result.output

    chosen = ["decide", "labelled.csv", "--scores", "no,yes", "--label", "y"]
    first = run(*chosen, "--cost", "fn=20,fp=1", "--save", "rule.json", "--json")
    turned = ["turned.csv", "--scores", "yes,no", "--rule", "rule.json", "--json"]
    decided = hcal.decide(frame, "rule.json")
    count = int((decided == "yes").sum())
    assert f'"yes": {count}' in first
    assert f'"yes": {count}' in run("decide", *turned)
    recall = hcal.estimate(frame, rule="rule.json")["recall"].value
    assert f"{recall}" in run("estimate", *turned)


def test_the_positive_class_is_the_second_also_where_another_is_named_1() -> None:
    assert class_number(None, [1, 2]) == 1
    assert class_number("1", [1, 2]) == 0


def test_a_capacity_below_the_rows_of_the_highest_probability_says_why_none_is_decided() -> None:
    y = np.arange(200) % 2
    chosen = hcal.thresholds(np.full(200, 0.3), y, capacity=0.05)
    assert chosen.share.value == 0
    assert "100 % of the rows share the highest probability" in chosen.notes[0]


def test_a_table_of_costs_with_names_is_put_in_the_order_of_the_classes() -> None:
    frame, y = labelled()
    labels = np.array(NAMES)[y]
    expected = RULES["table"](frame, labels)
    table = pd.DataFrame(TABLE, index=NAMES, columns=NAMES)
    for named in (table, table.loc[TURNED, TURNED], table[TURNED], table.reset_index(drop=True)):
        chosen: Any = hcal.thresholds(frame, labels, cost=named)
        assert chosen.cost == expected.cost
        estimates = hcal.estimate(frame, ["cost"], cost=named, classes=NAMES)
        assert estimates["cost"].value == pytest.approx(expected.predicted_cost)
    with pytest.raises(ValueError, match="the table of costs is of a, b, and the classes are no"):
        hcal.thresholds(frame, labels, cost=table.set_axis(["a", "b"], axis=1))
    p = frame.to_numpy()
    assert hcal.thresholds(p, y, cost=table).cost == expected.cost
    with pytest.raises(ValueError, match="the table of costs is of"):
        hcal.thresholds(p, y, cost=table[TURNED])


def test_a_threshold_with_intervals_needs_20_groups() -> None:
    frame, y = labelled()
    with pytest.raises(ValueError, match="draws whole groups and needs at least 20; there are 3"):
        hcal.thresholds(frame, y, cost=COST, groups=np.arange(len(y)) % 3)
