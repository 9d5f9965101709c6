"""Serve a calibrator over HTTP: POST scores, get probabilities; /metrics counts for Prometheus.

HCAL_MODEL=model.hcal uvicorn app:app
"""

from __future__ import annotations

import os

import numpy as np
from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

import hcal


class Request(BaseModel):
    """Rows of scores, and their labels where they are known already."""

    scores: list[list[float]]
    labels: list[int] | None = None


def build(path: str) -> FastAPI:
    app, model, monitor = FastAPI(title="hcal"), hcal.load(path), hcal.Monitor()
    count = {"rows": 0, "refused": 0}

    @app.post("/predict")
    def predict(request: Request) -> dict[str, object]:
        try:
            probs = model.predict_proba(np.asarray(request.scores))
            if request.labels is not None:
                monitor.update(probs, request.labels)
        except ValueError as error:
            count["refused"] += 1
            raise HTTPException(422, str(error)) from None
        count["rows"] += len(probs)
        return {
            "classes": model.classes_.tolist(),
            "probs": probs.tolist(),
            "alarm": monitor.alarm is not None,
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        lines = {
            "rows_total": count["rows"],
            "refused_total": count["refused"],
            "alarm": int(monitor.alarm is not None),
        }
        return "".join(f"hcal_{name} {value}\n" for name, value in lines.items())

    return app


if "HCAL_MODEL" in os.environ:
    app = build(os.environ["HCAL_MODEL"])
