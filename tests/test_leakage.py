"""Rows of a fit are recognised in every form they may come back in, and fresh rows are not taken for them."""

from __future__ import annotations

import numpy as np
import pytest

from hcal import leakage
from hcal.leakage import check_fingerprint, fingerprint, merge_fingerprints, overlap
from hcal.numerics import softmax
from hcal.text import printable


def logits(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    x = 3 * rng.normal(size=(n, k))
    if k == 2:
        x[:, 0] = 0
    return x


def logs(p: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(p, np.finfo(p.dtype).smallest_subnormal))


def printed(x: np.ndarray) -> np.ndarray:
    return np.char.mod("%.6g", x).astype(float)


#: How a user may bring a calibrator's own rows again.
FORMS = {
    "own": lambda x: x,
    "permuted": lambda x: x[::-1],
    "half": lambda x: x[::2],
    "80 rows": lambda x: x[:80],
    "float32": lambda x: x.astype(np.float32),
    "shifted": lambda x: x + 5,
    "six digits": printed,
    "six decimals": lambda x: np.round(x, 6),
    "probabilities": lambda x: logs(softmax(x)),
    "float32 probabilities": lambda x: logs(softmax(x).astype(np.float32)),
    "printed probabilities": lambda x: logs(printed(softmax(x))),
    "probabilities to six decimals": lambda x: logs(np.round(softmax(x), 6)),
}


@pytest.mark.parametrize(("k", "n"), [(2, 400), (2, 5000), (10, 1000), (1000, 300)])
def test_own_rows_are_recognised_in_every_form(k: int, n: int) -> None:
    rng = np.random.default_rng(k + n)
    x = logits(rng, n, k)
    kept = fingerprint(x)
    for name, form in FORMS.items():
        judgement = overlap(kept, form(x))
        assert judgement.refused, name
        assert judgement.share > 0.5, name
    fifth = n // 5
    mixed = overlap(kept, np.concatenate([x[:fifth], logits(rng, n - fifth, k)]))
    assert mixed.refused
    assert mixed.share == pytest.approx(0.2, abs=0.06)


def test_fresh_rows_are_not_refused_even_where_scores_repeat() -> None:
    rng = np.random.default_rng(1)
    for k in (2, 10):
        for digits in (8, 3, 2, 1, 0):
            for n, judged in ((400, 80), (1000, 1000), (400, 4000)):
                fitted = fingerprint(np.round(logits(rng, n, k), digits))
                judgement = overlap(fitted, np.round(logits(rng, judged, k), digits))
                assert not judgement.refused, (k, digits, n, judged)


def test_votes_of_a_forest_are_judged_against_chance() -> None:
    rng = np.random.default_rng(2)
    shares = rng.binomial(100, rng.beta(2, 2, size=2000)) / 100
    votes = np.log(shares + 1e-9)
    against = np.log1p(-np.exp(np.minimum(votes, -1e-9)))
    x = np.stack([against, votes], axis=1)
    kept = fingerprint(x[:1000])
    assert not overlap(kept, x[1000:]).refused
    assert overlap(kept, x[:1000][::-1]).share == 1.0  # the whole set is the whole set


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_the_denser_half_of_the_fit_are_not_taken_for_rows_of_the_fit(seed: int) -> None:
    """A fit on questions of two and of four options says nothing about new questions of two."""
    rng = np.random.default_rng(seed)
    four, two, fresh = (4.5 * rng.normal(size=(600, 4)) for _ in range(3))
    for questions in (two, fresh):
        questions -= questions[:, :2].max(axis=1, keepdims=True)
        questions[:, 2:] = 0
    kept = fingerprint(np.concatenate([four, two]))
    assert overlap(kept, fresh).share == 0
    assert overlap(kept, two).share > 0.9
    assert overlap(kept, two[:80]).refused


def test_copied_fit_rows_do_not_hide_the_overlap() -> None:
    x = logits(np.random.default_rng(3), 500, 3)
    assert overlap(fingerprint(np.repeat(x, 2, axis=0)), x).refused


def test_many_rows_are_sampled_and_the_share_is_still_estimated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leakage, "KEPT_ROWS", 2000)
    rng = np.random.default_rng(4)
    x = logits(rng, 20_000, 3)
    kept = fingerprint(x)
    assert len(kept["projections"]) <= 2000
    assert 0 < kept["kept_below"] < 1
    assert overlap(kept, x[:300]).share > 0.9
    mixed = np.concatenate([x[:3000], logits(rng, 7000, 3)])
    assert overlap(kept, mixed).share == pytest.approx(0.3, abs=0.06)
    assert overlap(kept, logits(rng, 10_000, 3)).share == 0
    parts = merge_fingerprints(fingerprint(x[:7000]), fingerprint(x[7000:]))
    projections = np.sort(parts["projections"], axis=0)
    assert np.array_equal(projections, np.sort(kept["projections"], axis=0))
    same = fingerprint(np.zeros((5000, 3)))  # one value only: bounded all the same
    assert len(same["projections"]) <= 2000
    assert not overlap(same, np.zeros((10, 3))).refused


def test_tampered_fingerprints_are_refused_in_one_line() -> None:
    kept = fingerprint(np.random.default_rng(5).normal(size=(20, 3)))
    check_fingerprint(kept)
    for name, value in (
        ("rows", np.array(-1)),
        ("rows", np.array(3)),
        ("rows", np.array(2.5)),
        ("kept_below", np.array(np.nan)),
        ("kept_below", np.array([0.5])),
        ("projections", kept["projections"][:, :2]),
        ("projections", kept["projections"] * np.float32(np.inf)),
        ("projections", kept["projections"].astype(np.float64)),
        ("more", np.array(1)),
    ):
        with pytest.raises(ValueError, match="the fingerprint of the fitted rows"):
            check_fingerprint(kept | {name: value})


def test_names_from_outside_cannot_write_to_the_terminal() -> None:
    assert printable("Zürich 東京") == "Zürich 東京"
    assert printable("a\x1b]0;x\x07\r\n\u202eb") == "a\\x1b]0;x\\x07\\r\\n\\u202eb"
