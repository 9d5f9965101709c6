"""Users play: tables with ids and missing labels, two classes, few rows, language models, models that remember."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from command_line import run
from hcal.io import Request, read
from helpers import synthetic
from lm_eval_files import write_samples

NAMES = ["cat", "dog", "eel", "fox"]


#: How the tables of two classes, and of four, are asked for.
TWO = ("--scores", "p_*", "--label", "y", "--id", "id")
FOUR = ("--scores", "logit_*", "--label", "target", "--id", "key")


def table(path: Path, seed: int, rows: int = 300) -> Path:
    """Write a table with an id, named columns in an odd order, a text label and a site."""
    logits, y = synthetic(rows, seed=seed)
    order = [2, 0, 3, 1] if seed % 2 else [0, 1, 2, 3]
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["key", *(f"logit_{NAMES[k]}" for k in order), "target", "site"])
        for i, (row, label) in enumerate(zip(logits, y, strict=True)):
            cells = [float(row[k]) for k in order]
            out.writerow([f"r{i:04}", *cells, NAMES[label], "ab"[i % 2]])
    return path


def two_classes(path: Path, seed: int, rows: int = 500, *, unlabelled: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.normal(size=rows) - 2
    y = rng.random(rows) < 1 / (1 + np.exp(-z))
    p = 1 / (1 + np.exp(-2 * z))
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["id", "p_well", "p_sick", "y"])
        for i in range(rows):
            label = "" if i < unlabelled else ("sick" if y[i] else "well")
            out.writerow([i, f"{1 - p[i]:.6f}", f"{p[i]:.6f}", label])
    return path


def test_a_model_remembers_how_it_was_asked(tmp_path: Path) -> None:
    """fit with columns; then apply, evaluate, certify and info need no options."""
    cal, new, model, out = (tmp_path / n for n in ("cal.csv", "new.csv", "m.hcal", "out.csv"))
    table(cal, 2), table(new, 3)
    run("fit", cal, *FOUR, "--method", "ts", "-o", model)
    run("apply", model, new, "-o", out, "--keep")
    head, first = out.read_text().splitlines()[:2]
    assert head == "key,site,probs_cat,probs_dog,probs_eel,probs_fox,target"  # in the model's order
    assert first.startswith("r0000,a,")
    logits, y = synthetic(300, seed=3)
    expected = hcal.load(model).predict_proba(logits)
    got = read(out, Request(id="key", label="target"))
    np.testing.assert_allclose(got.values, expected, rtol=1e-12)
    evaluation = json.loads(run("evaluate", new, "--model", model, "--by", "site", "--json").stdout)
    assert evaluation["metrics"]["nll"]["value"] == pytest.approx(hcal.metrics.nll(expected, y))
    assert len(evaluation["groups"]) == 2
    assert "class" in run("certify", new, "--model", model).stdout
    output = run("info", model).stdout
    for words in (
        "Temperature scaling",
        "cat, dog, eel, fox",
        "scores logit_*",
        "on 300 rows",
        "cal.csv",
    ):
        assert words in output
    assert json.loads(run("info", model, "--json").stdout)["fit"]["request"]["id"] == "key"
    wrong = table(tmp_path / "wrong.csv", 2).read_text().replace("logit_cat", "cat_score")
    (tmp_path / "wrong.csv").write_text(wrong)
    assert (
        "not those of the model"
        in run("apply", model, tmp_path / "wrong.csv", "-o", out, code=1).stderr
    )


def test_twenty_files_give_twenty_files_of_the_same_names(tmp_path: Path) -> None:
    model = tmp_path / "m.hcal"
    days = tmp_path / "days"
    days.mkdir()
    for i in range(5):
        table(days / f"day{i}.csv", i, rows=40)
    run("fit", table(tmp_path / "cal.csv", 2), *FOUR, "--method", "ts", "-o", model, "-q")
    summary = json.loads(run("apply", model, days, "-o", tmp_path / "out", "--json").stdout)
    assert summary["files"] == 5
    assert summary["rows"] == 200
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == [f"day{i}.csv" for i in range(5)]


def test_rows_without_a_label(tmp_path: Path) -> None:
    cal = two_classes(tmp_path / "cal.csv", 0, unlabelled=7)
    model = tmp_path / "m.hcal"
    refused = run("fit", cal, *TWO, "-o", model, code=1).stderr
    assert "--unlabelled drop" in refused
    assert "7" in refused
    done = run("fit", cal, *TWO, "--unlabelled", "drop", "-o", model)
    assert "7 rows without a label were dropped" in done.stderr
    assert "493 × 2" in done.stdout
    page = tmp_path / "r.html"
    run("report", cal, "--model", model, "--unlabelled", "drop", "-o", page)
    run("watch", cal, "--model", model, "--unlabelled", "drop")
    run("apply", model, cal, "-o", tmp_path / "p.csv")  # a label is not needed


def test_two_classes_speak_of_the_positive_one(tmp_path: Path) -> None:
    cal = two_classes(tmp_path / "cal.csv", 0, 2000)
    new = two_classes(tmp_path / "new.csv", 1, 2000)
    model = tmp_path / "m.hcal"
    page = tmp_path / "r.html"
    run("fit", cal, *TWO, "-o", model, "-q")
    evaluated = run("evaluate", new, "--model", model, "--metrics", "nll").stdout
    assert "P(sick) stated" in evaluated
    assert "observed" in evaluated
    command = ("evaluate", new, "--model", model, "--metrics", "nll", "--confidence", 0.9)
    evaluation = json.loads(run(*command, "--json").stdout)
    assert 0.7 < evaluation["clinical"]["slope"]["value"] < 1.3
    output = run("certify", new, "--model", model).stdout
    assert "P(sick): stated" in output
    assert "tolerance" in output
    output = run(
        "report", new, "--model", model, "-o", page, "--threshold", 0.1, "--cost", "fn=10,fp=1"
    ).stdout
    assert "P(sick)" in output
    assert "P(sick)" in page.read_text(encoding="utf-8")
    assert (
        "--cost takes fn=10,fp=1" in run("report", new, "-o", page, "--cost", "10", code=1).stderr
    )


def test_a_small_study_is_cross_fitted(tmp_path: Path) -> None:
    study = two_classes(tmp_path / "study.csv", 0, 250)
    page = tmp_path / "r.html"
    run("report", study, *TWO, "--cross-fit", "--method", "platt", "-o", page)
    text = page.read_text(encoding="utf-8")
    assert "each row predicted by a fit without it" in text
    output = run("certify", study, *TWO, "--out-of-fold", "iso").stdout
    assert "250" in output


def test_a_certificate_of_applied_probabilities_asks_for_the_model(tmp_path: Path) -> None:
    """Apply, then certify, was a way around the check of the rows of the fit."""
    cal = two_classes(tmp_path / "cal.csv", 0)
    model = tmp_path / "m.hcal"
    run("fit", cal, *TWO, "--method", "platt", "-o", model, "-q")
    for name in ("p.npz", "p.parquet"):
        run("apply", model, cal, "-o", tmp_path / name)
        options = () if name == "p.npz" else ("--label", "y", "--id", "id")
        refusal = run("certify", tmp_path / name, *options, code=1).stderr
        assert "written by hcal apply with the model" in refusal
        assert "--fresh" in refusal
        run("certify", tmp_path / name, *options, "--fresh")
        run("evaluate", tmp_path / name, *options, "--metrics", "nll")


def test_compare_many_tasks_resumes_and_prints_tables(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for i in range(2):
        a, ya = synthetic(150, seed=i)
        b, yb = synthetic(150, seed=i + 5)
        np.savez(tasks / f"t{i}.npz", logits_cal=a, y_cal=ya, logits_test=b, y_test=yb)
    results = tmp_path / "r.csv"
    command = (
        "compare",
        tasks,
        "--methods",
        "ts,platt",
        "--metrics",
        "nll,brier",
        "--jobs",
        1,
        "--out",
        results,
    )
    first = run(*command).stdout
    assert "platt" in first
    lines = results.read_text().count("\n")
    assert run(*command, "--markdown").stdout.lstrip().startswith("|")
    assert results.read_text().count("\n") == lines
    assert "tabular" in run(*command, "--latex").stdout
    assert run(*command, "--sort", "nll").stdout
    rng = np.random.default_rng(0)
    for i in range(
        2
    ):  # files without a test part: predicted out of fold, not on the rows of the fit
        lines = ["p_a,p_b,y"]
        for score in rng.normal(size=80).round(3):
            lines += [f"{score},{-score},0", f"{score},{-score},1"]
        scores = "\n".join([*lines, ""])
        (tmp_path / f"{i}.csv").write_text(scores)
    both = (
        "compare",
        tmp_path / "0.csv",
        tmp_path / "1.csv",
        "--scores",
        "p_*",
        "--label",
        "y",
        "--input",
        "logits",
    )
    done = run(*both, "--methods", "hb", "--metrics", "nll")
    assert "coincide" not in done.stderr
    assert "hb" in done.stdout
    assert "one file" in run(*both, "--test", results, code=1).stderr


@pytest.mark.parametrize("counts", [(4,), (3, 5)])
def test_compare_measures_the_calibrator_of_questions_that_fit_writes(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    """hcal compare fitted the pool on padded questions, and hcal fit one pool for each number of options."""
    (tmp_path / "test").mkdir()
    cal = write_samples(tmp_path, n=500, counts=counts, seed=0).path
    test = write_samples(tmp_path / "test", n=300, counts=counts, seed=1).path
    model = tmp_path / "model.hcal"
    run("fit", cal, "--method", "pool", "-o", model)
    direct = json.loads(
        run("evaluate", test, "--model", model, "--metrics", "nll,brier", "--json").stdout
    )
    command = ("compare", cal, "--test", test, "--methods", "pool,ts", "--metrics", "nll,brier")
    table = json.loads(run(*command, "--json").stdout)["methods"]
    for metric in ("nll", "brier"):
        assert table["pool"][metric] == pytest.approx(direct["metrics"][metric]["value"])
        assert table["uncal"][metric] == pytest.approx(direct["metrics"][metric]["baseline"])
    folded = json.loads(
        run("compare", cal, "--methods", "pool", "--metrics", "nll", "--json").stdout
    )["methods"]
    assert folded["pool"]["nll"] < folded["uncal"]["nll"]


def test_several_labels_a_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 3))
    rate = 1 / (1 + np.exp(-z))
    y = (rng.random(z.shape) < rate).astype(int)
    np.savez(tmp_path / "a.npz", logits=3 * z, y=y)
    model = tmp_path / "m.hcal"
    out = tmp_path / "p.npz"
    assert "MultilabelCalibrator" in run("fit", tmp_path / "a.npz", "-o", model, code=1).stderr
    run("fit", tmp_path / "a.npz", "--multilabel", "--method", "platt", "-o", model)
    assert hcal.load(model).predict_proba(3 * z).shape == (400, 3)
    assert "label" in run("info", model).stdout
    run("apply", model, tmp_path / "a.npz", "-o", out)
    expected = hcal.load(model).predict_proba(3 * z)
    np.testing.assert_array_equal(np.load(out)["probs"], expected)
    evaluation = json.loads(run("evaluate", tmp_path / "a.npz", "--model", model, "--json").stdout)
    mean = hcal.load(model).evaluate(3 * z, y)["mean"]
    assert evaluation["labels"]["mean"] == pytest.approx(mean)
    assert "mean: nll" in run("evaluate", tmp_path / "a.npz", "--model", model).stdout
    assert (
        "several labels a row"
        in run("certify", tmp_path / "a.npz", "--model", model, code=1).stderr
    )


def test_names_cannot_paint_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[31mred"
    logits, y = synthetic(200, 2)
    np.savez(tmp_path / "a.npz", logits=logits, y=y)
    model = tmp_path / "m.hcal"
    printed = run(
        "fit", tmp_path / "a.npz", "--classes", f"{evil},b", "--method", "ts", "-o", model
    )
    for result in (
        printed,
        run("info", model),
        run("evaluate", tmp_path / "a.npz", "--model", model, "--metrics", "nll"),
        run("certify", tmp_path / "a.npz", "--classes", f"{evil},b"),
    ):
        assert "\x1b[31mred" not in result.output


def test_language_models_stated_confidence_and_logprobs(tmp_path: Path) -> None:
    statements = ["95,5 %", "9/10", "8 out of 10", "very likely", "70-80 %", "no idea"] * 30
    right = [True, True, False, True, True, False] * 30
    lines = []
    for statement, is_right in zip(statements, right, strict=True):
        target = "Paris" if is_right else "Rome"
        lines.append(json.dumps({"answer": "Paris.", "target": target, "confidence": statement}))
    file = tmp_path / "stated.jsonl"
    model = tmp_path / "m.hcal"
    file.write_text("\n".join(lines))
    refused = run("fit", file, "-o", model, code=1).stderr
    assert "no idea" in refused or "70-80" in refused
    done = run("fit", file, "--unreadable", "drop", "--ranges", "middle", "-o", model)
    assert "150 × 2" in done.stdout or "150" in done.output


def test_questions_keep_their_number_and_their_options(tmp_path: Path) -> None:
    from lm_eval_files import write_samples

    write_samples(tmp_path, n=60, counts=(4, 3))
    (file,) = tmp_path.glob("*.jsonl")
    model = tmp_path / "m.hcal"
    out = tmp_path / "out.csv"
    run("fit", file, "-o", model, "-q")
    run("apply", model, file, "-o", out)
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert list(rows[0])[:2] == ["doc_id", "options"]
    assert {row["options"] for row in rows} == {"3", "4"}
    refused = run("apply", model, file, "--score", "length", "-o", out, code=1).stderr
    assert "fitted with option score sum" in refused


def test_nothing_may_be_asked_to_be_preserved(tmp_path: Path) -> None:
    logits, y = synthetic(200)
    np.savez(tmp_path / "a.npz", logits=logits, y=y)
    for options in (
        ("--param", "preserve=None"),
        ("--param", "preserve=null"),
        ("--preserve", "none"),
    ):
        run("fit", tmp_path / "a.npz", *options, "-o", tmp_path / "m.hcal", "-q")
        assert hcal.load(tmp_path / "m.hcal").preserves is None


def test_few_rows_are_met_with_a_sentence(tmp_path: Path) -> None:
    logits, y = synthetic(5)
    np.savez(tmp_path / "a.npz", logits=logits, y=y)
    result = run(
        "fit", tmp_path / "a.npz", "--method", "uncal", "-o", tmp_path / "m.hcal", "--json"
    )
    assert "warning: 5 rows are very few to learn from" in result.stderr
    assert len(json.loads(result.stdout)["warnings"]) == 1


def test_export_from_the_command_line(tmp_path: Path) -> None:
    logits, y = synthetic(200)
    np.savez(tmp_path / "a.npz", logits=logits, y=y)
    model = tmp_path / "m.hcal"
    run("fit", tmp_path / "a.npz", "--method", "ts", "-o", model, "-q")
    run("export", model, "-o", tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["method"] == "ts"
    refused = run("export", model, "-o", tmp_path / "m.py", code=1)
    assert "no .py since 0.4" in refused.stderr


def test_messages_say_what_is_true_and_what_to_do(tmp_path: Path) -> None:
    """Every line was once an advice that led to a wrong model, or spoke of columns that nobody had passed."""
    import pandas as pd
    from sklearn.naive_bayes import GaussianNB

    from hcal.integrations.sklearn import CalibratedClassifier

    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=400)
    rate = 1 / (1 + np.exp(-z))
    y = (rng.random(400) < rate).astype(int)
    p = 1 / (1 + np.exp(-2 * z))
    two = np.stack([1 - p, p], axis=1)
    names = np.array(["well", "sick"])[y]
    of_probs = hcal.make_calibrator("ts", input="probs")
    three = hcal.make_calibrator("ts").fit(*synthetic(90, 3))
    wrapper = CalibratedClassifier(GaussianNB(), method="ts")
    frame = pd.DataFrame({"a": z})
    labels = pd.Series(names, name="target", dtype=object)
    missing = labels.where(np.arange(400) > 1)
    wrapped = wrapper.fit(frame, labels)
    np.savez(tmp_path / "a.npz", probs=100 * two, y=y)
    assert "--unit percent" in run("evaluate", tmp_path / "a.npz", code=1).stderr
    cases: list[tuple[Any, str]] = [
        (
            lambda: of_probs.fit(100 * two, y),
            "probs sum to 100 in every row, so they are per cent: divide by 100",
        ),
        (
            lambda: of_probs.fit(100 * p, y),
            "is P\\(class 1\\), from 0 to 1, and row .* per cent, divide by 100",
        ),
        (
            lambda: hcal.make_calibrator("ts").fit(100 * two, y),
            "logits look like per cent .* divide by 100",
        ),
        (lambda: hcal.evaluate(z, y), 'P\\(class 1\\), from 0 to 1, .* logits, say input="logits"'),
        (
            lambda: of_probs.fit(pd.Series(p), labels),
            "classes=\\[…\\].* of one score a row, the second is its class",
        ),
        (
            lambda: three.predict_proba(z[:3]),
            "one number a row, shape \\(3,\\), .* for a single row \\(1, 3\\)",
        ),
        (
            lambda: hcal.save(wrapped, tmp_path / "m.hcal"),
            "CalibratedClassifier: save it with joblib or skops",
        ),
        (
            lambda: hcal.reliability(two, y, binning="corp")[1],
            "its last curve is 0, of the class 1; level='class",
        ),
        (
            lambda: of_probs.fit(p, y + 0.5),
            "5, which is no class; hcal does no regression, .* MAPIE or crepes",
        ),
        (
            lambda: wrapper.fit(frame, z),
            "y holds fractions, .* hcal does no regression, .* MAPIE or crepes",
        ),
        (
            lambda: wrapper.fit(frame, missing),
            "the column 'target' of labels has no label in 2 of 400 rows",
        ),
        (
            lambda: wrapper.fit(frame, missing.to_frame()),
            "the column 'target' of labels has no label in 2 of 400",
        ),
    ]
    for call, words in cases:
        with pytest.raises((ValueError, TypeError, IndexError), match=words):
            call()
    fitted = of_probs.fit(pd.Series(p), labels, classes=["well", "sick"])
    assert fitted.predict_proba(pd.Series(p, index=range(7, 407))).index[0] == 7
    assert set(fitted.predict(pd.Series(p))) == {"well", "sick"}


def test_swapped_class_names_are_noticed(tmp_path: Path) -> None:
    cal = two_classes(tmp_path / "a.csv", 0)
    new = two_classes(tmp_path / "b.csv", 1)
    model = tmp_path / "m.hcal"
    run("fit", cal, "--scores", "p_*", "--label", "y", "--method", "platt", "-o", model, "-q")
    new.write_text(
        new.read_text().replace("p_well,p_sick", "p_sick,p_well")
    )  # the names, not the numbers
    evaluation = json.loads(
        run("evaluate", new, "--model", model, "--metrics", "accuracy", "--json").stdout
    )
    assert any(
        "probability of sick is lower on its own rows" in text for text in evaluation["warnings"]
    )
    warning = run("fit", new, "--scores", "p_*", "--label", "y", "--id", "id", "-o", model).stderr
    assert "the class names, the columns or the labels swapped?" in warning
