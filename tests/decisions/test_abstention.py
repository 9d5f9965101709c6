"""Abstention: the curve against brute force, and the proof against simulations with a known truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import hcal
from hcal.decisions import read_rule


def answers(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return overconfident P(right) and whether the answers are right: with the probability confidence^1.5."""
    rng = np.random.default_rng(seed)
    sure = rng.uniform(0.5, 1, n)
    return sure, (rng.random(n) < sure**1.5).astype(int)


def true_risk(threshold: float) -> float:
    low = max(threshold, 0.5)
    return 1 - (1 - low**2.5) / (2.5 * (1 - low))


def test_the_proof_holds_at_all_thresholds_together() -> None:
    draws = 300
    above_bound = 0
    above_error = 0
    answered = []
    for seed in range(draws):
        sure, right = answers(1500, seed)
        kept = hcal.abstain_below(sure, right, error=0.15, positive=1)
        bounds = kept.bounds
        risk = [true_risk(t) for t in bounds.threshold.tolist()]
        above_bound += bool((np.array(risk) > bounds.at_most).any())
        above_error += kept.proven and true_risk(kept.threshold) > 0.15
        answered.append(kept.coverage)
    assert above_bound <= 0.05 * draws
    assert above_error <= 0.05 * draws
    assert np.mean(answered) > 0.2  # 0.41 with unlimited rows


def test_the_proof_holds_where_confidences_are_equal() -> None:
    """The rarest confidence errs the most, so which values a sample divides at tells something of its errors."""
    value = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    share = np.array([0.3, 0.2, 0.2, 0.15, 0.1, 0.05])
    error = np.array([0.0, 0.05, 0.02, 0.2, 0.1, 0.3])
    draws = 400
    failures = 0
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        place = rng.choice(6, 300, p=share)
        right = (rng.random(300) >= error[place]).astype(int)
        kept = hcal.abstain_below(value[place], right, error=0.1, positive=1, confidence=0.8)
        answered = value >= kept.bounds.threshold[:, None]
        answers = answered * share
        risk = (answers * error).sum(axis=1) / answers.sum(axis=1)
        failures += bool((risk > kept.bounds.at_most).any())
    assert failures <= 0.2 * draws


def test_groups_are_counted_and_not_their_rows() -> None:
    """Thirty copies of each answer: a proof that counted rows would be wrong in most draws."""
    draws = 60
    failures = {True: 0, False: 0}
    for seed in range(draws):
        sure, right = answers(150, seed)
        copies = np.repeat(np.arange(150), 30)
        for grouped in failures:
            groups = copies if grouped else None
            kept = hcal.abstain_below(
                sure[copies], right[copies], error=0.2, positive=1, groups=groups
            )
            risk = np.array([true_risk(t) for t in kept.bounds.threshold.tolist()])
            failures[grouped] += bool((risk > kept.bounds.at_most + 1e-9).any())
    assert failures[True] <= 3
    assert failures[False] > 15


def test_the_curve_and_its_areas_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), 400)
    y = (p.cumsum(axis=1) < rng.random((400, 1))).sum(axis=1)
    sure = p.max(axis=1)
    wrong = (p.argmax(axis=1) != y).astype(float)
    kept = hcal.abstain_below(p, y, error=0.3)
    risks = np.cumsum(wrong[np.argsort(-sure)]) / np.arange(1, 401)
    assert kept.aurc == pytest.approx(risks.mean())
    best_risks = np.cumsum(np.sort(wrong)) / np.arange(1, 401)
    assert kept.best_aurc == pytest.approx(best_risks.mean())
    assert kept.auroc == pytest.approx(roc_auc_score(1 - wrong, sure))
    np.testing.assert_allclose(kept.curve.risk, risks)
    for record in kept.to_records():
        answered = sure >= record["threshold"]
        assert answered.mean() == pytest.approx(record["coverage"])
        assert wrong[answered].mean() == pytest.approx(record["risk"])
    decided = hcal.decide(p, kept)
    assert (decided >= 0).mean() == pytest.approx(kept.coverage)
    np.testing.assert_array_equal(decided[decided >= 0], p.argmax(axis=1)[decided >= 0])


def test_equal_confidences_are_answered_together() -> None:
    sure = np.repeat([0.6, 0.9], 300)
    two_of_three = np.arange(300) % 3 > 0
    nearly_all = np.arange(300) % 30 > 0
    right = np.concatenate([two_of_three, nearly_all]).astype(int)
    kept = hcal.abstain_below(sure, right, error=0.1, positive=1)
    assert kept.coverage == 0.5
    assert 0.6 < kept.threshold <= 0.9
    assert len(kept.bounds.coverage) == 2
    assert "where the confidence is above 0.6: 50 % of the rows" in str(kept)
    shuffled = np.random.default_rng(0).permutation(600)
    again = hcal.abstain_below(sure[shuffled], right[shuffled], error=0.1, positive=1)
    assert again.to_dict() == kept.to_dict()
    half = np.float32(sure)
    rule = hcal.abstain_below(half, right, error=0.1, positive=1)
    assert (hcal.decide(half, rule) == 1).sum() == 300


def test_what_cannot_be_proven_is_said() -> None:
    sure, right = answers(60, 0)
    nothing = hcal.abstain_below(sure, right, error=0.03, positive=1)
    assert not nothing.proven
    assert (hcal.decide([1.0, 0.9], nothing) == -1).all()
    assert "No threshold is proven to keep the error at 3 %" in str(nothing)
    always_right = np.ones(60, dtype=int)
    certain = hcal.abstain_below(np.ones(60), always_right, error=0.01, positive=1)
    assert certain.rows_needed is not None
    assert 200 < certain.rows_needed < 900
    enough = np.ones(certain.rows_needed)
    assert hcal.abstain_below(enough, enough.astype(int), error=0.01, positive=1).coverage == 1.0
    half_right = np.arange(500) % 2
    hopeless = hcal.abstain_below(np.full(500, 0.7), half_right, error=0.1, positive=1)
    assert hopeless.rows_needed is None
    assert np.isnan(certain.auroc)


def test_rows_that_would_prove_it_are_counted_in_groups() -> None:
    right = np.ones(600, dtype=int)
    alone = hcal.abstain_below(np.ones(600), right, error=0.005, positive=1)
    groups = np.arange(600) // 30
    grouped = hcal.abstain_below(np.ones(600), right, error=0.005, positive=1, groups=groups)
    assert alone.rows_needed is not None
    assert grouped.rows_needed is not None
    assert grouped.rows_needed > 20 * alone.rows_needed
    enough = np.ones(grouped.rows_needed)
    proof = hcal.abstain_below(
        enough, enough.astype(int), error=0.005, positive=1, groups=np.arange(len(enough)) // 30
    )
    assert proof.coverage == 1.0


def test_bad_questions_get_one_line() -> None:
    sure, right = answers(100, 0)
    for error in (0, 1, 2.0, True, "x"):
        with pytest.raises(ValueError, match="error must lie between 0 and 1"):
            hcal.abstain_below(sure, right, error=error)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive must be 0 or 1"):
        hcal.abstain_below(sure, right, error=0.1, positive=3)
    with pytest.raises(ValueError, match="positive= is for two classes"):
        hcal.abstain_below(np.full((4, 3), 1 / 3), [0, 1, 2, 0], error=0.1, positive=1)


def test_a_saved_result_decides_and_the_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hcal.cli.app import app

    monkeypatch.chdir(tmp_path)
    sure, right = answers(3000, 0)
    kept = hcal.abstain_below(sure, right, error=0.15, positive=1)
    Path("rule.json").write_text(kept.to_json(), encoding="utf-8")
    assert read_rule("rule.json") == kept.rule
    probs = np.stack([1 - sure, sure], axis=1)
    np.savez("answers.npz", probs=probs, y=right)
    words = ["decide", "answers.npz", "--error", "0.15", "--positive", "1", "--save", "saved.json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "proven at 95 %" in result.output
    assert json.loads(Path("saved.json").read_text(encoding="utf-8"))["coverage"] == kept.coverage
    np.testing.assert_array_equal(hcal.decide(sure, "saved.json"), hcal.decide(sure, kept))
    result = CliRunner().invoke(app, ["decide", "answers.npz", "--rule", "saved.json", "--json"])
    expected = (sure < kept.threshold).sum()
    assert json.loads(result.output)["decided"][""] == expected


def test_there_is_a_picture() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    sure, right = answers(3000, 0)
    axes = hcal.abstain_below(sure, right, error=0.15, positive=1).plot()
    assert axes.get_xlim() == (0, 100)
    pyplot.close("all")
