"""Certificates from accumulators: independent of how rows are split, and as valid as from the rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import hcal
from hcal.certificates import CertificateStream, RowsOfTheFitError
from hcal.certificates.certification import certify_batches
from hcal.certificates.windows import bin_edges, bin_of
from hcal.leakage import fingerprint
from helpers import synthetic
from studies.worlds import WORLDS, draw_labels


def _world(n: int = 6000, k: int = 5, name: str = "T=1.2") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    f, q = WORLDS[name](n, k, rng)
    return f, draw_labels(q, rng)


def test_parts_and_machines_give_the_same_certificate_close_to_that_of_the_rows() -> None:
    f, y = _world()
    group = y % 2
    whole = CertificateStream(5).update(f, y, group)
    first, second = CertificateStream(5), CertificateStream(5)
    first.update(f[:1000], y[:1000], group[:1000]).update(
        f[1000:2500], y[1000:2500], group[1000:2500]
    )
    second.update(f[2500:], y[2500:], group[2500:])
    merged = pickle.loads(pickle.dumps(second)).merge(first).result().to_dict()
    expected = whole.result().to_dict()
    assert merged["smooth_at_most"] == pytest.approx(expected["smooth_at_most"], abs=1e-12)
    streamed, exact = CertificateStream(5).update(f, y).result(), hcal.certify(f, y)
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
    p = np.concatenate([rng.random(20_000), small, 1 - small, [0, 0.5, 1]]).astype(dtype)
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
    p, y = hcal.softmax(x), rng.integers(0, 5, 2000)
    kept = fingerprint(x[:1000])
    parts = [CertificateStream(5, fitted_on=kept) for _ in range(2)]
    for part, rows in zip(parts, (slice(0, 1000), slice(1000, 2000)), strict=True):
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


def test_files_by_blocks_are_certified_and_rows_of_the_fit_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (x, y), (fresh, labels) = synthetic(600, 3, seed=1), synthetic(600, 3, seed=2)
    np.savez(tmp_path / "own.npz", logits=x, y=y)
    np.savez(tmp_path / "new.npz", logits=fresh, y=labels)
    cal = hcal.make_calibrator("ts").fit(x, y)
    found = certify_batches(hcal.io.batches(tmp_path / "new.npz", rows=250), cal, confidence=0.9)
    assert found.sentences[0].startswith("None of these rows was used to fit")
    assert (found.n, found.confidence) == (600, 0.9)
    assert found.headline.stated == pytest.approx(
        cal.predict_proba(fresh).max(axis=1).mean(), abs=1e-6
    )
    plain = certify_batches(hcal.io.batches(tmp_path / "new.npz", rows=250))
    assert plain.headline.stated == pytest.approx(hcal.softmax(fresh).max(axis=1).mean(), abs=1e-6)
    with pytest.raises(RowsOfTheFitError, match="about 100 %"):
        certify_batches(hcal.io.batches(tmp_path / "own.npz", rows=250), cal)
