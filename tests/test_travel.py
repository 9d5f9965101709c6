"""Names, rows and kinds travel with what they belong to: through blocks, rules, costs, files, modules and state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.certificates import CertificateStream
from hcal.io import Request, batches, read
from hcal.rows import Rows
from helpers import synthetic

pd = pytest.importorskip("pandas")

NAMES = ["ant", "bee", "cat"]
TURNED = ["cat", "ant", "bee"]
LOGITS, POSITIONS = synthetic(300, 3, seed=1)
LABELS = np.array(NAMES)[POSITIONS]
SCORES = pd.DataFrame(LOGITS, columns=NAMES)
PROBS = pd.DataFrame(hcal.softmax(LOGITS), columns=NAMES)
EITHER = "labels that are numbers may count either"

RISK, SICK = synthetic(400, 2, seed=3)
RISKS = pd.DataFrame(hcal.softmax(RISK), columns=["well", "sick"])


# -- blocks ---------------------------------------------------------------------------------------


def blocks(labels: np.ndarray, *, size: int = 150) -> Iterator[Rows]:
    """Yield blocks whose columns are in another order from block to block."""
    for first in range(0, len(labels), size):
        part = slice(first, first + size)
        order = NAMES if first == 0 else TURNED
        yield Rows.of(SCORES[order][part], labels[part], input="logits")


@pytest.mark.parametrize(
    "measured",
    [
        lambda cal, data, y: hcal.evaluate(cal, data, y, metrics=["nll"])["nll"],
        lambda cal, data, y: hcal.certify(cal, data, y).to_json(),
        lambda cal, data, y: hcal.evaluate(cal, data, y, metrics=["nll"]).before["nll"],
    ],
)
def test_blocks_with_other_orders_of_columns_are_taken_by_name(
    measured: Callable[..., Any],
) -> None:
    logits, positions = synthetic(300, 3, seed=9)
    frame = pd.DataFrame(logits, columns=NAMES)
    cal = hcal.make_calibrator("vs").fit(frame, np.array(NAMES)[positions])
    assert measured(cal, blocks(LABELS), None) == measured(cal, SCORES, LABELS)
    with pytest.raises(ValueError, match=EITHER):
        measured(cal, blocks(POSITIONS), None)


def test_a_fit_takes_later_blocks_by_name() -> None:
    again = hcal.make_calibrator("vs").fit(blocks(LABELS)).predict_proba(SCORES)
    np.testing.assert_array_equal(
        again, hcal.make_calibrator("vs").fit(SCORES, LABELS).predict_proba(SCORES)
    )
    with pytest.raises(ValueError, match="ant, bee, cat, and of that from row 150 on cat, ant"):
        hcal.make_calibrator("vs").fit(blocks(POSITIONS))
    other = Rows.of(SCORES.set_axis(["x", "y", "z"], axis=1), POSITIONS, input="logits")
    with pytest.raises(ValueError, match="blocks of rows need the same columns"):
        hcal.make_calibrator("vs").fit(iter([next(blocks(POSITIONS)), other]))


def test_rows_in_another_order_than_the_fit_have_labels_that_are_names() -> None:
    cal = hcal.make_calibrator("vs").fit(SCORES, POSITIONS)
    turned = Rows.of(SCORES[TURNED], LABELS, input="logits")
    expected = hcal.evaluate(cal, SCORES, POSITIONS, metrics=["nll"])["nll"]
    assert hcal.evaluate(cal, turned, metrics=["nll"])["nll"] == expected
    with pytest.raises(ValueError, match=EITHER):
        hcal.evaluate(cal, Rows.of(SCORES[TURNED], POSITIONS, input="logits"))


def test_one_score_a_row_of_many_small_blocks_shows_what_it_is(tmp_path: Path) -> None:
    risk = RISKS["sick"].to_numpy()
    scores = np.log(risk / (1 - risk))
    cal = hcal.make_calibrator("platt").fit(scores, SICK)

    small = (
        Rows.of(risk[k : k + 20], SICK[k : k + 20], input="logits", complete=False)
        for k in range(0, 400, 20)
    )
    with pytest.raises(ValueError, match="all 400 scores lie in"):
        hcal.make_calibrator("platt").fit(small)

    request = Request(scores="score", input="logits")
    path = tmp_path / "all.csv"
    pd.DataFrame({"score": risk}).to_csv(path, index=False)
    with pytest.raises(ValueError, match="all 400 scores lie in"):
        hcal.apply(cal, path, tmp_path / "out.csv", request=request, batch_rows=20)
    assert not (tmp_path / "out.csv").exists()
    folder = tmp_path / "parts"
    folder.mkdir()
    for k in range(3):
        part = pd.DataFrame({"score": risk[20 * k : 20 * k + 20]})
        part.to_csv(folder / f"{k}.csv", index=False)
    with pytest.raises(ValueError, match=r"all 60 scores .*; delete .*out, which was written"):
        hcal.apply(cal, folder, tmp_path / "out", request=request)
    # Blocks of sorted logits lie in [0, 1] by chance.
    pd.DataFrame({"score": np.sort(scores)}).to_csv(path, index=False)
    assert hcal.apply(cal, path, tmp_path / "o.csv", request=request, batch_rows=20).rows == 400


# -- names ----------------------------------------------------------------------------------------


def test_texts_that_are_numbers_are_names_as_integers_are() -> None:
    """Frames of polars have texts as names: labels 1 and 2 were taken for the second and the third column."""
    two = POSITIONS < 2
    frame = pd.DataFrame(LOGITS[two], columns=["1", "2", "3"])
    cal = hcal.make_calibrator("ts").fit(frame, POSITIONS[two] + 1)
    assert cal.classes_.tolist() == [1, 2, 3]
    np.testing.assert_allclose(
        cal.fit_.frequencies, np.bincount(POSITIONS[two], minlength=3) / two.sum()
    )
    named = frame.set_axis(["x1", "x2", "x3"], axis=1)
    with pytest.raises(ValueError, match="count from 1 and no label is 0"):
        hcal.make_calibrator("ts").fit(named, POSITIONS[two] + 1)


@pytest.mark.parametrize("columns", [["1.0", "0.0"], ["True", "False"]])
def test_spellings_of_the_classes_0_and_1(columns: list[str]) -> None:
    cal = hcal.make_calibrator("platt").fit(pd.DataFrame(RISK[:, ::-1], columns=columns), SICK == 1)
    plain = hcal.make_calibrator("platt").fit(RISK, SICK)
    np.testing.assert_allclose(cal.predict_proba(RISK), plain.predict_proba(RISK), atol=1e-9)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_labels_of_files_are_names_where_the_names_are_numbers(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = pd.DataFrame(LOGITS, columns=["logit_0", "logit_2", "logit_5"])
    table["y"] = np.array([0, 2, 5])[POSITIONS]
    table = table[table["y"] != 5]
    path = tmp_path / f"numbers.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    data = read(path, Request(scores="logit_*", label="y", input="logits"))
    np.testing.assert_array_equal(data.labels(), POSITIONS[POSITIONS < 2])


def test_a_file_in_another_order_than_the_fit_has_labels_that_are_names(tmp_path: Path) -> None:
    cal = hcal.make_calibrator("vs").fit(SCORES, LABELS)
    cal.remember_source({"scores": "logit_*", "label": "y", "input": "logits"}, "", "", "")
    path = tmp_path / "turned.csv"
    table = SCORES[TURNED].add_prefix("logit_")
    table.assign(y=LABELS).to_csv(path, index=False)
    expected = hcal.evaluate(cal, SCORES, LABELS, metrics=["nll"])["nll"]
    assert hcal.evaluate(cal, path, metrics=["nll"])["nll"] == pytest.approx(expected)
    table.assign(y=POSITIONS).to_csv(path, index=False)
    with pytest.raises(ValueError, match="the labels are numbers, which may count either"):
        hcal.evaluate(cal, path)


def test_frequencies_with_names_are_those_of_their_classes() -> None:
    cal = hcal.make_calibrator("vs").fit(SCORES, LABELS)
    shares = {"cat": 0.2, "ant": 0.5, "bee": 0.3}
    expected = cal.with_prior([0.5, 0.3, 0.2]).fit_.prior
    for frequencies in (shares, pd.Series(shares)):
        np.testing.assert_allclose(cal.with_prior(frequencies).fit_.prior, expected)
    counts = pd.Series([2, 2, 2, 0, 0, 1]).value_counts()
    plain = hcal.make_calibrator("vs").fit(LOGITS, POSITIONS)
    np.testing.assert_allclose(plain.with_prior(counts).fit_.prior, [1 / 3, 1 / 6, 1 / 2])
    with pytest.raises(
        ValueError, match="are for ant, cow, cat, and the classes are ant, bee, cat"
    ):
        cal.with_prior({"ant": 1, "cow": 1, "cat": 1})


@pytest.mark.parametrize("labels", [SICK, np.array(["well", "sick"])[SICK]])
def test_a_rule_knows_the_columns_that_it_was_chosen_on(labels: np.ndarray, tmp_path: Path) -> None:
    turned = RISKS[["sick", "well"]]
    rules = [
        hcal.thresholds(RISKS, labels, cost={"fn": 5, "fp": 1}, resamples=20),
        hcal.thresholds(RISKS, labels, cost=[[0, 1], [5, 0]], resamples=20),
        hcal.abstain_below(RISKS, labels, error=0.4),
    ]
    for rule in rules:
        saved = tmp_path / "rule.json"
        saved.write_text(rule.to_json(), encoding="utf-8")
        for form in (rule, saved):
            decided = hcal.decide(turned, form)
            np.testing.assert_array_equal(decided, hcal.decide(RISKS, form))
        with pytest.raises(
            ValueError, match="the columns are a, b, and the classes are well, sick"
        ):
            hcal.decide(RISKS.set_axis(["a", "b"], axis=1), rule)
    expected = hcal.estimate(RISKS, ["recall", "cost"], rule=rules[0]).values
    assert hcal.estimate(turned, ["recall", "cost"], rule=rules[0]).values == pytest.approx(
        expected
    )


def test_models_of_one_diagram_are_taken_by_the_names_of_the_first() -> None:
    models = {"plain": RISKS, "turned": RISKS[["sick", "well"]]}
    first, second = hcal.reliability(models, SICK, resamples=20).curves
    np.testing.assert_allclose(first.observed, second.observed)


@pytest.mark.parametrize("names", [[1, 2], [2, 1], ["1", "0"]])
def test_the_positive_class_has_one_meaning_in_every_function(names: list[Any]) -> None:
    probs = RISKS.to_numpy()
    labels = np.array(names)[SICK]
    second = names[1]
    share = float(np.mean(SICK))

    for positive, expected in ((second, share), (names[0], 1 - share), (None, share)):
        options = {"positive": positive, "classes": names}
        judged = hcal.evaluate(probs, labels, metrics=["ece_ew"], **options)
        assert judged.positive is not None
        assert judged.positive.observed == pytest.approx(expected)
        chosen = hcal.thresholds(probs, labels, recall=0.5, resamples=20, **options)
        assert chosen.events == pytest.approx(400 * expected)
        curve = hcal.reliability(probs, labels, bins=1, **options).curves[0]
        assert curve.observed[0] == pytest.approx(expected)
        rate = hcal.estimate(probs, "rate", **options)["rate"].value
        assert rate == pytest.approx(probs[:, names.index(positive or second)].mean())


# -- rows -----------------------------------------------------------------------------------------


def test_an_index_of_other_rows_is_refused_beside_features_and_predictions() -> None:
    from sklearn.linear_model import LogisticRegression

    from hcal.integrations.sklearn import CalibratedClassifier

    rows = [f"row {k}" for k in range(400)]
    X = RISKS.set_axis(rows)
    y = pd.Series(SICK, index=rows)
    turned = y[::-1]
    model = LogisticRegression()
    calls: list[Callable[[], Any]] = [
        lambda: hcal.validate(model, X, turned, resamples=20),
        lambda: hcal.validate(model, X, y, groups=turned, resamples=20),
        lambda: hcal.clinical(X, y, groups=turned),
        lambda: hcal.clinical(X, y, by=turned),
        lambda: CalibratedClassifier(model).fit(X, turned),
        lambda: CalibratedClassifier(model).fit(X, y, groups=turned),
        lambda: hcal.evaluate(X, y, baseline=X[::-1]),
        lambda: hcal.certify(X, y, baseline=X[::-1]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="has the index of the scores in another order"):
            call()


# -- what was fitted ------------------------------------------------------------------------------


def test_an_input_that_contradicts_the_calibrator_is_refused() -> None:
    cal = hcal.make_calibrator("ts").fit(LOGITS, POSITIONS)
    with pytest.raises(ValueError, match="input is 'probs', but the calibrator takes 'logits'"):
        hcal.evaluate(cal, LOGITS, POSITIONS, input="probs")
    with pytest.raises(ValueError, match="'ts' expects input='probs', got 'logits'"):
        hcal.cross_fit(hcal.make_calibrator("ts", input="probs"), PROBS, LABELS, input="logits")


def test_a_segmented_model_can_be_read_after_its_parameters_were_changed(tmp_path: Path) -> None:
    by = np.arange(300) % 2
    cal = hcal.SegmentedCalibrator("vs").fit(LOGITS, POSITIONS, by=by)
    expected = cal.predict_proba(LOGITS, by=by)
    hcal.save(cal.set_params(method="iso", input="probs"), tmp_path / "m.hcal")
    again = hcal.load(tmp_path / "m.hcal").predict_proba(LOGITS, by=by)
    np.testing.assert_array_equal(again, expected)


def test_an_id_or_a_label_that_is_called_like_an_output_loses_no_column(tmp_path: Path) -> None:
    cal = hcal.make_calibrator("ts").fit(SCORES, LABELS)
    table = SCORES.add_prefix("logit_").assign(probs_bee=np.arange(300))
    table.to_csv(tmp_path / "in.csv", index=False)
    request = Request(scores="logit_*", id="probs_bee", input="logits")
    hcal.apply(cal, tmp_path / "in.csv", tmp_path / "out.csv", request=request)
    written = pd.read_csv(tmp_path / "out.csv")
    np.testing.assert_array_equal(written["probs_bee_before"], np.arange(300))
    np.testing.assert_allclose(written["probs_bee"], cal.predict_proba(SCORES)["bee"])


def test_a_weight_that_some_files_lack_is_refused(tmp_path: Path) -> None:
    table = SCORES.add_prefix("logit_").assign(y=LABELS)
    table.assign(w=2.0).to_csv(tmp_path / "a.csv", index=False)
    table.to_csv(tmp_path / "b.csv", index=False)
    request = Request("logit_*", weight="w", input="logits", optional=frozenset({"weight"}))
    with pytest.raises(ValueError, match=r"b\.csv has no weights, and other files have"):
        read([tmp_path / "a.csv", tmp_path / "b.csv"], request)


# -- modules and Dask -----------------------------------------------------------------------------


def test_a_module_refuses_outputs_and_states_of_another_kind() -> None:
    torch = pytest.importorskip("torch")
    from hcal.integrations.torch import CalibrationHead, predict_on_device

    cal = hcal.make_calibrator("vs").fit(SCORES, POSITIONS)
    probs = torch.tensor(PROBS.to_numpy())
    dense = probs[:9].reshape(3, 3, 3).movedim(2, 1)
    for outputs in (probs, dense):
        with pytest.raises(ValueError, match="look like probabilities"):
            CalibrationHead(cal)(outputs)
    head = CalibrationHead(cal)
    with pytest.raises(ValueError, match="look like probabilities"):
        [head(row) for row in probs.split(1)]
    one_column = CalibrationHead(hcal.make_calibrator("platt").fit(RISK, SICK))
    with pytest.raises(ValueError, match="look like probabilities"):
        one_column(torch.tensor(RISKS["sick"].to_numpy()))

    turned = hcal.make_calibrator("vs").fit(SCORES[TURNED], POSITIONS)
    with pytest.raises(ValueError, match="cat, ant, bee, and this module's has ant, bee, cat"):
        head.load_state_dict(CalibrationHead(turned).state_dict())
    of_probs = hcal.make_calibrator("vs", input="probs").fit(PROBS, POSITIONS)
    with pytest.raises(ValueError, match="takes probs, and this module's takes logits"):
        head.load_state_dict(CalibrationHead(of_probs).state_dict())
    half = predict_on_device(cal, torch.from_numpy(LOGITS).half())
    assert half.dtype == torch.float32


def test_dask_frames_are_taken_by_name() -> None:
    pytest.importorskip("distributed")
    dd = pytest.importorskip("dask.dataframe")
    from hcal.integrations import dask as on_dask

    scores = dd.from_pandas(SCORES[TURNED], npartitions=3)
    for labels in (LABELS, POSITIONS):
        cal = hcal.make_calibrator("vs").fit(SCORES, labels)
        y = dd.from_pandas(pd.Series(labels), npartitions=3)
        probs = on_dask.predict_proba(cal, scores).compute()
        np.testing.assert_allclose(probs[NAMES], cal.predict_proba(SCORES), atol=1e-12)
        expected = hcal.evaluate(cal, SCORES, labels, metrics=["nll"])["nll"]
        found = hcal.evaluate(cal, scores, y, metrics=["nll"])["nll"]
        assert found == pytest.approx(expected)
    texts = dd.from_pandas(pd.Series(LABELS), npartitions=3)
    again = hcal.make_calibrator("vs").fit(scores, texts)
    assert again.fit_.names == tuple(TURNED)
    np.testing.assert_allclose(
        again.predict_proba(SCORES)[NAMES],
        hcal.make_calibrator("vs").fit(SCORES, LABELS).predict_proba(SCORES),
        atol=1e-9,
    )


# -- what goes around the doors -------------------------------------------------------------------


@pytest.mark.parametrize("collect", [hcal.metrics.StreamingMetrics, CertificateStream])
def test_collected_blocks_are_taken_by_name(collect: Callable[[int], Any]) -> None:
    def collected(order: list[str], labels: np.ndarray) -> Any:
        total = collect(3)
        total.update(PROBS[:150], labels[:150])
        total.update(PROBS[order][150:], labels[150:])
        return str(total.result())

    assert collected(TURNED, LABELS) == collected(NAMES, LABELS)
    with pytest.raises(ValueError, match=EITHER):
        collected(TURNED, POSITIONS)
    first = collect(3).update(PROBS, LABELS)
    with pytest.raises(ValueError, match="of one part are ant, bee, cat, and of the other cat"):
        first.merge(collect(3).update(PROBS[TURNED], LABELS))


def test_saved_sums_know_the_order_of_their_columns() -> None:
    metrics = hcal.metrics.StreamingMetrics(3, ["cwece_a"]).update(PROBS[:150], LABELS[:150])
    again = hcal.metrics.StreamingMetrics.from_state(metrics.state)
    again.update(PROBS[TURNED][150:], LABELS[150:])
    expected = hcal.metrics.cwece_a(PROBS, LABELS)
    assert again.result()["cwece_a"] == pytest.approx(expected)


def test_a_sample_takes_frames_as_metrics_do() -> None:
    numbered = PROBS.set_axis([0, 1, 2], axis=1)
    for probs, labels in ((PROBS[TURNED], LABELS), (numbered[[2, 0, 1]], POSITIONS)):
        sample = hcal.metrics.Sample(probs, labels)
        assert hcal.metrics.nll(sample) == pytest.approx(hcal.metrics.nll(numbered, POSITIONS))
    with pytest.raises(ValueError, match="y has the index of the scores in another order"):
        hcal.metrics.Sample(PROBS, pd.Series(POSITIONS)[::-1])


@pytest.mark.parametrize("names", [["well", "sick"], [1, 2], [2, 5]])
def test_the_positive_column_of_a_frame_is_called_by_its_name(names: list[Any]) -> None:
    """A 1 was the second of the columns 1 and 2 to metrics and to the clinical panel."""
    labels = np.array(names)[SICK]
    # Of two classes the errors are equal up to the sign: the frequencies tell which one is judged.
    for order, positive in ((names, names[0]), (names[::-1], names[0]), (names, names[1])):
        frame = RISKS.set_axis(names, axis=1)[order]
        events = int((labels == positive).sum())
        panel = hcal.clinical(frame, labels, positive=positive)
        assert panel.events == events
        assert f"with class {positive}" in str(panel)
        sample = hcal.metrics.Sample(frame, labels, positive=positive)
        assert sample.data.hit.sum() == events
        error = hcal.metrics.mce(frame, labels, positive=positive)
        assert error == hcal.metrics.mce(sample)
    with pytest.raises(ValueError, match="positive must be"):
        hcal.metrics.mce(frame, labels, positive="ill")


@pytest.mark.parametrize("positive", ["sick", "well", 0, 1])
def test_the_positive_class_of_blocks_is_that_of_the_calibrator(positive: Any) -> None:
    """Blocks of sick and well were judged for the other class by a calibrator of well and sick."""
    labels = np.array(["well", "sick"])[SICK]
    cal = hcal.make_calibrator("platt", input="probs").fit(RISKS[:150], labels[:150])
    new, new_labels = RISKS[150:], labels[150:]
    turned = Rows.of(new[["sick", "well"]], new_labels, input="probs")
    metrics = ["ece_ew", "nll"]
    expected = hcal.evaluate(cal, new, new_labels, metrics=metrics, positive=positive)
    certified = hcal.certify(cal, new, new_labels, positive=positive)
    for source in (turned, list(turned.blocks(50))):
        judged = hcal.evaluate(cal, source, metrics=metrics, positive=positive)
        assert judged.positive is not None
        assert judged.before is not None
        assert judged.positive == expected.positive
        assert judged.values == pytest.approx(expected.values)
        assert expected.before is not None
        assert judged.before.values == pytest.approx(expected.before.values)
        assert hcal.certify(cal, source, positive=positive).sentences == certified.sentences


def test_what_stands_beside_checked_rows_is_refused() -> None:
    rows = Rows.of(LOGITS, POSITIONS, input="logits")
    cal = hcal.make_calibrator("vs").fit(rows)
    weight = np.ones(300)
    calls: list[Callable[[], Any]] = [
        lambda: hcal.make_calibrator("vs").fit(rows, sample_weight=weight),
        lambda: hcal.make_calibrator("vs").fit(rows, POSITIONS),
        lambda: hcal.SegmentedCalibrator("vs").fit(rows, groups=POSITIONS, by=POSITIONS),
        lambda: cal.score(rows, POSITIONS),
        lambda: hcal.evaluate(cal, rows, POSITIONS),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="beside checked rows, which bring their own"):
            call()


def test_the_calibrator_of_a_cross_fit_by_segments_knows_its_columns() -> None:
    by = pd.DataFrame({"country": POSITIONS[::-1] % 2, "site": np.arange(300) % 2})
    method = hcal.SegmentedCalibrator("vs")
    for segments in (by, by["country"]):
        crossed = hcal.cross_fit(method, SCORES, POSITIONS, by=segments, resamples=0)
        fitted = method.clone().fit(SCORES, POSITIONS, by=segments)
        assert crossed.calibrator.fit_.segment_title == fitted.fit_.segment_title
        np.testing.assert_allclose(
            crossed.calibrator.predict_proba(SCORES[TURNED], by=segments)[NAMES],
            fitted.predict_proba(SCORES, by=segments)[NAMES],
        )


def test_a_segment_without_weight_was_not_seen() -> None:
    by = np.where(np.arange(300) < 200, "DE", "FR")
    cal = hcal.SegmentedCalibrator("ts").fit(LOGITS, POSITIONS, 1.0 * (by == "DE"), by=by)
    assert cal.segments_ == ("DE",)
    with pytest.warns(UserWarning, match="100 of 300 rows have a segment that the fit did not see"):
        cal.predict_proba(LOGITS, by=by)


def test_labels_of_a_multilabel_fit_have_the_names_of_y() -> None:
    y = pd.DataFrame(np.eye(3, dtype=int)[POSITIONS], columns=NAMES)
    cal = hcal.MultilabelCalibrator("platt").fit(LOGITS, y)
    assert cal.label_names_ == tuple(NAMES)
    assert cal.evaluate(LOGITS, y[TURNED]) == cal.evaluate(LOGITS, y)
    np.testing.assert_array_equal(
        cal.predict_proba(SCORES[TURNED])[NAMES], cal.predict_proba(LOGITS)
    )


def test_a_report_by_cross_fitting_takes_names_and_segments_along(tmp_path: Path) -> None:
    names = [0, 2, 1]
    path = tmp_path / "page.html"
    plain = hcal.report("ts", LOGITS, POSITIONS, path, cross_fit=True)
    named = hcal.report(
        "ts", LOGITS, np.array(names)[POSITIONS], path, classes=names, cross_fit=True
    )
    assert named.headline == plain.headline
    by = np.arange(300) % 2
    by_segment = hcal.SegmentedCalibrator("ts")
    assert hcal.report(by_segment, LOGITS, POSITIONS, path, by=by, cross_fit=True).sentences


def test_a_classifier_is_no_calibrator(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(LOGITS, POSITIONS)
    calls: list[Callable[[], Any]] = [
        lambda: hcal.evaluate(model, LOGITS, POSITIONS),
        lambda: hcal.certify(model, LOGITS, POSITIONS),
        lambda: hcal.report(model, LOGITS, POSITIONS, tmp_path / "page.html"),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="LogisticRegression is no calibrator of scores"):
            call()


def test_a_table_of_costs_meets_columns_without_labels_by_name() -> None:
    """The rows of an estimate have no labels, which would say that the columns are classes."""
    prices = pd.DataFrame([[0, 1, 2], [4, 0, 1], [3, 5, 0]], index=NAMES, columns=NAMES)
    expected = hcal.estimate(PROBS.to_numpy(), "cost", cost=prices.to_numpy()).values
    for order in (NAMES, TURNED):
        for table in (prices, prices.loc[TURNED, TURNED]):
            values = hcal.estimate(PROBS[order], "cost", cost=table).values
            assert values == pytest.approx(expected)
    turned = hcal.thresholds(PROBS[TURNED], POSITIONS, cost=prices, resamples=20)
    array = prices.loc[TURNED, TURNED].to_numpy()
    by_array = hcal.thresholds(PROBS[TURNED].to_numpy(), POSITIONS, cost=array, resamples=20)
    assert turned.cost == by_array.cost
    polars = pytest.importorskip("polars")
    no_index = polars.DataFrame(prices[TURNED].to_dict("list"))
    with pytest.raises(ValueError, match="columns of the table of costs are cat, ant, bee, and"):
        hcal.estimate(PROBS, "cost", cost=no_index)


COUNT_FROM_1 = "count from 1 and no label is 0"


@pytest.mark.parametrize("rows", [None, 40])
def test_files_whose_columns_count_from_1_need_to_say_what_their_labels_count(
    rows: int | None, tmp_path: Path
) -> None:
    """Labels 1 and 2 were taken for the second and the third column, as labels from 0 are."""
    table = pd.DataFrame(LOGITS, columns=["logit_1", "logit_2", "logit_3"])
    table = table.assign(y=POSITIONS + 1)[POSITIONS < 2]
    path = tmp_path / "from_1.csv"
    table.to_csv(path, index=False)
    request = Request("logit_*", "y", input="logits")
    calls: list[Callable[[Request], Any]] = [
        lambda request: hcal.evaluate(batches(path, request, rows=rows), metrics=["accuracy"]),
        lambda request: hcal.certify(batches(path, request, rows=rows)),
        lambda request: hcal.make_calibrator("ts").fit(batches(path, request, rows=rows)),
        lambda request: read(path, request).labels(),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=COUNT_FROM_1):
            call(request)
        call(Request("logit_*", "y", input="logits", classes=("1", "2", "3")))

    # A model knows what labels count.
    cal = hcal.make_calibrator("ts").fit(LOGITS, POSITIONS)
    cal.remember_source(request.to_json(), "", "", "")
    table.assign(y=POSITIONS[POSITIONS < 2] + 1).to_csv(path, index=False)
    assert hcal.evaluate(cal, path, metrics=["nll"])["nll"] > 0


def test_columns_that_are_listed_in_another_order_than_their_numbers_keep_their_labels(
    tmp_path: Path,
) -> None:
    """Label 0 was the first listed column, whatever its number."""
    table = pd.DataFrame(LOGITS, columns=["logit_0", "logit_1", "logit_2"]).assign(y=POSITIONS)
    path = tmp_path / "numbers.csv"
    table.to_csv(path, index=False)
    expected = hcal.evaluate(LOGITS, POSITIONS, input="logits", metrics=["nll"])["nll"]
    for order in ("logit_2,logit_0,logit_1", "logit_0,logit_1,logit_2"):
        data = read(path, Request(order, "y", input="logits"))
        judged = hcal.evaluate(data.values, data.labels(), input="logits", metrics=["nll"])
        assert judged["nll"] == pytest.approx(expected)


def test_dask_columns_that_count_from_1_are_as_those_of_frames() -> None:
    pytest.importorskip("distributed")
    dd = pytest.importorskip("dask.dataframe")
    two = POSITIONS < 2
    frame = pd.DataFrame(LOGITS[two], columns=["x1", "x2", "x3"])
    y = pd.Series(POSITIONS[two] + 1)
    collections = dd.from_pandas(frame, npartitions=3), dd.from_pandas(y, npartitions=3)
    with pytest.raises(ValueError, match=COUNT_FROM_1):
        hcal.make_calibrator("ts").fit(*collections)


def test_without_an_index_of_the_scores_the_labels_say_which_rows_these_are() -> None:
    """Scores of a model are an array, and its labels, weights and groups are columns of frames."""
    rows = [f"row {k}" for k in range(300)]
    y = pd.Series(POSITIONS, index=rows)
    turned = pd.Series(np.ones(300), index=rows[::-1])
    probs = PROBS.to_numpy()
    calls: list[Callable[[], Any]] = [
        lambda: hcal.make_calibrator("ts").fit(LOGITS, y, turned),
        lambda: hcal.make_calibrator("ts").fit(LOGITS, y, groups=turned),
        lambda: hcal.SegmentedCalibrator("ts").fit(LOGITS, y, by=turned),
        lambda: hcal.evaluate(probs, y, by={"country": turned}),
        lambda: hcal.evaluate(probs, POSITIONS, groups=y, by=turned),
        lambda: hcal.certify(probs, y, groups=turned),
        lambda: hcal.clinical(probs, y, by=turned),
        lambda: hcal.reliability(probs, y, by=turned),
        lambda: hcal.metrics.nll(probs, y, sample_weight=turned),
        lambda: hcal.thresholds(probs, y, cost=1 - np.eye(3), sample_weight=turned),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"in another order: pass .* if its rows are those of"):
            call()
    # An index that only counts says nothing about the rows.
    hcal.make_calibrator("ts").fit(LOGITS, y, turned.reset_index(drop=True))
