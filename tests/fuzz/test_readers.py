"""The short form of the fuzzing of data files and of model files."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
import readers

from hcal.io import Request, read


def test_whole_files_are_read_rightly(tmp_path: Path) -> None:
    for suffix, makers in readers.SEEDS.items():
        path = tmp_path / f"whole{suffix}"
        for make in makers:
            path.write_bytes(make())
            data = read(path, Request(input="logits"), part="cal")
            # float32 files and six digits of text: 2e-6 is what they keep of logits up to 4.
            np.testing.assert_allclose(data.values, readers.LOGITS, atol=2e-5)
            if data.y is not None:
                np.testing.assert_array_equal(data.y, readers.Y)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory limit is Linux's")
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    happened, failures = readers.run(120, 1, tmp_path / "kept")
    assert failures == []
    assert sum(happened.values()) == 120
    assert sum(n for what, n in happened.items() if what.endswith("refused")) > 40
    assert sum(n for what, n in happened.items() if what.endswith("read")) > 10


@pytest.mark.slow
def test_tampered_models_are_refused_or_predict_probabilities() -> None:
    happened, failures = models.run(150, 19)
    assert failures == []
    assert sum(happened.values()) == 150
