"""What the public functions of hcal answer for rows that a user holds in some form.

A door takes a :class:`~data.Pair` and returns an answer: numbers and texts by name. What belongs to a row stands
under the name of its class, in the order of the world's rows, so that answers can be compared whatever the order of
rows and columns was.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from data import Data, Pair
from sklearn.linear_model import LogisticRegression

import hcal
import hcal.io
from command_line import run
from hcal import language_models
from hcal.frames import to_numpy
from hcal.rows import Rows
from helpers import fit_quietly, quick

Answer = dict[str, Any]
#: Metrics of every level; the others take quadratic time.
METRICS = ("ece_ew", "ece_em", "ks", "smece", "cwece_a", "nll", "brier", "accuracy")
#: Numbers of an answer that say where a class stands, and not what it is; or that hold a clock or a file.
PLACES = {
    "worst_class",
    "positive",
    "refuted",
    "fit_s",
    "predict_s",
    "date",
    "version",
    "schema",
    "sha256",
    "command",
}


@dataclass(frozen=True)
class Door:
    """A public function, or several that answer together, as one user calls them."""

    name: str
    answer: Callable[[Pair], Answer]
    covers: tuple[str, ...]  # names of hcal.__all__, or commands
    classes: tuple[int, ...]  # the worlds
    takes: frozenset[str]  # of "weight", "blocks", "dask", "saved" and "scale"


DOORS: dict[str, Door] = {}


def door(
    *covers: str, classes: tuple[int, ...] = (2, 3), takes: str = ""
) -> Callable[[Callable[[Pair], Answer]], Callable[[Pair], Answer]]:
    """Enter a function into the table; ``takes`` says what else than scores and labels it takes."""

    def enter(function: Callable[[Pair], Answer]) -> Callable[[Pair], Answer]:
        name = function.__name__
        DOORS[name] = Door(name, function, covers, classes, frozenset(takes.split()))
        return function

    return enter


# -- answers --------------------------------------------------------------------------------------


def by_row(data: Data, values: Any, name: str) -> Answer:
    """Return one value a row in the order of the world's rows; copies of a row must have equal values."""
    column = np.asarray(to_numpy(values, name)[0])
    first, places = np.unique(data.number, return_index=True)
    back = np.searchsorted(first, data.number)
    assert (column == column[places][back]).all(), f"{name}: copies of a row differ"
    return {name: column[places]}


def by_class(data: Data, probs: Any, names: Any) -> Answer:
    """Return probabilities (N, K) by the name of the class; a frame must have these names."""
    if data.framed and data.named:
        columns = probs.column_names if data.library == "pyarrow" else list(probs.columns)
        assert [str(name) for name in columns] == [str(name) for name in names]
    table = np.asarray(to_numpy(probs, "probs")[0])
    answer: Answer = {}
    for k, name in enumerate(names):
        answer |= by_row(data, table[:, k], f"class {data.titles[str(name)]}")
    return answer


def by_name(data: Data, values: Any, names: Any) -> Answer:
    """Return one value a class by its name."""
    shares = {}
    for name, value in zip(names, np.asarray(values).tolist(), strict=True):
        shares[f"class {data.titles[str(name)]}, share"] = value
    return shares


def flat(data: Data, value: Any, path: str = "") -> Answer:
    """Return nested plain values by their path; entries of lists by their name where they have one."""
    answer: Answer = {}
    if isinstance(value, dict):
        names = value.get("names", ())
        if names is None:
            names = range(len(data.names))
        for name, entry in value.items():
            key = str(name)
            if key in PLACES or key == "names":
                continue
            values = isinstance(entry, list) and not any(isinstance(cell, dict) for cell in entry)
            if names and values and len(entry) == len(names):
                answer |= flat(data, dict(zip(names, entry, strict=True)), f"{path}.{key}")
            else:
                answer |= flat(data, entry, f"{path}.{_titled(data, key)}")
    elif isinstance(value, list | tuple):
        for place, entry in enumerate(value):
            title = str(place)
            if isinstance(entry, dict):
                texts = [entry[name] for name in ("group", "class", "title") if name in entry]
                title = _titled(data, str(texts[0])) if texts else title
            answer |= flat(data, entry, f"{path}[{title}]")
    elif isinstance(value, np.ndarray | np.generic):
        answer |= flat(data, value.tolist(), path)
    else:
        answer[path] = value
    return answer


def _titled(data: Data, key: str) -> str:
    """Return a key with the world's name of a class."""
    text = key.removeprefix("class ")
    return f"class {data.titles[text]}" if text in data.titles else key


def passed_on(pair: Pair, fitted: Any) -> Any:
    """Return a calibrator, saved and loaded where the relation says so."""
    if not pair.saved:
        return fitted
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.hcal")
        hcal.save(fitted, path)
        return hcal.load(path)


def fitted(pair: Pair, calibrator: Any) -> Any:
    """Return a calibrator that is fitted on the rows of a pair."""
    fit = pair.fit
    cal = fit_quietly(
        calibrator, fit.scores(), fit.labels(), sample_weight=fit.weights(), classes=fit.classes
    )
    return passed_on(pair, cal)


@cache
def calibrator_of(pair: Pair) -> Any:
    """Return a calibrator for the doors that need one; it is fitted once for each pair."""
    return fitted(pair, quick("vs", input=pair.fit.kind))


# -- calibrators ----------------------------------------------------------------------------------


def predictions(pair: Pair, cal: Any) -> Answer:
    """Return what a fitted calibrator says of the test rows, through every function of it."""
    test = pair.test
    names = cal.classes_.tolist()
    record = cal.fit_
    answer = by_class(test, cal.predict_proba(test.scores()), names)
    answer |= by_row(test, test.titled(cal.predict(test.scores())), "predicted")
    answer["score"] = cal.score(test.scores(), test.labels(), sample_weight=test.weights())
    answer |= by_name(test, record.frequencies, names)
    answer |= {"before": record.before["nll"], "after": record.after["nll"]}
    return answer


@door("PooledCalibrator", "save", "load", takes="weight saved")
def default_method(pair: Pair) -> Answer:
    return predictions(pair, fitted(pair, hcal.PooledCalibrator(input=pair.fit.kind)))


@door("make_calibrator", takes="weight saved")
def temperature(pair: Pair) -> Answer:
    return predictions(pair, fitted(pair, hcal.make_calibrator("ts", input=pair.fit.kind)))


@door("make_calibrator", takes="weight saved")
def vector_scaling(pair: Pair) -> Answer:
    return predictions(pair, calibrator_of(pair))


@door("HCalibrator", classes=(3,), takes="saved")
def trained_map(pair: Pair) -> Answer:
    cal = hcal.HCalibrator(maps="piecewise-10", epochs=3, input=pair.fit.kind)
    return predictions(pair, fitted(pair, cal))


@door("make_calibrator", takes="weight saved")
def other_frequencies(pair: Pair) -> Answer:
    cal = calibrator_of(pair)
    test = pair.test
    names = cal.classes_.tolist()
    odds = {"ant": 5, "bee": 3, "cat": 2, "no": 4, "yes": 1}
    shares = [odds[test.titles[str(name)]] for name in names]
    answer = by_class(test, cal.with_prior(shares).predict_proba(test.scores()), names)
    return answer


@door("make_calibrator", takes="saved")
def learned_frequencies(pair: Pair) -> Answer:
    cal = calibrator_of(pair)
    learned = cal.with_prior_from(pair.test.scores())
    return by_name(pair.test, learned.fit_.prior, cal.classes_.tolist())


@door("make_calibrator", classes=(3,), takes="blocks")
def fit_with_folds(pair: Pair) -> Answer:
    """A method that deals rows to folds; groups may be cut by the blocks of the fit."""
    fit = pair.fit
    test = pair.test
    cal = quick("lece", input=fit.kind)
    if fit.cuts:
        rows = [rows_of(block) for block in fit.blocks()]
        return by_class(test, cal.fit(rows).predict_proba(test.scores()), fit.names)
    fit_quietly(cal, fit.scores(), fit.labels(), groups=fit.groups(), classes=fit.classes)
    return by_class(test, cal.predict_proba(test.scores()), cal.classes_.tolist())


def rows_of(data: Data) -> Rows:
    """Return the checked rows of a block."""
    return Rows.of(
        data.scores(),
        data.labels(),
        input=data.kind,
        weight=data.weights(),
        groups=data.groups(),
        by=data.by(),
        classes=data.classes,
        start=data.start,
    )


@door("estimate", classes=(2,), takes="weight")
def estimate(pair: Pair) -> Answer:
    test = pair.test
    estimates = hcal.estimate(
        test.probs(),
        ["rate", "accuracy", "auc", "brier", "nll"],
        by=test.by(),
        sample_weight=test.weights(),
        positive=test.positive,
        classes=test.classes,
    )
    return flat(test, estimates.to_dict())


@door("validate", classes=(2,))
def validate(pair: Pair) -> Answer:
    """Probabilities are the inputs of a model that is fitted exactly, so sums in another order do not show."""
    test = replace(pair.test, one_column=False)
    model = LogisticRegression(solver="newton-cholesky", tol=1e-10)
    inputs = test.table(test.numbers("probs"))
    positive = test.place if test.library == "torch" else test.positive
    validation = hcal.validate(model, inputs, test.labels(), resamples=20, positive=positive)
    return flat(test, validation.to_dict())


@door("SegmentedCalibrator", "segments", takes="weight saved")
def segmented(pair: Pair) -> Answer:
    fit = pair.fit
    test = pair.test
    cal = hcal.SegmentedCalibrator("ts", input=fit.kind)
    fit_quietly(
        cal,
        fit.scores(),
        fit.labels(),
        sample_weight=fit.weights(),
        classes=fit.classes,
        by=fit.by(),
        groups=fit.groups(),
    )
    cal = passed_on(pair, cal)
    probs = cal.predict_proba(test.scores(), by=test.by())
    answer = by_class(test, probs, cal.classes_.tolist())
    classes = test.titled(cal.predict(test.scores(), by=test.by()))
    answer |= by_row(test, classes, "predicted")
    weights = test.weights()
    answer["score"] = cal.score(test.scores(), test.labels(), weights, by=test.by())
    return answer


@door("refit", takes="weight saved")
def refit(pair: Pair) -> Answer:
    """The rows of the fit and those of the test change their parts: the model is fitted again on the latter."""
    test = pair.test
    method = "platt" if pair.k == 2 else "vs"
    cal = passed_on(pair, fitted(pair, quick(method, input=test.kind)))
    day = test.column(test.number)
    again = hcal.refit(cal, test.scores(), test.labels(), test.weights(), time=day)
    answer = by_class(test, again.predict_proba(test.scores()), again.classes_.tolist())
    comparison = again.fit_.details["refit"]
    return answer | {name: comparison[name] for name in ("rows", "gain", "low", "high")}


@door("MultilabelCalibrator", classes=(3,), takes="saved")
def multilabel(pair: Pair) -> Answer:
    fit = pair.fit
    test = pair.test
    names = [str(name) for name in fit.names]
    truth = np.eye(3, dtype=np.int64)[fit.y]
    labels = None if fit.framed else names
    cal = hcal.MultilabelCalibrator("platt", input=fit.kind)
    cal.fit(_of_labels(fit), fit.table(truth), labels=labels)
    cal = passed_on(pair, cal)
    answer = by_class(test, cal.predict_proba(_of_labels(test)), cal.label_names_)
    marks = np.eye(3, dtype=np.int64)[test.y]
    table = cal.evaluate(_of_labels(test), test.table(marks))
    return answer | flat(test, table)


def _of_labels(data: Data) -> Any:
    """Return scores of labels that do not exclude each other."""
    if data.kind == "logits":
        return data.table(data.logits.astype(data.width))
    probs = 1 / (1 + np.exp(-data.numbers("log_probs")))
    return data.table(probs.astype(data.width))


# -- answers of language models -------------------------------------------------------------------


def confidences_of(data: Data) -> Any:
    """Return a column of confidences a class, by its name: as a frame, or a dict of columns."""
    values = data.numbers(data.kind).astype(data.width)
    if data.framed:
        return data.table(values)
    return {name: data.column(values[:, k]) for k, name in enumerate(data.names)}


def is_right(data: Data) -> Any:
    """Return which answers are right: those of the class "yes", or "bee"."""
    title = "yes" if "yes" in data.titles.values() else "bee"
    right = [name for name in data.names if data.titles[str(name)] == title]
    return data.column((np.array(data.names)[data.y] == right[0]).astype(np.int64))


def joined(pair: Pair, *, segmented: bool) -> Answer:
    """Return what joined confidences say of the test rows."""
    fit = replace(pair.fit, one_column=False)
    test = replace(pair.test, one_column=False)
    joint = language_models.JointConfidence(dict.fromkeys(fit.names, fit.kind), "platt")
    fit_quietly(
        joint,
        confidences_of(fit),
        is_right(fit),
        sample_weight=fit.weights(),
        groups=fit.groups(),
        by=fit.by() if segmented else None,
    )
    joint = passed_on(pair, joint)
    segments = {"by": test.by()} if segmented else {}
    probs = joint.predict_proba(confidences_of(test), **segments)
    answer = by_row(test, probs[:, 1], "P(correct)")
    for name, coefficient in joint.coefficients_.items():
        answer[f"coefficient of {fit.titles[str(name)]}"] = coefficient
    return answer


@door("language_models.JointConfidence", takes="weight saved scale")
def joint_confidence(pair: Pair) -> Answer:
    return joined(pair, segmented=False)


@door("language_models.JointConfidence", takes="weight saved scale")
def joint_confidence_of_segments(pair: Pair) -> Answer:
    return joined(pair, segmented=True)


@door("language_models.MultipleChoiceCalibrator", takes="saved")
def multiple_choice(pair: Pair) -> Answer:
    """Every row is a question; its options are classes, whose columns the calibrator does not tell apart."""
    return options_chosen(pair, "ts")


@door("language_models.MultipleChoiceCalibrator", takes="saved")
def multiple_choice_by_position(pair: Pair) -> Answer:
    """A method that learns something about each position."""
    return options_chosen(pair, "vs")


def options_chosen(pair: Pair, method: str) -> Answer:
    fit = replace(pair.fit, one_column=False)
    test = replace(pair.test, one_column=False)
    questions = language_models.MultipleChoiceCalibrator(method, min_questions=50)
    questions.fit(options_of(fit), fit.column(np.argsort(shown_order(fit))[fit.y]))
    questions = passed_on(pair, questions)
    probs = np.array(questions.predict_proba(options_of(test)))
    answer: Answer = {"before": questions.fit_.before["nll"], "after": questions.fit_.after["nll"]}
    for k, place in enumerate(shown_order(test)):
        answer |= by_row(test, probs[:, k], f"class {test.titles[str(test.names[place])]}")
    return answer


def options_of(data: Data) -> Any:
    """Return the log-probabilities of the options."""
    kind = "log_probs" if data.kind == "probs" else data.kind
    return data.table(data.numbers(kind).astype(data.width))


def shown_order(data: Data) -> tuple[int, ...]:
    """Return the classes in the order of the columns."""
    if data.framed and data.order is not None:
        return data.order
    return tuple(range(len(data.names)))


# -- measures -------------------------------------------------------------------------------------


@door("evaluate", "list_metrics", takes="weight")
def evaluate(pair: Pair) -> Answer:
    test = pair.test
    result = hcal.evaluate(
        test.probs(),
        test.labels(),
        metrics=METRICS,
        sample_weight=test.weights(),
        classes=test.classes,
        positive=test.positive,
    )
    return flat(test, result.to_dict())


@door("evaluate", "Evaluation", takes="weight saved")
def evaluate_calibrator(pair: Pair) -> Answer:
    test = pair.test
    result = hcal.evaluate(
        calibrator_of(pair),
        test.scores(),
        test.labels(),
        metrics=METRICS,
        sample_weight=test.weights(),
        positive=test.positive,
    )
    answer = flat(test, result.to_dict())
    return answer | flat(test, result.before.to_dict(), "before") | {"changed": result.changed}


@door("evaluate", takes="")
def evaluate_with_proofs(pair: Pair) -> Answer:
    """Groups, segments and a certificate; the bootstrap's intervals are another door."""
    test = pair.test
    result = hcal.evaluate(
        test.probs(),
        test.labels(),
        metrics=["ece_ew", "nll"],
        by=test.by(),
        baseline=test.probs(),
        classes=test.classes,
        positive=test.positive,
    )
    return flat(test, result.to_dict())


@door("certify", "Certificate", takes="")
def certify(pair: Pair) -> Answer:
    test = pair.test
    certificate = hcal.certify(
        test.probs(), test.labels(), by=test.by(), classes=test.classes, positive=test.positive
    )
    return flat(test, certificate.to_dict())


@door("certify", takes="")
def certify_groups(pair: Pair) -> Answer:
    test = pair.test
    certificate = hcal.certify(
        test.probs(),
        test.labels(),
        groups=test.groups(),
        classes=test.classes,
        positive=test.positive,
    )
    return flat(test, certificate.to_dict())


@door("certify", takes="saved")
def certify_calibrator(pair: Pair) -> Answer:
    test = pair.test
    certificate = hcal.certify(
        calibrator_of(pair), test.scores(), test.labels(), positive=test.positive
    )
    return flat(test, certificate.to_dict())


@door("certify", takes="")
def certify_out_of_fold(pair: Pair) -> Answer:
    fit = pair.fit
    certificate = hcal.certify(
        "ts",
        fit.scores(),
        fit.labels(),
        out_of_fold=True,
        folds=2,
        input=fit.kind,
        classes=fit.classes,
        positive=fit.positive,
    )
    return flat(fit, certificate.to_dict())


@door("report", takes="saved")
def report(pair: Pair) -> Answer:
    test = pair.test
    with tempfile.TemporaryDirectory() as folder:
        verdict = hcal.report(
            calibrator_of(pair),
            test.scores(),
            test.labels(),
            Path(folder, "page.html"),
            by=test.by(),
            positive=test.positive,
        )
    return flat(test, verdict.to_dict())


@door("compare", takes="weight")
def compare(pair: Pair) -> Answer:
    fit = pair.fit
    test = pair.test
    table = hcal.compare(
        fit.scores(),
        fit.labels(),
        test.scores(),
        test.labels(),
        methods=["ts", "vs"],
        metrics=["nll", "ece_ew"],
        input=fit.kind,
        sample_weight=fit.weights(),
        test_weight=test.weights(),
        resamples=0,
        progress=False,
        classes=fit.classes,
    )
    return flat(test, table.to_dict())


@door("compare", takes="")
def compare_by_folds(pair: Pair) -> Answer:
    fit = pair.fit
    table = hcal.compare(
        fit.scores(),
        fit.labels(),
        folds=2,
        groups=fit.groups(),
        methods=["vs"],
        metrics=["nll"],
        input=fit.kind,
        resamples=0,
        progress=False,
        classes=fit.classes,
    )
    return flat(fit, table.to_dict())


@door("cross_fit", takes="")
def cross_fit(pair: Pair) -> Answer:
    fit = pair.fit
    result = hcal.cross_fit(
        "vs",
        fit.scores(),
        fit.labels(),
        groups=fit.groups(),
        classes=fit.classes,
        folds=2,
        input=fit.kind,
        resamples=0,
    )
    names = result.calibrator.classes_.tolist()
    return by_class(fit, result.probs, names) | by_name(
        fit, result.calibrator.fit_.frequencies, names
    )


@door("clinical", classes=(2,), takes="")
def clinical(pair: Pair) -> Answer:
    test = pair.test
    panel = hcal.clinical(test.probs(), test.codes(), positive=test.positive_code)
    return flat(test, panel.to_dict())


@door("reliability", takes="weight")
def reliability(pair: Pair) -> Answer:
    test = pair.test
    diagram = hcal.reliability(
        test.probs(),
        test.labels(),
        level="class-wise",
        sample_weight=test.weights(),
        classes=test.classes,
        resamples=20,
    )
    curves = {}
    for curve in diagram.curves:
        curves[curve.title] = {"error": curve.error, "observed": curve.observed.tolist()}
    return flat(test, curves)


@door("drift", takes="")
def drift(pair: Pair) -> Answer:
    old = pair.fit.scores()
    change = hcal.drift(old, pair.test.scores(), input=pair.test.kind)
    return flat(pair.test, change.to_dict())


@door("Monitor", takes="blocks saved")
def monitor(pair: Pair) -> Answer:
    watch = hcal.Monitor(classes=pair.test.classes)
    for block in pair.test.blocks():
        watch.update(block.probs(), block.labels())
        if pair.saved:
            watch = _saved_monitor(watch)
    return {"evidence": watch.log_evidence, "n": watch.n, "alarm": watch.alarm is not None}


def _saved_monitor(watch: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state.json")
        watch.save(path)
        return hcal.Monitor.load(path)


@door("hcal.metrics", takes="weight")
def metrics(pair: Pair) -> Answer:
    test = pair.test
    answer: Answer = {}
    for name in ("nll", "brier", "ece_ew", "ks", "cwece_a"):
        function = getattr(hcal.metrics, name)
        options = {"positive": test.positive_code} if name in ("ece_ew", "ks") else {}
        weight = test.weights()
        answer[name] = function(test.probs(), test.codes(), sample_weight=weight, **options)
    return answer


# -- decisions ------------------------------------------------------------------------------------


@door("thresholds", "decide", classes=(2,), takes="weight saved")
def thresholds(pair: Pair) -> Answer:
    test = pair.test
    chosen = hcal.thresholds(
        test.probs(),
        test.labels(),
        cost={"fn": 5, "fp": 1},
        sample_weight=test.weights(),
        positive=test.positive,
        classes=test.classes,
        resamples=20,
    )
    answer = {"threshold": chosen.threshold, "theory": chosen.theory, "recall": chosen.recall.value}
    return answer | _decided(pair, chosen)


@door("thresholds", "decide", takes="weight saved")
def cost_table(pair: Pair) -> Answer:
    test = pair.test
    chosen = hcal.thresholds(
        test.probs(),
        test.labels(),
        cost=test.costs(),
        sample_weight=test.weights(),
        classes=test.classes,
        resamples=20,
    )
    return {"cost": chosen.cost.value} | _decided(pair, chosen)


@door("abstain_below", "decide", takes="saved")
def abstain_below(pair: Pair) -> Answer:
    test = pair.test
    answered = hcal.abstain_below(
        test.probs(), test.labels(), error=0.4, groups=test.groups(), classes=test.classes
    )
    answer = {"threshold": answered.threshold, "risk": answered.risk.value, "aurc": answered.aurc}
    return answer | _decided(pair, answered)


def _decided(pair: Pair, result: Any) -> Answer:
    """Return the decisions of the test rows by a result, or by its file."""
    test = pair.test
    if not pair.saved:
        return by_row(test, test.titled(_texts(hcal.decide(test.probs(), result))), "decision")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rule.json")
        path.write_text(result.to_json(), encoding="utf-8")
        return by_row(test, test.titled(_texts(hcal.decide(test.probs(), path))), "decision")


def _texts(names: Any) -> list[str]:
    plain = np.asarray(names).tolist()
    return ["None" if name in (None, -1) else str(name) for name in plain]


# -- files and commands ---------------------------------------------------------------------------


def command(*arguments: object) -> Any:
    """Return what a command prints as JSON."""
    return json.loads(run(*arguments, "--json").output)


@cache
def folder_of(pair: Pair) -> Path:
    """Return a folder with the files of a pair, and a model."""
    folder = Path(tempfile.mkdtemp(prefix="hcal-metamorphic-"))
    cal = pair.fit.write(folder, "cal")
    pair.test.write(folder, "test")
    run(
        "fit", cal, *pair.fit.options("weight"), "--method", "vs", "-o", folder / "model.hcal", "-q"
    )
    return folder


def file_of(pair: Pair, name: str = "test") -> Path:
    return next(folder_of(pair).glob(f"{name}.*"))


def read_probs(data: Data, path: Path) -> Answer:
    """Return the probabilities in a csv file that hcal wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    keys = np.array([int(line["key"]) for line in lines])
    assert (keys == data.number).all()
    answer: Answer = {}
    for name, title in data.titles.items():
        column = next(head for head in lines[0] if head.endswith(f"_{name}"))
        values = np.array([float(line[column]) for line in lines])
        answer |= by_row(data, values, f"class {title}")
    return answer


@door("fit", "command apply", takes="weight blocks")
def command_apply(pair: Pair) -> Answer:
    folder = folder_of(pair)
    output = folder / "probs.csv"
    model = folder / "model.hcal"
    blocks = block_options(pair)
    run("apply", model, file_of(pair), "-o", output, "--id", "key", *blocks, "-q")
    return read_probs(pair.test, output)


def block_options(pair: Pair) -> list[Any]:
    return ["--batch-rows", pair.test.cuts[0]] if pair.test.cuts else []


@door("apply", classes=(3,), takes="weight blocks")
def apply(pair: Pair) -> Answer:
    folder = folder_of(pair)
    output = folder / "applied.csv"
    cal = hcal.load(folder / "model.hcal")
    rows = pair.test.cuts[0] if pair.test.cuts else None
    request = hcal.io.Request(id="key")
    hcal.apply(cal, file_of(pair), output, request=request, batch_rows=rows)
    return read_probs(pair.test, output)


@door("command evaluate", classes=(3,), takes="weight blocks")
def command_evaluate(pair: Pair) -> Answer:
    answer = command(
        "evaluate",
        file_of(pair),
        *pair.test.options("weight", "blocks"),
        "--model",
        folder_of(pair) / "model.hcal",
        "--metrics",
        "nll,brier,ece_ew,accuracy,smece",
        *_positive_option(pair),
    )
    return flat(pair.test, _without_file(answer))


@door("command certify", classes=(2,), takes="blocks")
def command_certify(pair: Pair) -> Answer:
    answer = command(
        "certify",
        file_of(pair),
        *pair.test.options("blocks"),
        "--model",
        folder_of(pair) / "model.hcal",
        "--by",
        "country",
        *_positive_option(pair),
    )
    return flat(pair.test, _without_file(answer))


@door("command report", classes=(3,), takes="blocks")
def command_report(pair: Pair) -> Answer:
    answer = command(
        "report",
        file_of(pair),
        *pair.test.options("blocks"),
        "--model",
        folder_of(pair) / "model.hcal",
        "-o",
        folder_of(pair) / "page.html",
        *_positive_option(pair),
    )
    return flat(pair.test, _without_file(answer))


@door("command compare", classes=(3,), takes="weight")
def command_compare(pair: Pair) -> Answer:
    answer = command(
        "compare",
        file_of(pair, "cal"),
        *pair.fit.options("weight"),
        "--test",
        file_of(pair),
        "--methods",
        "ts",
        "--metrics",
        "nll",
    )
    return flat(pair.test, _without_file(answer))


@door("command decide", classes=(2,), takes="weight")
def command_decide(pair: Pair) -> Answer:
    answer = command(
        "decide",
        file_of(pair),
        *pair.test.options("weight"),
        "--model",
        folder_of(pair) / "model.hcal",
        "--cost",
        "fn=5,fp=1",
        *_positive_option(pair),
    )
    fields = ("threshold", "theory", "recall", "precision", "share", "events")
    return flat(pair.test, {name: answer["result"][name] for name in fields})


@door("command watch", classes=(2,))
def command_watch(pair: Pair) -> Answer:
    answer = command(
        "watch", file_of(pair), *pair.test.options(), "--model", folder_of(pair) / "model.hcal"
    )
    return flat(pair.test, _without_file(answer))


def _positive_option(pair: Pair) -> list[Any]:
    return ["--positive", pair.test.positive] if pair.k == 2 else []


def _without_file(content: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a command without what it says of its files."""
    about = ("file", "files", "model", "report", "input", "class_names")
    return {name: value for name, value in content.items() if name not in about}


@door("ScoreStore")
def score_store(pair: Pair) -> Answer:
    test = pair.test
    names = [test.names[k] for k in test.ordered]
    ids = [str(number) for number in test.number]
    with tempfile.TemporaryDirectory() as folder:
        store = hcal.ScoreStore(Path(folder, "scores.sqlite"), classes=names)
        store.add(ids, test.probs())
        joined = store.join(ids, test.labels())
    answer = by_class(replace(test, library="numpy"), joined.probs, names)
    return answer | {"waiting": joined.waiting, "unknown": joined.unknown}


@door("export", takes="weight")
def export(pair: Pair) -> Answer:
    """The file is read by the classes that it names; its example is computed by hcal itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.json")
        hcal.export(calibrator_of(pair), path)
        content = json.loads(path.read_text(encoding="utf-8"))
    return {"classes": sorted(pair.test.titles[str(name)] for name in content["classes"])}


@door("drop_unlabelled")
def drop_unlabelled(pair: Pair) -> Answer:
    """A label is taken away from one row; nothing else changes."""
    test = pair.test
    labels = np.array(test.names, dtype=object)[test.y]
    labels[test.number == 17] = None
    scores, left, number = hcal.drop_unlabelled(test.probs(), labels.tolist(), test.number)
    assert (number == test.number[test.number != 17]).all()
    rows = hcal.evaluate(scores, left, metrics=["nll"], classes=test.classes)
    return {"rows": len(left), "nll": rows.nll}
