"""The serving example, through the app's own test client."""

from __future__ import annotations

import importlib.util

import pytest

import hcal
from helpers import ROOT, synthetic

pytestmark = pytest.mark.slow


def test_the_example_serves(tmp_path) -> None:
    pytest.importorskip("fastapi")
    client = pytest.importorskip("starlette.testclient", reason="needs starlette's test client")
    spec = importlib.util.spec_from_file_location(
        "serve_app", ROOT / "examples" / "serve" / "app.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cal = hcal.make_calibrator("ts").fit(*synthetic(300, 3), classes=["a", "b", "c"])
    hcal.save(cal, tmp_path / "model.hcal")
    with client.TestClient(module.build(str(tmp_path / "model.hcal"))) as http:
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
