"""Serve a calibrator over HTTP: scores now, labels later; /health, /ready and /metrics for those who operate it.

HCAL_MODEL=model.hcal HCAL_STATE=state uvicorn app:app --workers 4

The folder ``HCAL_STATE`` holds the scores that wait for their labels and the state of the monitor. All workers share
it, and it survives a restart. Requests and refusals are counted worker by worker.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Lock

import numpy as np
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import hcal

#: The largest body of a request, in bytes.
LARGEST_BODY = 8 * 2**20


def today() -> date:
    """Return the day in UTC, by which stored scores grow old."""
    return datetime.now(UTC).date()


class Scores(BaseModel):
    """Rows of scores, and their ids if labels will come for them."""

    scores: list[list[float]] = Field(min_length=1)
    ids: list[str] | None = None


class Labels(BaseModel):
    """Labels of rows that were scored before."""

    ids: list[str] = Field(min_length=1)
    labels: list[int | str]


class Counts:
    """What this worker has seen; requests are answered in several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.rows = 0
        self.refused = 0

    def add(self, *, rows: int = 0, refused: int = 0) -> None:
        with self._lock:
            self.rows += rows
            self.refused += refused


class TooLarge(Exception):
    """The body of a request is larger than allowed."""


class LimitedBody:
    """Refuse bodies above a limit: by what their header declares, and by what really comes."""

    def __init__(self, app: ASGIApp, limit: int = LARGEST_BODY) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self.limit:
            await self._refuse(scope, receive, send)
            return
        body = b""
        unfinished = True
        while unfinished:
            message = await receive()
            body += message.get("body", b"")
            unfinished = message.get("more_body", False)
            if len(body) > self.limit:
                await self._refuse(scope, receive, send)
                return
        await self.app(scope, Replay(body, receive), send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"a request may hold {self.limit:,} bytes: send fewer rows at a time"
        await JSONResponse({"detail": detail}, status_code=413)(scope, receive, send)


class Replay:
    """Give a body that was read already to the app, then what comes after it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self.message: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self.receive = receive

    async def __call__(self) -> Message:
        message = self.message
        self.message = None
        return await self.receive() if message is None else message


class Service:
    """A calibrator, the scores that wait for their labels, and the monitor that all workers share."""

    def __init__(self, model: str, state: str, clock: Callable[[], date]) -> None:
        self.calibrator = hcal.load(model)
        self.clock = clock
        self.folder = Path(state)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.watch = self.folder / "watch.json"
        classes = self.calibrator.classes_.tolist()
        self.store = hcal.ScoreStore(self.folder / "scores.sqlite", classes=classes)
        self.counts = Counts()

    def predict(self, request: Scores) -> dict[str, object]:
        probs = self.calibrator.predict_proba(np.asarray(request.scores))
        if request.ids is not None:
            self.store.add(request.ids, probs, day=self.clock())
        self.counts.add(rows=len(probs))
        return {"classes": self.calibrator.classes_.tolist(), "probs": probs.tolist()}

    def label(self, request: Labels) -> dict[str, object]:
        joined, monitor = self.store.update_monitor(
            self.watch, request.ids, request.labels, begin=self.begin, day=self.clock()
        )
        return {
            "joined": len(joined.ids),
            "unknown": joined.unknown,
            "twice": joined.twice,
            "waiting": joined.waiting,
            "alarm": monitor.alarm is not None,
        }

    def begin(self) -> hcal.Monitor:
        """Return a monitor whose tolerance is that of the calibrator's fit."""
        return hcal.Monitor(tolerance="auto", calibrator=self.calibrator)

    def metrics(self) -> str:
        """Return the counts of this worker, of the store and of the monitor as Prometheus text."""
        counts = {"rows_total": self.counts.rows, "refused_total": self.counts.refused}
        counts |= {f"store_{name}": count for name, count in self.store.counts.items()}
        lines = [f"hcal_{name} {count}\n" for name, count in counts.items()]
        if self.watch.exists():
            lines.append(hcal.Monitor.load(self.watch).prometheus())
        return "".join(lines)

    def check(self) -> None:
        """Raise an error if requests cannot be answered: the state cannot be read or written."""
        len(self.store)
        with tempfile.TemporaryFile(dir=self.folder):
            pass


def build(
    model: str, state: str, *, largest_body: int = LARGEST_BODY, clock: Callable[[], date] = today
) -> FastAPI:
    app = FastAPI(title="hcal")
    app.add_middleware(LimitedBody, limit=largest_body)
    service = Service(model, state, clock)

    @app.exception_handler(ValueError)
    def refuse(_: object, error: ValueError) -> JSONResponse:
        service.counts.add(refused=1)
        return JSONResponse({"detail": str(error)}, status_code=422)

    @app.post("/predict")
    def predict(request: Scores) -> dict[str, object]:
        return service.predict(request)

    @app.post("/labels")
    def label(request: Labels) -> dict[str, object]:
        return service.label(request)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/ready")
    def ready() -> dict[str, str]:
        try:
            service.check()
        except (OSError, ValueError) as error:
            raise HTTPException(503, f"not ready: {error}") from None
        return {"status": "ready"}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> str:
        return service.metrics()

    return app


if "HCAL_MODEL" in os.environ:
    until_restart = f"{tempfile.gettempdir()}/hcal-state"
    app = build(os.environ["HCAL_MODEL"], os.environ.get("HCAL_STATE", until_restart))
