"""Every later version reads what a released one wrote: model files, states of monitors, stores of scores.

``tests/released/write.py`` wrote the folders, each with its own version of hcal.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import hcal
from helpers import ROOT, wait_for_release
from released import write
from released.write import FROZEN, predictions

RELEASED = ROOT / "tests" / "released"
VERSIONS = sorted(path.name for path in RELEASED.iterdir() if (path / "predictions.npz").exists())
MODELS = sorted(path.relative_to(RELEASED).as_posix() for path in RELEASED.glob("*/*.hcal"))


@cache
def expected(version: str) -> dict[str, np.ndarray]:
    """Return the rows and the predictions that a version left."""
    with np.load(RELEASED / version / "predictions.npz") as file:
        return dict(file)


def test_the_first_version_that_is_promised_is_there() -> None:
    assert "0.4.0" in VERSIONS
    file_names = [path.split("/")[1] for path in MODELS]
    first = {name.rpartition(".")[0].rpartition(".")[0] for name in file_names}
    for version in VERSIONS:
        methods_with_values = {name for name in expected(version) if not name.startswith("rows.")}
        models = {Path(path).stem for path in MODELS if path.startswith(f"{version}/")}
        assert methods_with_values == models
    names = {name.replace(":", "-") for name in hcal.list_calibrators()}
    wait_for_release(names - first, "run python tests/released/write.py")


def test_the_files_of_a_released_version_are_never_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write, "FROZEN", (hcal.__version__,))
    with pytest.raises(SystemExit, match="is released"):
        write.main()
    assert set(FROZEN) <= set(VERSIONS)


@pytest.mark.parametrize("path", MODELS)
def test_a_model_file_of_a_released_version_predicts_what_it_did(path: str) -> None:
    version, file = path.split("/")
    name = Path(file).stem
    kind, _, n_classes = name.rpartition(".")
    if kind.split("-")[0] == "h":
        pytest.importorskip("torch")
    content = expected(version)
    calibrator = hcal.load(RELEASED / path)
    probs = predictions(kind, calibrator, content[f"rows.{n_classes}"])
    np.testing.assert_allclose(probs, content[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_monitor_goes_on_from_the_state_of_a_released_version(
    version: str, tmp_path: Path
) -> None:
    folder = RELEASED / version
    with np.load(folder / "states.npz") as states:
        monitor = hcal.Monitor.load(folder / "monitor.json")
        assert monitor.log_evidence == pytest.approx(float(states["log_evidence"]), rel=1e-12)
        assert [file["name"] for file in monitor.files] == ["monday.npz", "tuesday.npz"]
        monitor.update(states["next_probs"], states["next_y"])
        assert monitor.log_evidence == pytest.approx(float(states["next_log_evidence"]), rel=1e-9)

        shutil.copy(folder / "scores.sqlite", tmp_path)
        store = hcal.ScoreStore(tmp_path / "scores.sqlite")
        joined = store.join(["r4", "r0"], ["cat", "ant"], day="2026-01-20")
        np.testing.assert_array_equal(joined.probs, states["stored"][[4, 0]])
        assert joined.y.tolist() == [2, 0]
