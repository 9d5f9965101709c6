"""Partial results as bytes: what comes back is what went out, and nothing in it is executed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hcal.certificates import CertificateStream
from hcal.integrations.partial_states import restored, state_bytes
from hcal.io.sources import RowSample
from hcal.metrics import StreamingMetrics
from hcal.rows import OneColumn, Rows
from helpers import synthetic

LOGITS, Y = synthetic(600, 3)


def sample_rows() -> Rows:
    return Rows.of(
        LOGITS,
        Y,
        input="logits",
        weight=np.arange(600) + 1.0,
        groups=[f"patient {n % 7}" for n in range(600)],
        by={"country": np.array(["DE", "FR"])[Y % 2], "site": Y},
        ids=[f"row {n}" for n in range(600)],
        time=np.arange(600).astype("datetime64[D]"),
        classes=["ant", "bee", "cat"],
    )


def assert_same(left: Any, right: Any) -> None:
    """Compare two values, arrays, or rows with all that belongs to them."""
    if isinstance(left, np.ndarray):
        assert left.dtype.kind == right.dtype.kind
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif hasattr(left, "__dict__"):
        for name in set(vars(left)) - {"origin"}:
            assert_same(getattr(left, name), getattr(right, name))
    else:
        assert left == right


def test_rows_of_a_sample_come_back_with_all_that_belongs_to_them() -> None:
    sample = RowSample(400, 10_000).update(sample_rows())
    sample_back = restored(state_bytes(sample), RowSample(400, 10_000))
    assert_same(sample_back.rows(), sample.rows())
    assert len(sample_back.rows()) == 400
    # Both can be merged as if they had stayed here.
    second_half = RowSample(400, 10_000).update(sample_rows()[::2])
    assert_same(sample_back.merge(second_half).rows(), sample.merge(second_half).rows())


def test_sums_and_counts_come_back() -> None:
    p = Rows.of(LOGITS, Y, input="logits").probs()
    sums = StreamingMetrics(3).update(p, Y)
    assert restored(state_bytes(sums), StreamingMetrics(3)).result() == sums.result()
    by = np.array(["DE", "FR"])[Y % 2]
    counts = CertificateStream(3).update(p, Y, by)
    counts_back = restored(state_bytes(counts), CertificateStream(3))
    assert counts_back.result().to_dict() == counts.result().to_dict()
    one = OneColumn().update(Rows.of(LOGITS[:, 0], Y > 0, input="logits"))
    assert vars(restored(state_bytes(one), OneColumn())) == vars(one)
    none = restored(state_bytes(OneColumn()), OneColumn())
    assert none.low == np.inf


def test_a_type_that_the_receiver_does_not_have_is_refused() -> None:
    from safetensors.numpy import save

    text = json.dumps({"type": "Popen", "parts": {"args": "true"}})
    content = save({}, metadata={"state": text})
    with pytest.raises(ValueError, match="holds 'Popen', which is not expected"):
        restored(content, OneColumn())
    strange = json.dumps({"type": "OneColumn", "parts": {"update": 1}})
    with pytest.raises(ValueError, match="OneColumn has no 'update'"):
        restored(save({}, metadata={"state": strange}), OneColumn())
