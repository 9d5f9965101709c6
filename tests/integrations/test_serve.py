"""The serving example, on a real port."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

import hcal
from helpers import ROOT, synthetic
from http_server import Client, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example() -> ModuleType:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    path = ROOT / "examples" / "serve" / "app.py"
    spec = importlib.util.spec_from_file_location("serve_app", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(tmp_path: Path) -> Path:
    calibrator = hcal.make_calibrator("ts")
    calibrator.fit(*synthetic(300, 3), classes=["a", "b", "c"])
    hcal.save(calibrator, tmp_path / "model.hcal")
    return tmp_path / "model.hcal"


def client_of(example: ModuleType, model: Path, **options: Any) -> AbstractContextManager[Client]:
    return serving(example.build(str(model), str(model.parent / "state"), **options))


@pytest.fixture
def http(example: ModuleType, model: Path) -> Iterator[Client]:
    with client_of(example, model) as client:
        yield client


def test_scores_are_calibrated_and_bad_ones_refused_with_hcals_words(
    http: Client, model: Path
) -> None:
    answer = http.post("/predict", {"scores": [[0.0, 1.0, 4.0]]})
    assert answer.status == 200
    assert answer.json()["classes"] == ["a", "b", "c"]
    expected = hcal.load(model).predict_proba([[0.0, 1.0, 4.0]])
    assert answer.json()["probs"][0] == pytest.approx(expected[0].tolist())
    refused = http.post("/predict", {"scores": [[0.0, 1.0]]})
    assert refused.status == 422
    assert "classes" in refused.json()["detail"]
    assert http.post("/predict", {"scores": []}).status == 422
    assert "hcal_rows_total 1" in http.get("/metrics").text
    assert "hcal_refused_total 1" in http.get("/metrics").text


def test_labels_come_later_and_survive_a_restart(example: ModuleType, model: Path) -> None:
    body = {"scores": [[0.0, 1.0, 4.0], [2.0, 0.0, 0.0]], "ids": ["r1", "r2"]}
    with client_of(example, model) as http:
        assert http.post("/predict", body).status == 200
    with client_of(example, model) as http:
        labels = {"ids": ["r2", "r1", "r9", "r2"], "labels": ["a", "c", "b", "a"]}
        answer = http.post("/labels", labels).json()
        assert answer == {"joined": 2, "unknown": 1, "twice": 1, "waiting": 0, "alarm": False}
        again = http.post("/labels", labels).json()
        assert again["joined"] == 0
        assert again["twice"] == 3
    with client_of(example, model) as http:
        text = http.get("/metrics").text
    assert "hcal_store_joined 2" in text
    assert "hcal_monitor_rows_total 2" in text
    assert hcal.Monitor.load(model.parent / "state" / "watch.json").n == 2


def test_labels_that_do_not_fit_are_refused(http: Client) -> None:
    http.post("/predict", {"scores": [[0.0, 1.0, 4.0]], "ids": ["r1"]})
    for labels in (["d"], [7], ["a", "b"]):
        assert http.post("/labels", {"ids": ["r1"], "labels": labels}).status == 422
    other = {"scores": [[9.0, 1.0, 4.0]], "ids": ["r1"]}
    assert "stored with other probabilities" in http.post("/predict", other).json()["detail"]


def test_alive_and_ready_are_two_things(http: Client, model: Path) -> None:
    assert http.get("/health").status == 200
    assert http.get("/ready").status == 200
    (model.parent / "state" / "scores.sqlite").write_bytes(b"damaged" * 100)
    assert http.get("/health").status == 200
    refused = http.get("/ready")
    assert refused.status == 503
    assert "not ready" in refused.json()["detail"]


def test_bodies_have_a_limit_whatever_their_header_says(example: ModuleType, model: Path) -> None:
    with client_of(example, model, largest_body=2000) as http:
        small = {"scores": [[0.0, 1.0, 4.0]]}
        assert http.post("/predict", small).status == 200
        large = http.post("/predict", {"scores": [[0.0, 1.0, 4.0]] * 1000})
        assert large.status == 413
        assert "send fewer rows" in large.json()["detail"]
        assert _answer_to_pieces(http) in (413, "connection closed")


def _answer_to_pieces(http: Client) -> int | str:
    """Return the status; the service may close the connection before the client has sent all pieces."""
    try:
        return http.post("/predict", (b" " * 500 for _ in range(10))).status
    except URLError as refusal:
        return "connection closed" if isinstance(refusal.reason, ConnectionError) else str(refusal)


def test_no_row_of_many_requests_to_several_workers_is_lost(
    example: ModuleType, model: Path
) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 5, 3)).tolist()
    with client_of(example, model) as one, client_of(example, model) as two:
        workers = [one, two] * 20

        def score_then_label(number: int) -> int:
            ids = [f"{number}-{row}" for row in range(5)]
            workers[number].post("/predict", {"scores": scores[number], "ids": ids})
            labels = {"ids": ids, "labels": ["a"] * 5}
            return int(workers[-1 - number].post("/labels", labels).json()["joined"])

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(score_then_label, range(40))) == 200
    assert hcal.Monitor.load(model.parent / "state" / "watch.json").n == 200
