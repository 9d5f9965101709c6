"""Certificates and monitors of fixed rows, number by number and word by word: ``expected.txt`` beside this file.

The other tests check that the numbers are valid; these check that they have not changed. After an intended change,
write the file again with ``python tests/certificates/test_golden.py`` and read its diff.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hcal
from hcal import certificates
from hcal.certificates import CertificateStream, certify_event
from hcal.certificates.bets import FAMILIES
from hcal.certificates.drift import stability_index
from hcal.certificates.windows import Band, threshold_table
from helpers import assert_as_before, changeable_records
from studies.worlds import WORLDS, draw_labels

EXPECTED = Path(__file__).with_name("expected.txt")


def _rows(world: str, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    f, q = WORLDS[world](n, k, rng)
    return f, draw_labels(q, rng)


def _numbers(event: certificates.EventCertificate) -> Iterator[str]:
    for name, value in event.to_dict().items():
        for part, inner in value.items() if isinstance(value, dict) else [("", value)]:
            sample = inner
            if isinstance(inner, list):
                step = max(1, len(inner) // 9)
                sample = [f"{x:.6g}" for x in inner[::step]]
            yield f"  {name} {part} {f'{inner:.6g}' if isinstance(inner, float) else sample}"
    yield f"  rows needed {[event.rows_needed(bound) for bound in (0.1, 0.05, 0.02, 0.001)]}"
    tails = threshold_table(event.table, 0.05)
    numbers = (*tails.at[:4], *tails.low[:4], *tails.high[:4], *tails.share[-3:])
    yield f"  {[f'{x:.5g}' for x in numbers]}"


def _lines() -> Iterator[str]:
    f, y = _rows("T=2", 3000, 4)
    names = ["ant", "bee", "cat", "dog"]
    groups = np.arange(3000) % 10 // 4
    cooler = f**0.5 / (f**0.5).sum(axis=1, keepdims=True)
    yield str(hcal.certify(f, y, classes=names, by=groups, baseline=cooler))
    for world, k, n in (
        ("T=1", 2, 500),
        ("ties", 2, 3000),
        ("rare", 12, 3000),
        ("certain", 3, 300),
    ):
        certificate = hcal.certify(*_rows(world, n, k))
        yield from (world, str(certificate), *_numbers(certificate.headline))
        columns = {} if certificate.classes is None else certificate.classes.to_dict()
        for name in ("frequency", "stated", "low", "high", "bound", "at_least"):
            yield f"  {name} {np.round(columns.get(name, []), 6).tolist()}"
    streamed = CertificateStream(4).update(f[:1700], y[:1700], groups[:1700])
    second = CertificateStream(4).update(f[1700:], y[1700:], groups[1700:])
    certificate = streamed.merge(second).result(confidence=0.9)
    yield from ("blocks", str(certificate), *_numbers(certificate.headline))
    yield from (str(group.group_row()) for group in certificate.subgroups)
    of_patients = hcal.certify(f, y, groups=np.arange(3000) // 3)
    yield from ("groups", str(of_patients), *_numbers(of_patients.headline))
    yield str(hcal.certify("ts", np.log(f), y, out_of_fold=True, folds=4))
    fitted = hcal.make_calibrator("uncal", input="probs").fit(f, y)
    for tolerance in (0.0, 0.02, "auto"):
        monitor = hcal.Monitor(tolerance=tolerance, classes=names, calibrator=fitted)
        parts = (("T=1", 1500), ("T=2", 1200), ("T=1", 3300))
        for day, (world, n) in enumerate(parts, 1):
            file = {"name": world, "digest": str(day), "date": f"2026-01-0{day}"}
            monitor.update(*_rows(world, n, 4, day), **file)
            yield f"{monitor} {monitor.log_evidence:.6g} {monitor.strongest()}"
        yield "\n".join(map(str, monitor.alarms)) + monitor.prometheus()
        yield from (str(monitor.windows(since)) for since in (None, "2026-01-02"))
    x = np.linspace(0.1, 1, 400)
    yield f"{stability_index(x, x**1.2):.6f} {FAMILIES}"


def test_everything_is_as_it_was() -> None:
    assert_as_before(_lines(), EXPECTED)


def test_results_cannot_be_changed() -> None:
    assert changeable_records("hcal.certificates") == set()


def test_a_missing_group_is_named_by_its_row() -> None:
    for missing in (None, np.nan):
        with pytest.raises(ValueError, match="by has no value in 1 of 2 rows, first at row 1"):
            hcal.certify([0.2, 0.8], [0, 1], by=np.array(["a", missing], dtype=object))


def test_the_bound_of_an_event_alone() -> None:
    """Windows and curve get half of the failure each; the curve refutes if its band lies on one side of 0."""
    for ends, refuted in (
        ((0.1, 0.2), True),
        ((-0.2, -0.1), True),
        ((-0.1, 0.1), False),
        ((0.0, 0.0), False),
    ):
        low, high = np.array([ends]).T
        band = Band(np.ones(1), np.ones(1), low, high, half_width=0.1, smooth=0.1)
        assert band.refutes == refuted
    f, y = _rows("T=1", 800, 2)
    alone = certify_event("P(class 1)", f[:, 1], y == 1, failure=0.025)
    assert certify_event("P(class 1)", f[:, 1], y == 1).failure == 0.05
    assert hcal.certify(f, y).headline.bound == pytest.approx(alone.bound, rel=1e-12)


if __name__ == "__main__":
    EXPECTED.write_text("\n".join(_lines()) + "\n", encoding="utf-8")
