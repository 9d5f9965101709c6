"""Compiled kernels work where they cannot be kept; limits on threads hold."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import hcal
from hcal import compiled
from hcal.h_calibration.trainable_maps import PiecewiseLinear
from hcal.h_calibration.training import AdamSettings, torch_nll, train
from helpers import ROOT, synthetic

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba: the extra 'fast'")
posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes are those of POSIX")


def doubled(x):
    return x + x


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that has said nothing yet, and a folder of its own for kernels."""
    import numba

    compiled._say_once.cache_clear()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@needs_numba
def test_kernels_are_kept_in_the_folder_that_the_user_names(fresh: Path) -> None:
    kernel = compiled.jit()(doubled)
    assert kernel(2) == 4
    assert list(fresh.rglob("*.nbi"))


@needs_numba
@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        (
            "dispatcher.Dispatcher.enable_caching",
            RuntimeError("no locator available"),
            "no folder can be written to",
        ),
        (
            "caching.IndexDataCacheFile.save",
            OSError(errno.ENOSPC, "No space left on device"),
            "No space left",
        ),
    ],
)
def test_kernels_that_cannot_be_kept_are_used_all_the_same(
    fresh: Path, monkeypatch, place, error, said
) -> None:
    monkeypatch.setattr(f"numba.core.{place}", Mock(side_effect=error))
    with pytest.warns(UserWarning, match=rf"{said}.*NUMBA_CACHE_DIR") as caught:
        assert [compiled.jit()(doubled)(2) for _ in range(2)] == [4, 4]
    assert len(caught) == 1


@needs_numba
@posix
def test_a_read_only_install_and_home() -> None:
    """A hardened container: the library belongs to somebody else, and there is no home to write to."""
    with tempfile.TemporaryDirectory(prefix="hcal-install-") as folder:
        place = Path(folder)
        shutil.copytree(
            ROOT / "src/hcal", place / "hcal", ignore=shutil.ignore_patterns("__pycache__")
        )
        for path in (*place.rglob("*"), place):
            path.chmod(0o555 if path.is_dir() else 0o444)
        code = (
            "import numpy as np, hcal; from hcal.h_calibration.engines import loss_and_grad;"
            "import hcal.h_calibration._mixture_numba;"
            "loss, _ = loss_and_grad(np.full((4, 2), 0.5, 'f'), np.zeros(4, int), window=2);"
            "print(hcal.__file__, loss)"
        )
        elsewhere = ("NUMBA", "XDG")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(elsewhere)}
        environment |= {"PYTHONPATH": folder, "HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        got = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            preexec_fn=_obey_modes,
        )
        for path in (place, *place.rglob("*")):
            path.chmod(0o755)
    assert got.returncode == 0, got.stderr
    assert got.stdout.startswith(folder)
    assert got.stderr.count("not kept on disk") == 1


def _obey_modes() -> None:
    """Take from root the right to write where modes forbid it (CAP_DAC_OVERRIDE); others do not have it."""
    if os.geteuid() == 0:
        drop, override = 24, 1
        ctypes.CDLL(None).prctl(drop, override, 0, 0, 0)


def test_training_limits_its_own_thread_only() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        seen: list[int] = []
        running = threading.Event()
        looked = threading.Event()

        def tick() -> None:
            seen.append(torch.get_num_threads())
            running.set()
            assert looked.wait(60)

        x = torch.log_softmax(torch.randn(20, 3), 1)
        y = torch.zeros(20, dtype=torch.int64)
        keywords = {"select": {"nll": torch_nll}, "settings": AdamSettings(epochs=2), "tick": tick}
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(train, PiecewiseLinear(1), x, y, torch_nll, **keywords)
            assert running.wait(60)
            assert torch.get_num_threads() == 2
            looked.set()
            done.result()
            assert pool.submit(torch.get_num_threads).result() == 2
        assert set(seen) == {1}
    finally:
        torch.set_num_threads(before)


#: One row, then a thousand: what a request and a small file hold.
_PREDICTIONS = """
import sys
import numpy as np
import hcal

calibrator = hcal.load(sys.argv[1])
rows = np.random.default_rng(0).normal(size=(1000, calibrator.n_classes_))
calibrator.predict_proba(rows[:1])
calibrator.predict_proba(rows)
print("numba" in sys.modules)
"""
#: What an evaluation of a small file by a command needs.
_EVALUATION = """
import sys
from hcal.cli.app import app

sys.argv[1:1] = ["evaluate", sys.argv[1].replace("hcal", "npz"), "--quiet", "--model"]
try:
    app()
except SystemExit as ended:
    print("numba" in sys.modules or "scipy.optimize" in sys.modules or ended.code)
"""


@needs_numba
@pytest.mark.parametrize("n_classes", [2, 10, 100])
def test_a_request_and_a_small_file_compile_nothing(n_classes: int, tmp_path: Path) -> None:
    """The first row took nine seconds where no kernel was compiled before, and without numba a millisecond."""
    scores, y = synthetic(1000, n_classes)
    np.savez(tmp_path / "model.npz", logits=scores, y=y)
    hcal.save(hcal.make_calibrator("pool").fit(scores[:500], y[:500]), tmp_path / "model.hcal")
    cache = tmp_path / "kernels"
    cache.mkdir()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    for program in (_PREDICTIONS, _EVALUATION):
        done = subprocess.run(
            [sys.executable, "-c", program, "model.hcal"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.split()[-1] in ("False", "0"), done.stdout + done.stderr
    assert not list(cache.iterdir())
