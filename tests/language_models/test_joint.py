"""Several confidences of one answer: better together than each alone, calibrated, by task, and saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

import hcal
from command_line import run
from hcal.io.model_file import read_model, write_model
from hcal.language_models import JointConfidence
from hcal.language_models.joint import odds_of_kind
from hcal.metrics import nll

KINDS = {"said": "stated", "mean": "log_probs", "grader": "logits"}


def answers(n: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return three confidences, whether the answer is right, and its task; a task of mathematics is harder."""
    rng = np.random.default_rng(seed)
    known = rng.normal(size=n)
    task = rng.choice(["math", "trivia"], n)
    right = rng.random(n) < expit(1.5 * known + np.where(task == "math", -1, 1))
    confidences = {
        "said": expit(known + rng.normal(1.5, 1, n)).round(2),
        "mean": -np.exp(-0.7 * (known + rng.normal(0, 1, n))),
        "grader": (5 + 2 * known + rng.normal(0, 3, n)).round(),
    }
    return confidences, right.astype(int), task


def test_together_they_are_better_than_each_alone_and_calibrated() -> None:
    old, right, _ = answers(3000, 0)
    new, truth, _ = answers(20_000, 1)
    joint = JointConfidence(KINDS).fit(old, right)
    loss = nll(joint.predict_proba(new), truth)
    for column, kind in KINDS.items():
        alone = JointConfidence({column: kind}).fit(old, right)
        assert loss < nll(alone.predict_proba(new), truth) - 0.004
    assert hcal.metrics.ece_ew(joint.predict_proba(new), truth) < 0.02
    assert all(value > 0 for value in joint.coefficients_.values())


def test_without_priors_it_is_a_logistic_regression() -> None:
    old, right, _ = answers(5000, 0)
    joint = JointConfidence(KINDS, "uncal").fit(old, right)
    odds = np.column_stack(
        [
            logit(old["said"].clip(0.005, 0.995)),
            old["mean"] - np.log1p(-np.exp(old["mean"])),
            old["grader"],
        ]
    )
    other = LogisticRegression(C=np.inf, max_iter=1000).fit(odds, right)
    np.testing.assert_allclose(joint.predict_proba(old), other.predict_proba(odds), atol=2e-3)


def test_a_task_gets_a_correction_of_its_own() -> None:
    old, right, task = answers(3000, 0)
    new, truth, new_task = answers(20_000, 1)
    common = JointConfidence(KINDS).fit(old, right).predict_proba(new)
    by_task = JointConfidence(KINDS).fit(old, right, by={"task": task})
    assert nll(by_task.predict_proba(new, by={"task": new_task}), truth) < nll(common, truth) - 0.05
    with pytest.raises(ValueError, match="pass the task of each row"):
        by_task.predict_proba(new)
    with pytest.raises(ValueError, match="the fit had no segments"):
        JointConfidence(KINDS).fit(old, right).predict_proba(new, by=new_task)


def test_what_says_nothing_gets_little_weight() -> None:
    old, right, _ = answers(400, 0)
    old["noise"] = np.random.default_rng(5).normal(size=400)
    joint = JointConfidence({**KINDS, "noise": "logits"}).fit(old, right)
    assert abs(joint.coefficients_["noise"]) < 0.2


@pytest.mark.parametrize("library", [pd.DataFrame, dict])
def test_columns_are_found_by_name(library: Any) -> None:
    old, right, _ = answers(500, 0)
    joint = JointConfidence(KINDS).fit(library(old), right)
    turned = {name: old[name] for name in ("grader", "said", "mean")}
    expected = joint.predict_proba(old)
    np.testing.assert_array_equal(joint.predict_proba(library(turned | {"x": right})), expected)
    with pytest.raises(ValueError, match="no column 'grader' of confidences; there are said, mean"):
        joint.predict_proba({"said": old["said"], "mean": old["mean"]})


def test_a_weight_counts_rows_and_groups_stay_together() -> None:
    old, right, _ = answers(600, 0)
    weight = np.where(np.arange(600) % 2, 2, 1)
    twice = np.repeat(np.arange(600), weight)
    heavy = JointConfidence(KINDS, "uncal").fit(old, right, weight)
    copies = {name: values[twice] for name, values in old.items()}
    repeated = JointConfidence(KINDS, "uncal").fit(copies, right[twice])
    np.testing.assert_allclose(heavy.predict_proba(old), repeated.predict_proba(old), atol=1e-9)
    # Copies of a row in other folds would make the calibrator too sure, groups keep them together.
    grouped = JointConfidence(KINDS).fit(copies, right[twice], groups=twice)
    assert grouped.fit_.rows == len(twice)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("stated", [0.5, 85.0], "'said' is stated, and row 1 is 85"),
        ("probs", [0.5, -0.1], "'said' is probs, and row 1 is -0.1"),
        ("log_probs", [-0.5, 0.3], "'said' is log_probs, and row 1 is 0.3"),
        ("logits", [0.5, np.inf], "'said' is logits, and row 1 is inf"),
        ("stated", [0.5, np.nan], "'said' is stated, and row 1 is nan"),
        ("stated", ["high", "low"], "must hold one number a row"),
        ("percent", [0.5, 0.5], "the kind of 'said' must be one of stated, probs"),
    ],
)
def test_what_is_no_confidence_is_refused(kind: str, values: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JointConfidence({"said": kind}).fit({"said": values}, [0, 1])


def test_rows_that_do_not_belong_together_are_refused() -> None:
    old, right, _ = answers(100, 0)
    joint = JointConfidence(KINDS)
    with pytest.raises(ValueError, match="different lengths"):
        joint.fit(old | {"grader": old["grader"][1:]}, right)
    with pytest.raises(ValueError, match="correct needs both"):
        joint.fit(old, np.ones(100, dtype=int))
    with pytest.raises(ValueError, match="correct has the index of the scores in another order"):
        joint.fit(pd.DataFrame(old), pd.Series(right)[::-1])
    columns = {name: pd.Series(values) for name, values in old.items()}
    turned = columns | {"mean": columns["mean"][::-1]}
    with pytest.raises(ValueError, match="mean has the index of the scores in another order"):
        joint.fit(turned, right)
    with pytest.raises(ValueError, match="is not fitted yet"):
        joint.predict_proba(old)


def test_a_very_long_answer_has_finite_log_odds() -> None:
    odds = odds_of_kind([-np.inf, -5000.0, -1e-30, 0.0], "log_probs", "sum")
    assert np.isfinite(odds).all()
    assert (np.diff(odds) >= 0).all()


def test_a_file_keeps_it_and_what_takes_scores_refuses_it(tmp_path: Path) -> None:
    old, right, task = answers(400, 0)
    joint = JointConfidence(KINDS).fit(old, right, by={"task": task})
    path = tmp_path / "joint.hcal"
    hcal.save(joint, path)
    loaded: Any = hcal.load(path)
    by = {"task": task}
    np.testing.assert_array_equal(loaded.predict_proba(old, by=by), joint.predict_proba(old, by=by))
    assert loaded.coefficients_ == joint.coefficients_
    for call in (hcal.evaluate, hcal.certify):
        with pytest.raises(ValueError, match="joins several confidences of an answer"):
            call(joint, old, right)
    np.savez(tmp_path / "rows.npz", logits=np.eye(2), y=[0, 1])
    result = run("evaluate", tmp_path / "rows.npz", "--model", path, code=1)
    assert "apply and info read it" in result.stderr


@pytest.mark.parametrize(
    "facts",
    [
        {"mean": [0.0]},
        {"deviation": [1.0, 0.0, 1.0]},
        {"coefficient": [1.0, "x", 1.0]},
        {"intercept": None},
        {"more": 1},
    ],
)
def test_a_changed_file_is_refused(facts: dict[str, Any], tmp_path: Path) -> None:
    old, right, _ = answers(200, 0)
    path = tmp_path / "joint.hcal"
    hcal.save(JointConfidence(KINDS, "platt").fit(old, right), path)
    header, arrays = read_model(path)
    write_model(path, header | {"facts": header["facts"] | facts}, arrays)
    with pytest.raises(ValueError, match="is not a sound hcal model file"):
        hcal.load(path)


@pytest.mark.filterwarnings("ignore::hcal.CalibrationWarning")
def test_a_whole_weight_is_that_many_answers_and_none_is_no_answer() -> None:
    old, right, task = answers(400, 2)
    weight = np.arange(400) % 4
    copies = np.repeat(np.arange(400), weight)
    repeated = {column: values[copies] for column, values in old.items()}
    for by in (None, task):
        again = None if by is None else by[copies]
        weighed = JointConfidence(KINDS, "platt").fit(old, right, weight, by=by)
        counted = JointConfidence(KINDS, "platt").fit(repeated, right[copies], by=again)
        np.testing.assert_allclose(
            weighed.predict_proba(old, by=by), counted.predict_proba(old, by=by), atol=1e-7
        )


def test_kinds_that_change_after_the_fit_wait_for_the_next_one(tmp_path: Path) -> None:
    """Kinds in another order had taken the coefficients of other confidences."""
    old, right, _ = answers(400, 3)
    joint = JointConfidence(KINDS, "platt").fit(old, right)
    expected = joint.predict_proba(old)
    coefficients = dict(joint.coefficients_)
    joint.set_params(kinds=dict(reversed(KINDS.items())))
    hcal.save(joint, tmp_path / "joint.hcal")
    for model in (joint, hcal.load(tmp_path / "joint.hcal")):
        np.testing.assert_array_equal(model.predict_proba(old), expected)
        assert model.coefficients_ == coefficients


def test_columns_of_other_answers_are_refused() -> None:
    old, right, _ = answers(200, 4)
    frame = pd.DataFrame(old, index=[f"answer {k}" for k in range(200)])
    turned = pd.Series(right, index=frame.index)[::-1]
    columns = {column: frame[column] for column in frame}
    for confidences in (frame, columns):
        calls: dict[str, dict[str, Any]] = {
            "correct": {"correct": turned},
            "sample_weight": {"correct": right, "sample_weight": turned},
            "groups": {"correct": right, "groups": turned},
            "by": {"correct": right, "by": turned},
        }
        for name, arguments in calls.items():
            with pytest.raises(ValueError, match=f"^{name} has the index of the scores in another"):
                JointConfidence(KINDS).fit(confidences, **arguments)


# -- files ------------------------------------------------------------------------------------------


def write_answers(path: Path, n: int, seed: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Write confidences, whether the answer is right, and its task; return them."""
    confidences, right, task = answers(n, seed)
    beside = {"correct": np.where(right, "yes", "no"), "task": task, "key": np.arange(n)}
    pd.DataFrame(confidences | beside).to_csv(path, index=False)
    return confidences, right, task


LISTING = ",".join(f"{column}={kind}" for column, kind in KINDS.items())


@pytest.mark.parametrize("segmented", [False, True])
def test_commands_join_the_columns_of_a_table(segmented: bool, tmp_path: Path) -> None:
    old, right, task = write_answers(tmp_path / "cal.csv", 600, 0)
    new, new_right, new_task = write_answers(tmp_path / "new.csv", 300, 1)
    model = tmp_path / "joint.hcal"
    by = ("--by", "task") if segmented else ()
    options = ("--confidences", LISTING, "--id", "key", *by)
    answer = run("fit", tmp_path / "cal.csv", *options, "--method", "platt", "-o", model, "--json")
    joint = JointConfidence(KINDS, "platt").fit(
        old, right, by={"task": task} if segmented else None
    )
    assert json.loads(answer.stdout)["coefficients"] == pytest.approx(joint.coefficients_)

    command = ("apply", model, tmp_path / "new.csv", "-o", tmp_path / "p.csv", "--keep", "--json")
    assert json.loads(run(*command).stdout)["rows"] == 300
    table = pd.read_csv(tmp_path / "p.csv")
    expected = joint.predict_proba(new, by={"task": new_task} if segmented else None)
    np.testing.assert_allclose(table[["probs_0", "probs_1"]], expected, atol=1e-12)
    np.testing.assert_array_equal(table["key"], np.arange(300))
    np.testing.assert_array_equal(table["correct"], new_right)
    np.testing.assert_array_equal(table["task"], new_task)
    assert "said " in run("info", model).output


def test_what_a_model_said_is_read_as_in_a_file_of_answers(tmp_path: Path) -> None:
    path = tmp_path / "cal.csv"
    confidences, *_ = write_answers(path, 200, 0)
    model = tmp_path / "joint.hcal"
    run("fit", path, "--confidences", "said=stated", "-o", model, "-q")
    said = [f"{100 * share:.0f} %" for share in confidences["said"]]
    texts = tmp_path / "texts.csv"
    pd.DataFrame({"said": said}).to_csv(texts, index=False)
    for file, output in ((path, "a.npz"), (texts, "b.npz")):
        run("apply", model, file, "-o", tmp_path / output, "-q")
    numbers, words = (np.load(tmp_path / name)["probs"] for name in ("a.npz", "b.npz"))
    np.testing.assert_allclose(words, numbers, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--confidences", "said"), "each column once with its kind"),
        (("--confidences", "said=stated,said=probs"), "each column once with its kind"),
        (("--confidences", "said=guess"), "must be one of stated"),
        (("--confidences", "task=logits"), "the column 'task' must hold numbers, and row 0 is"),
        (("--confidences", "nowhere=logits"), "has no 'nowhere'"),
        (("--confidences", "said=stated", "--label", "task"), "must be true or false"),
        (("--confidences", "said=stated", "--scores", "mean"), "leave out --scores"),
        (("--confidences", "said=stated", "--jobs", "2"), "leave out --jobs"),
    ],
)
def test_what_cannot_be_joined_is_refused(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "cal.csv"
    write_answers(path, 50, 0)
    result = run("fit", path, *options, "-o", tmp_path / "m.hcal", code=1)
    assert message in result.stderr
    assert not (tmp_path / "m.hcal").exists()
