"""The short form of the fuzzing of data files, and every file that it ever found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import readers

from hcal.io import read_data

CASES = sorted((Path(__file__).parent / "cases").glob("case-*"))
#: Makers whose files are refused although they are whole: compressed in a way that is not read.
REFUSED = {".npz": (2, 3), ".p": (7, 8)}


@pytest.mark.parametrize("suffix", readers.SEEDS)
def test_whole_files_are_read_rightly(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"whole{suffix}"
    for i, make in enumerate(readers.SEEDS[suffix]):
        path.write_bytes(make())
        if i in REFUSED.get(suffix, ()):
            assert readers.judge(path) == "refused"
            continue
        data = read_data(path, part="cal", kind="logits")
        # float32 files and six digits of text: 2e-6 is what they keep of logits up to 4.
        np.testing.assert_allclose(data.values, readers.LOGITS, atol=2e-5)
        if data.y is not None:
            np.testing.assert_array_equal(data.y, readers.Y)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory limit is Linux's")
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    happened, failures = readers.run(180, 1, tmp_path / "kept")
    assert failures == []
    assert sum(happened.values()) == 180
    assert sum(n for what, n in happened.items() if what.endswith("refused")) > 60
    assert sum(n for what, n in happened.items() if what.endswith("read")) > 10


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.name)
def test_cases_that_were_found_stay_found(path: Path) -> None:
    assert readers.judge(path) in ("read", "refused")
