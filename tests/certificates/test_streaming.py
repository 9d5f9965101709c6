"""Certificates from accumulators: independent of how rows are split, and as valid as from the rows."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal.certificates import CertificateStream, RowsOfTheFitError, certification
from hcal.certificates.certification import Terms, certify_source
from hcal.certificates.dependent import DependentRows
from hcal.certificates.event import EventCounts
from hcal.certificates.windows import bin_edges, bin_of
from hcal.io.sources import source_of_blocks as open_blocks
from hcal.leakage import fingerprint
from hcal.metrics.sample import Data
from hcal.row_segments import Segments
from hcal.rows import Rows
from helpers import synthetic
from studies.worlds import WORLDS, draw_labels, holds, smooth_error, truth_table


def _world(n: int = 6000, k: int = 5, name: str = "T=1.2") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    f, q = WORLDS[name](n, k, rng)
    return f, draw_labels(q, rng)


def test_parts_and_machines_give_the_same_certificate_close_to_that_of_the_rows() -> None:
    f, y = _world()
    group = y % 2
    at_once = CertificateStream(5).update(f, y, group)
    first = CertificateStream(5)
    second = CertificateStream(5)
    first.update(f[:1000], y[:1000], group[:1000])
    first.update(f[1000:2500], y[1000:2500], group[1000:2500])
    second.update(f[2500:], y[2500:], group[2500:])
    merged = pickle.loads(pickle.dumps(second)).merge(first).result().to_dict()
    expected = at_once.result().to_dict()
    assert merged["smooth_at_most"] == pytest.approx(expected["smooth_at_most"], abs=1e-12)
    streamed = CertificateStream(5).update(f, y).result()
    exact = hcal.certify(f, y)
    assert streamed.headline.bound == pytest.approx(
        exact.headline.bound, abs=0.004
    )  # half a bin, on average
    assert streamed.headline.overall == pytest.approx(exact.headline.overall, abs=2e-4)
    assert streamed.at_least == pytest.approx(exact.at_least, abs=0.03)
    assert any("one after the other" in r for r in streamed.refused)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_probability_lies_in_its_bin(dtype: type) -> None:
    rng = np.random.default_rng(0)
    small = 10 ** -rng.uniform(0, 14, 20_000)
    ends = [0, 0.5, 1]
    p = np.concatenate([rng.random(20_000), small, 1 - small, ends]).astype(dtype)
    low, high = bin_edges()
    which = bin_of(p)
    assert (low[which] <= p + 1e-7).all()  # 1 − p is rounded to float32
    assert (p <= high[which] + 1e-7).all()
    assert (np.diff(low) >= 0).all()  # ½ itself has a bin, and starts the next one
    assert (np.diff(high) >= 0).all()
    assert (np.diff(which[np.argsort(p)]) >= 0).all()


def test_rows_of_the_fit_are_refused_block_by_block() -> None:
    rng = np.random.default_rng(0)
    x = 2 * rng.normal(size=(2000, 5))
    p = hcal.softmax(x)
    y = rng.integers(0, 5, 2000)
    kept = fingerprint(x[:1000])
    parts = [CertificateStream(5, fitted_on=kept) for _ in range(2)]
    halves = (slice(0, 1000), slice(1000, 2000))
    for part, rows in zip(parts, halves, strict=True):
        part.update(p[rows], y[rows], logits=x[rows])
    assert parts[1].result().sentences[0].startswith("None of these rows was used to fit")
    with pytest.raises(RowsOfTheFitError, match="about 50 % of the 2,000 rows"):
        parts[0].merge(parts[1]).result()


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="n_classes must be"):
        CertificateStream(1)
    with pytest.raises(ValueError, match="no part was added"):
        CertificateStream(3).result()
    with pytest.raises(ValueError, match="same classes"):
        CertificateStream(3).merge(CertificateStream(4))
    with pytest.raises(ValueError, match="2 classes, this certificate was made for 3"):
        CertificateStream(3).update([[0.5, 0.5]], [0])


def test_files_by_blocks_are_certified_and_rows_of_the_fit_refused(tmp_path: Path) -> None:
    x, y = synthetic(600, 3, seed=1)
    fresh, labels = synthetic(600, 3, seed=2)
    np.savez(tmp_path / "own.npz", logits=x, y=y)
    np.savez(tmp_path / "new.npz", logits=fresh, y=labels)
    cal = hcal.make_calibrator("ts").fit(x, y)
    source = hcal.io.batches(tmp_path / "new.npz", rows=250)
    certificate = hcal.certify(cal, source, confidence=0.9)
    assert certificate.sentences[0].startswith("None of these rows was used to fit")
    assert certificate.n == 600
    assert certificate.confidence == 0.9
    expected = hcal.certify(cal, fresh, labels, confidence=0.9).to_dict()
    assert certificate.to_dict() == expected
    plain = hcal.certify(source)
    expected = hcal.certify(hcal.softmax(fresh), labels).to_dict()
    assert plain.to_dict() == expected
    with pytest.raises(RowsOfTheFitError, match="about 100 %"):
        hcal.certify(cal, hcal.io.batches(tmp_path / "own.npz", rows=250))


def test_more_rows_than_the_sample_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts of all rows and of every segment; groups and the gain come from the sample, which is said."""
    monkeypatch.setattr(certification, "SAMPLE_ROWS", 400)
    scores, y = synthetic(1500, 2, seed=1)
    country = np.array(["DE", "FR", "IT"])[np.arange(1500) % 3]
    patient = np.arange(1500) // 5
    rows = Rows.of(scores, y, input="logits", by={"country": country})
    exact = hcal.certify(hcal.softmax(scores), y, by=country)
    counted = hcal.certify(rows.blocks(170))
    assert counted.n == 1500
    assert [event.name for event in counted.subgroups] == (
        [event.name for event in exact.subgroups]
    )
    assert counted.headline.overall == pytest.approx(exact.headline.overall, abs=2e-4)
    for ours, theirs in zip(counted.subgroups, exact.subgroups, strict=True):
        assert ours.n == theirs.n
        assert ours.observed == pytest.approx(theirs.observed)
        assert ours.bound == pytest.approx(theirs.bound, abs=0.01)

    of_class_0 = hcal.certify(rows.blocks(170), positive=0).headline
    assert of_class_0.name == "P(class 0)"
    assert of_class_0.stated == pytest.approx(1 - exact.headline.stated, abs=2e-4)
    assert of_class_0.observed == pytest.approx(1 - exact.headline.observed)

    np.savez(tmp_path / "rows.npz", logits=scores, y=y, patient=patient)
    source = hcal.io.batches(tmp_path / "rows.npz", hcal.io.Request(groups="patient"), rows=170)
    grouped = hcal.certify(source)
    assert grouped.n == 400
    assert 200 < grouped.n_groups < 300
    assert "random sample of 400 of 1,500 rows" in grouped.sentences[0]
    cal = hcal.make_calibrator("platt").fit(*synthetic(400, 2, seed=7))
    gained = certify_source(open_blocks(rows.blocks(170)), Terms(), 1, calibrator=cal, gain=True)
    assert gained.gain is not None
    assert gained.n == 1500
    assert gained.gain.at_least < gained.gain.at_most


def test_a_group_in_two_blocks_counts_once() -> None:
    scores, y = synthetic(900, 2, seed=1)
    patient = np.array([f"p{number}" for number in np.arange(900) // 7])
    at_once = hcal.certify(hcal.softmax(scores), y, groups=patient)
    blocks = []
    for rows in np.array_split(np.arange(900), 8):
        blocks.append(Rows.of(scores[rows], y[rows], input="logits", groups=patient[rows]))
    assert hcal.certify(iter(blocks)).to_dict() == at_once.to_dict()
    two_groups = replace(blocks[0], groups=blocks[0].groups % 2)  # type: ignore[operator]
    with pytest.raises(
        ValueError, match="groups has 2 groups, and a certificate needs at least 20"
    ):
        hcal.certify(iter([two_groups]))


def test_certificates_of_dependent_rows_hold_where_the_truth_is_known() -> None:
    """One draw decides the labels of all rows of a group."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(150), rng.integers(1, 9, 150))
    for off in (0.0, 0.1, -0.1):
        for _ in range(5):
            p = rng.uniform(0.1, 0.9, len(groups))
            truth = np.clip(p + off, 0, 1)
            y = (rng.random(150)[groups] < truth).astype(int)
            certificate = hcal.certify(p, y, groups=groups)
            truth_by_value = truth_table(p, truth)
            assert holds(certificate.headline, truth_by_value) == (True, True)
            assert certificate.smooth >= smooth_error(truth_by_value, 15) - 1e-9


def test_noise_of_groups_is_that_of_their_sums() -> None:
    """Two groups of two rows: their gaps from the mean sum to +0.2 and −0.2."""
    rows = DependentRows(np.array([0, 1, 0, 1]), np.array([0.5, 0.1, 0.3, 0.3]) + 0.1)
    assert rows.noise(0, 4) == pytest.approx((0.2**2 + 0.2**2) / 4**2)
    assert rows.noise(1, 3) == pytest.approx((0.1**2 + 0.1**2) / 2**2)


def test_many_segments_need_memory_for_the_bins_that_they_fill() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    y = (rng.random(20_000) < p).astype(int)
    data = Data(np.stack([1 - p, p], axis=1), y)
    by = Segments.of(rng.integers(0, 5000, 20_000), 20_000)
    counts = EventCounts(2, 1).update(data, by)
    assert len(counts.segments.cells) <= 20_000
    assert sum(table.n for table in counts.events().subgroups.values()) == 20_000


def test_out_of_fold_takes_files_and_refuses_what_it_would_ignore(tmp_path: Path) -> None:
    scores, y = synthetic(400, 3, seed=1)
    np.savez(tmp_path / "rows.npz", logits=scores, y=y, patient=np.arange(400) // 4)
    in_memory = hcal.certify("ts", scores, y, out_of_fold=True)
    by_file = hcal.certify("ts", tmp_path / "rows.npz", out_of_fold=True)
    assert by_file.to_dict() == in_memory.to_dict()
    source = hcal.io.batches(tmp_path / "rows.npz", hcal.io.Request(groups="patient"), rows=100)
    with pytest.raises(ValueError, match="needs independent rows of weight 1"):
        hcal.certify("ts", source, out_of_fold=True)
    with pytest.raises(ValueError, match="hold probs, but the method takes input='logits'"):
        hcal.certify("ts", Rows.of(hcal.softmax(scores), y, input="probs"), out_of_fold=True)
