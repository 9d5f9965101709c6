"""The serving example, through the app's own test client."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest

import hcal
from helpers import ROOT, synthetic

pytestmark = pytest.mark.slow


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "serve_app", ROOT / "examples" / "serve" / "app.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_serves(tmp_path) -> None:
    pytest.importorskip("fastapi")
    client = pytest.importorskip("starlette.testclient", reason="needs starlette's test client")
    module = load_example()
    cal = hcal.make_calibrator("ts").fit(*synthetic(300, 3), classes=["a", "b", "c"])
    hcal.save(cal, tmp_path / "model.hcal")
    state = tmp_path / "watch.json"
    with client.TestClient(module.build(str(tmp_path / "model.hcal"), str(state))) as http:
        answer = http.post("/predict", json={"scores": [[0.0, 1.0, 4.0]], "labels": [2]})
        assert answer.status_code == 200
        assert answer.json()["classes"] == ["a", "b", "c"]
        assert answer.json()["probs"][0] == pytest.approx(
            cal.predict_proba([[0.0, 1.0, 4.0]])[0].tolist()
        )
        refused = http.post("/predict", json={"scores": [[0.0, 1.0]]})
        assert refused.status_code == 422
        assert "classes" in refused.json()["detail"]
        assert "hcal_rows_total 1" in http.get("/metrics").text
        assert "hcal_refused_total 1" in http.get("/metrics").text
    assert hcal.Monitor.load(state).n == 1


def test_no_row_of_many_requests_is_lost(tmp_path) -> None:
    pytest.importorskip("fastapi")
    client = pytest.importorskip("starlette.testclient", reason="needs starlette's test client")
    module = load_example()
    cal = hcal.make_calibrator("ts").fit(*synthetic(300, 3))
    hcal.save(cal, tmp_path / "model.hcal")
    state = tmp_path / "watch.json"
    # Two apps are two workers that share the state.
    apps = [module.build(str(tmp_path / "model.hcal"), str(state)) for _ in range(2)]
    body = {"scores": [[0.0, 1.0, 4.0]] * 5, "labels": [2] * 5}
    with client.TestClient(apps[0]) as one, client.TestClient(apps[1]) as two:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda http: http.post("/predict", json=body), [one, two] * 20))
        assert {answer.status_code for answer in answers} == {200}
        assert "hcal_rows_total 100" in one.get("/metrics").text
    assert hcal.Monitor.load(state).n == 200
