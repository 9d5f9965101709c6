"""Model files that were tampered with: refused by name, or probabilities; the tool; the format's page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.io import model_file
from helpers import ROOT, wait_for_release

HERE = ROOT / "tests"
sys.path.insert(0, str(HERE / "fuzz"))
import mutations  # noqa: E402

V1, V2 = HERE / "golden" / "v1", HERE / "golden" / "v2"


def _write(path: Path, model: mutations.Model, header: dict[str, Any], arrays: dict[str, Any]) -> Path:
    path.write_bytes(mutations.seal(model.header | header, model.arrays | arrays))
    return path


def _golden(name: str) -> mutations.Model:
    return mutations.open_model((V2 / f"{name}.hcal").read_bytes(), name)


# -- by the hundred ---------------------------------------------------------------------------------------


def _fuzz(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "fuzz" / "models.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=600)


def test_tampered_files_are_refused_or_predict_probabilities() -> None:
    """The short form; ``python tests/fuzz/models.py --count 5000 --fresh`` is the long one."""
    done = _fuzz("--count", "400", "--seed", "19")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"400 files .* 0 faults", done.stdout)


def test_the_tool_sees_what_it_looks_for(tmp_path: Path) -> None:
    """With the checks taken out it must find faults, a killed process among them: else it proves nothing."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, hcal.calibrators.base as base\n"
        "check = base.Calibrator._check_state\n"
        "def predict(self, x):\n"
        "    try:\n"
        "        check(self)\n"
        "        return abs(x) * 0 + 1 / x.shape[1]\n"
        "    except ValueError:\n"
        "        if self.name == 'iso': os.kill(os.getpid(), 11)\n"
        "        return abs(x) * 0\n"
        "base.Calibrator._check_state = lambda self: None\n"
        "base.Calibrator.predict_proba = predict\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(hcal.__file__).parents[1])])
    done = _fuzz("--count", "4", "--seed", "1", "--methods", "ts,iso", PYTHONPATH=path)
    assert done.returncode == 1
    assert "died: SIGSEGV" in done.stdout
    assert "predicts: a row sums to" in done.stdout


# -- by name: those of the issue --------------------------------------------------------------------------


@pytest.mark.parametrize("length", [5, 7, 2_000_000])
def test_features_of_another_number_do_not_reach_the_kernel(tmp_path: Path, length: int) -> None:
    """Seven aborted with "double free or corruption", two million with a segmentation fault."""
    model = _golden("h")
    names = [f"refined.{f}" for f in ("weights", "mean", "deviation", "low", "high")]
    arrays = {name: np.resize(model.arrays[name], length) for name in names}
    with pytest.raises(ValueError, match=rf"'refined.weights' has shape \({length},\), declared is \(6,\)"):
        hcal.load(_write(tmp_path / "m.hcal", model, {}, arrays))


@pytest.mark.parametrize("name", ["rest.bias", "curve.classes", "final.classes"])
def test_classes_that_are_missing_are_not_read_from_elsewhere(tmp_path: Path, name: str) -> None:
    model = _golden("h")
    with pytest.raises(ValueError, match=rf"'{name}' has shape \(3,\), declared is \(K,\) = \(4,\)"):
        hcal.load(_write(tmp_path / "m.hcal", model, {}, {name: model.arrays[name][:3]}))


#: Those without an array of K, or where classes may be absent: their file does not contradict the header.
SIZELESS = {"uncal", "ts", "ec", "sctl", "softbin", "ets", "diag", "gp", "imax", "vs", "beta"}


@pytest.mark.parametrize("name", sorted({p.stem for p in V2.glob("*.hcal")}))
def test_another_number_of_classes_is_seen(tmp_path: Path, name: str) -> None:
    model = _golden(name)
    path = _write(tmp_path / "m.hcal", model, {"n_classes": 9}, {})
    if name in SIZELESS or name.startswith("h-paper"):
        assert hcal.load(path).predict_proba(np.zeros((1, 9))).shape == (1, 9)
    else:
        with pytest.raises(ValueError, match=r"has shape .* declared is"):
            hcal.load(path)


def test_two_kilobytes_do_not_take_a_gigabyte(tmp_path: Path) -> None:
    model = _golden("gp")
    params = model.header["params"] | {"samples": 60_000_000}
    with pytest.raises(ValueError, match="parameter 'samples' of 'gp' cannot be 60000000"):
        hcal.load(_write(tmp_path / "m.hcal", model, {"params": params}, {}))


@pytest.mark.parametrize("name", sorted({p.stem for p in V2.glob("*.hcal")} - {"uncal"}))
def test_every_array_of_every_method_is_checked_and_named(tmp_path: Path, name: str) -> None:
    """One more dimension, another type, NaN and no array at all: for each array, refused by its name."""
    model = _golden(name)
    for array in sorted(model.arrays):
        held = model.arrays[array]
        bad = [held[None], held.astype(np.float32)]
        if held.dtype == np.float64 and held.size and not np.isnan(held).any():
            bad.append(np.where(np.arange(held.size).reshape(held.shape) == 0, np.nan, held))
        for value in bad:
            with pytest.raises(ValueError, match=f"'{array}' h(as|olds)"):
                hcal.load(_write(tmp_path / "m.hcal", model, {}, {array: value}))
        rest = {k: v for k, v in model.arrays.items() if k != array}
        (tmp_path / "m.hcal").write_bytes(mutations.seal(model.header, rest))
        with pytest.raises(ValueError, match=f"'{array}' is missing|is not an array of this method"):
            hcal.load(tmp_path / "m.hcal")


# -- damage -----------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_model_is_seen(tmp_path: Path) -> None:
    """Unless it changes nothing that counts, such as a space of the container's padding."""
    content = (V2 / "ts.hcal").read_bytes()
    x = np.array([[0.0, 1.0, 2.0, 3.0]])
    right, accepted = hcal.load(V2 / "ts.hcal").predict_proba(x), 0
    path = tmp_path / "m.hcal"
    for bit in range(0, 8 * len(content), 3):
        data = bytearray(content)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            got = hcal.load(path).predict_proba(x)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            accepted += 1
            np.testing.assert_array_equal(got, right)
    assert accepted < 40


def test_a_model_is_always_the_same_bytes(tmp_path: Path) -> None:
    path, arrays = tmp_path / "m.hcal", {"beta": np.array(0.5), "ω": np.arange(3)}
    written = set()
    for _ in range(20):  # the container's library orders two names by chance: once in 10⁶ the same for all
        model_file.write_model(path, {"name": "ts", "info": {"who": "Ä"}}, arrays)
        written.add(path.read_bytes())
    assert len(written) == 1
    header, read = model_file.read_model(path)
    assert header["info"] == {"who": "Ä"}
    np.testing.assert_array_equal(read["ω"], np.arange(3))


def test_a_checksum_cannot_be_left_out(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    model = _golden("ts")
    save_file(model.arrays, tmp_path / "m.hcal", metadata={"hcal": json.dumps(model.header)})
    with pytest.raises(ValueError, match="is damaged: its checksum"):
        hcal.load(tmp_path / "m.hcal")


def test_files_of_schema_1_have_none_and_are_read_bit_for_bit() -> None:
    for path in sorted(V1.glob("*.hcal")):
        x = np.linspace(-3, 3, 20).reshape(5, 4)
        old, new = hcal.load(path), hcal.load(V2 / path.name)
        assert old.get_params() == new.get_params()
        np.testing.assert_array_equal(old.predict_proba(x), new.predict_proba(x))
        for name, array in new.state_.items():
            np.testing.assert_array_equal(old.state_[name], array)


def test_a_parameter_with_a_former_name_is_understood() -> None:
    from hcal.calibrators import get_calibrator
    from hcal.calibrators.params import check_params

    assert check_params(get_calibrator("imax"), {"seed": 3}) == {"random_state": 3}


# -- headers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_classes": 1}, "'n_classes' is 1, declared is 2 to 10000000"),
        ({"n_classes": 10**12}, "'n_classes' is 1000000000000"),
        ({"n_classes": 4.0}, "'n_classes' is float, declared is int"),
        ({"n_classes": True}, "'n_classes' is bool"),
        ({"params": []}, "'params' is list, declared is dict"),
        ({"params": {"input": "guess"}}, "parameter 'input' of 'ts' cannot be 'guess'"),
        ({"converged": 1}, "'converged' is int, declared is bool"),
        ({"info": "x"}, "'info' is str, declared is dict"),
        ({"info": {"fitted_on": 3}}, "'info.fitted_on' must be an object"),
        ({"scores": {"before": {}}}, "KeyError.'after'"),
        ({"scores": {"before": {}, "after": {"nll": "x"}}}, "'scores.after' must be an object of numbers"),
        ({"name": "x" * 10_000}, "is not registered here"),
        ({"name": "gp"}, "'gp' has no parameter|'beta'|is missing"),
        ({"schema": True}, "'schema' is True"),
        ({"schema": 0}, "'schema' is 0"),
    ],
)
def test_a_header_is_checked_field_by_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = _write(tmp_path / "m.hcal", _golden("ts"), changes, {})
    with pytest.raises(ValueError, match=message) as caught:
        hcal.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_headers_that_are_bombs(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "m.hcal"
    save_file({"beta": np.array(1.0)}, path, metadata={"hcal": "[" * 100_000})
    with pytest.raises(ValueError, match="nested too deeply"):
        hcal.load(path)
    path.write_bytes((2**40).to_bytes(8, "little") + b"{" * 100)
    with pytest.raises(ValueError, match="no safetensors header"):
        hcal.load(path)
    with path.open("wb") as f:  # ten gigabytes that take no room on the disk
        f.truncate(10**10)
    with pytest.raises(ValueError, match="not an hcal model file"):
        hcal.load(path)


def test_a_state_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    cal = hcal.load(V2 / "ts.hcal")
    cal.state_ = {"beta": np.array(np.nan)}
    with pytest.raises(ValueError, match="'beta' holds NaN"):
        hcal.save(cal, tmp_path / "m.hcal")
    cal = hcal.load(V2 / "ts.hcal")
    cal.info_ = {"story": "x" * model_file.MOST_HEADER}
    with pytest.raises(ValueError, match="the limit is"):
        hcal.save(cal, tmp_path / "m.hcal")
    assert not list(tmp_path.iterdir())


# -- only files -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.hcal")
    with pytest.raises(ValueError, match="not a regular file"):
        hcal.load(tmp_path / "m.hcal")
    with pytest.raises(ValueError, match="not a regular file"):
        hcal.load(tmp_path)


# -- the page ---------------------------------------------------------------------------------------------


def test_the_page_on_the_format_is_what_the_declarations_give() -> None:
    sys.path.insert(0, str(HERE.parent / "benchmarks"))
    import file_format_page

    page = file_format_page.PAGE.read_text(encoding="utf-8")
    described = re.findall(r"^## `(\w+)`", page, re.MULTILINE)
    assert page == file_format_page.page(described), "run: python benchmarks/file_format_page.py"
    wait_for_release(set(hcal.list_calibrators()) - set(described), "run benchmarks/file_format_page.py")
