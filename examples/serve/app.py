"""Serve a calibrator over HTTP: POST scores, get probabilities; /metrics counts for Prometheus.

HCAL_MODEL=model.hcal HCAL_STATE=watch.json uvicorn app:app --workers 4

The monitor lives in a file that all workers share and that survives a restart. Rows are counted worker by worker.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from threading import Lock

import numpy as np
from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

import hcal
from hcal.certificates.monitor_file import update_state


class Request(BaseModel):
    """Rows of scores, and their labels where they are known already."""

    scores: list[list[float]]
    labels: list[int] | None = None


class Counts:
    """What this worker has seen; requests are answered in several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.rows = self.refused = 0

    def add(self, *, rows: int = 0, refused: int = 0) -> None:
        with self._lock:
            self.rows += rows
            self.refused += refused


def build(path: str, state: str) -> FastAPI:
    app, model, counts = FastAPI(title="hcal"), hcal.load(path), Counts()

    def has_alarm() -> bool:
        return Path(state).exists() and hcal.Monitor.load(state).alarm is not None

    @app.post("/predict")
    def predict(request: Request) -> dict[str, object]:
        try:
            probs = model.predict_proba(np.asarray(request.scores))
            if request.labels is not None:
                update_state(state, probs, request.labels)
        except ValueError as error:
            counts.add(refused=1)
            raise HTTPException(422, str(error)) from None
        counts.add(rows=len(probs))
        return {"classes": model.classes_.tolist(), "probs": probs.tolist(), "alarm": has_alarm()}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        lines = {
            "rows_total": counts.rows,
            "refused_total": counts.refused,
            "alarm": int(has_alarm()),
        }
        return "".join(f"hcal_{name} {value}\n" for name, value in lines.items())

    return app


if "HCAL_MODEL" in os.environ:
    until_restart = f"{tempfile.gettempdir()}/hcal-watch.json"
    app = build(os.environ["HCAL_MODEL"], os.environ.get("HCAL_STATE", until_restart))
