"""Model files: inert, versioned, checked; what was tampered with is refused by name or predicts probabilities."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import hcal
from hcal.fit_record import FitRecord
from hcal.io import model_file
from hcal.io.model_file import read_model, write_model
from helpers import synthetic


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.hcal"
    hcal.save(hcal.make_calibrator("ts").fit(*synthetic(60, 4)), path)
    return path


def changed(model: Path, path: Path, **changes: Any) -> Path:
    """Change the header and make the checksum anew, as one who means harm would."""
    header, arrays = read_model(model)
    changed_header = header | changes
    text = json.dumps({k: v for k, v in changed_header.items() if v is not ...})
    save_file(arrays | {"sha256": model_file.digest(text, arrays)}, path, metadata={"hcal": text})
    return path


def refused(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        hcal.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_headers_that_do_not_fit_say_so(model: Path, tmp_path: Path) -> None:
    fit = hcal.load(model).fit_.to_json()
    for changes, message in (
        ({"schema": 99}, "schema 99.*please upgrade"),
        ({"schema": 3}, "was written by hcal 0.3 or before: fit again"),
        ({"schema": 1}, "was written by hcal 0.3 or before: fit again"),
        ({"schema": "one"}, "not an hcal model file"),
        ({"name": "gone"}, "'gone', which is not registered here: import"),
        ({"params": {"gone": 1}}, "no parameter 'gone'"),
        ({"params": ...}, "not a whole hcal model file"),
        ({"fit": fit | {"request": {"scores": 3}}}, "scores must be the name of a column"),
        ({"fit": fit | {"request": [1]}}, "'fit.request' must be an object"),
        ({"fit": fit | {"frequencies": [0.25] * 3}}, "'fit.frequencies' must be K numbers"),
        ({"fit": fit | {"notes": [1]}}, "'fit.notes' must be a list of texts"),
        ({"fit": fit | {"details": {"a": "x" * 20_000}}}, "'fit' holds a text of more than"),
    ):
        refused(changed(model, tmp_path / "m.hcal", **changes), message)
    whole_file = model.read_bytes()
    for content in (
        b"",
        b"not safetensors at all",
        pickle.dumps({"a": 1}),
        whole_file[:-4],
        whole_file + b"more",
    ):
        (tmp_path / "m.hcal").write_bytes(content)
        refused(tmp_path / "m.hcal", "not an hcal model file")


def test_a_promise_that_the_method_does_not_make_is_refused(tmp_path: Path) -> None:
    """``quadratic`` that claims to keep the order gave rows that sum to 1.08."""
    path = tmp_path / "q.hcal"
    hcal.save(hcal.make_calibrator("quadratic").fit(*synthetic(60, 4)), path)
    refused(
        changed(path, tmp_path / "m.hcal", preserves="order"), "which 'quadratic' does not promise"
    )


def test_the_record_of_a_fit_is_checked_as_data(model: Path) -> None:
    """150 tampered ones gave 53 internal errors."""
    record = hcal.load(model).fit_
    fit = json.loads(json.dumps(record.to_json()))
    assert FitRecord.from_json(fit, record.fingerprint).to_json() == fit
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    for changes in (
        {"frequencies": [0.5, 0.5, float("nan"), 0]},
        {"frequencies": "even"},
        {"frequencies": [1, 1, -1, 0]},
        {"notes": "one"},
        {"file": [3]},
        {"rows": "many"},
        {"score_range": [0, "x"]},
        {"after": {"nll": "low"}},
        {"details": {"more": deep}},
        {"k" * 20_000: 1},
    ):
        with pytest.raises(ValueError, match="'fit"):
            FitRecord.from_json(fit | changes, record.fingerprint)


def places_in(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the values of a header stand, at most two of each list."""
    inner: Any = ()
    if isinstance(content, dict):
        inner = content.items()
    elif isinstance(content, list):
        inner = enumerate(content[:2])
    for key, value in inner:
        yield (*place, key)
        yield from places_in(value, (*place, key))


@pytest.mark.parametrize("value", ["x", None, -1, 10**400, float("nan"), [["a"]]], ids=repr)
def test_every_value_of_a_header_is_checked(model: Path, tmp_path: Path, value: Any) -> None:
    """An integer of 400 digits among the facts of the fit was an internal error."""
    header, _ = read_model(model)
    scores = np.array([[0.0, 1.0, 2.0, 3.0]])
    messages = []
    for place in places_in(header):
        damaged = copy.deepcopy(header)
        inner = damaged
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        path = changed(model, tmp_path / "m.hcal", **damaged)
        try:
            probs = hcal.load(path).predict_proba(scores)
        except ValueError as error:
            messages.append(str(error))
        else:
            assert abs(probs.sum() - 1) < 1e-6
    assert messages
    assert not any("\n" in message or len(message) > 600 for message in messages)


def test_every_flipped_bit_is_seen(model: Path, tmp_path: Path) -> None:
    """Unless it changes nothing that counts, such as a space of the container's padding."""
    content = model.read_bytes()
    path = tmp_path / "m.hcal"
    x = np.array([[0.0, 1.0, 2.0, 3.0]])
    right = hcal.load(model).predict_proba(x)
    accepted = 0
    for bit in range(0, 8 * len(content), 61):
        broken = bytearray(content)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(broken))
        try:
            loaded = hcal.load(path)
        except ValueError:
            continue
        accepted += 1
        np.testing.assert_array_equal(loaded.predict_proba(x), right)
    assert accepted < 10


def test_the_container(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.hcal"
    arrays = {"beta": np.array(0.5), "ω": np.arange(3)}
    written = set()
    for _ in range(20):  # the container's library orders two names by chance
        write_model(path, {"name": "ts", "info": {"who": "Ä"}}, arrays)
        written.add(path.read_bytes())
    assert len(written) == 1
    header, arrays = read_model(model)
    save_file(arrays, path, metadata={"hcal": json.dumps(header)})
    refused(path, "is damaged: its checksum")
    save_file({"beta": np.array(1.0)}, path, metadata={"hcal": "[" * 100_000})
    refused(path, "not an hcal model file")
    path.unlink()
    os.mkfifo(path)
    refused(path, "not a regular file")
    refused(tmp_path, "is a directory")
    broken = hcal.load(model)
    broken.fit_ = replace(broken.fit_, details={"not json": object()})
    with pytest.raises(TypeError, match="cannot be saved"):
        hcal.save(broken, tmp_path / "n.hcal")
    assert not (tmp_path / "n.hcal").exists()
