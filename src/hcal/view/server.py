"""The server behind ``hcal view``: it answers on this machine alone, and only who knows the token in its address.

Nothing is loaded from elsewhere and nothing is sent anywhere. What was uploaded and made lies in a temporary folder
that is removed at the end.
"""

from __future__ import annotations

import re
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment

from hcal._version import __version__
from hcal.extras import load_extra
from hcal.methods import list_calibrators
from hcal.view.work import CALIBRATED, MODEL, REPORT, ColumnChoice, Sheet

load_extra("hcal view", "python_multipart", "view")
load_extra("hcal view", "uvicorn", "view")
load_extra("hcal view", "starlette", "view")

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

HOST: Final = "127.0.0.1"
#: A larger file is not uploaded: ``hcal view FILE`` reads it where it is.
MOST_BYTES: Final = 100_000_000
#: What surrounds a file in an upload.
_ENVELOPE: Final = 10_000
TYPES: Final = (".csv", ".parquet")
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Desk:
    """The files that a person looks at, by number, and the pages that show them.

    Parameters
    ----------
    folder : Path
        Where uploads and results are written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = secrets.token_urlsafe(24)
        self.sheets: dict[str, Sheet] = {}
        template = files("hcal.view").joinpath("page.html").read_text(encoding="utf-8")
        self.template = Environment(autoescape=True, trim_blocks=True).from_string(template)

    def add(self, path: Path) -> str:
        """Take a file in, and return its number."""
        number = str(len(self.sheets) + 1)
        results = Path(tempfile.mkdtemp(dir=self.folder))
        self.sheets[number] = Sheet(path, results)
        return number

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/", self.home),
            Route("/upload", self.upload, methods=["POST"]),
            Route("/{number}/", self.sheet),
            Route("/{number}/work", self.work, methods=["POST"]),
            Route("/{number}/progress", self.progress),
            Route("/{number}/{name}", self.download),
        ]
        # Another site must not reach this server by a name that it points here.
        guard = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
        return Starlette(routes=[Mount(f"/{self.token}", routes=routes)], middleware=[guard])

    def page(self, status: int = 200, **values: object) -> Response:
        """Return the page."""
        nonce = secrets.token_urlsafe(16)
        base = f"/{self.token}/"
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src "
            "data:; connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; "
            "frame-ancestors 'none'"
        )
        html = self.template.render(
            base=base, nonce=nonce, version=__version__, most=MOST_BYTES, **values
        )
        return HTMLResponse(html, status, {**_HEADERS, "Content-Security-Policy": policy})

    async def home(self, _request: Request) -> Response:
        """Ask for a file."""
        return self.page()

    async def upload(self, request: Request) -> Response:
        """Keep an uploaded file, unless it is too large or of another type."""
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES + _ENVELOPE:
            return self.page(413, error=too_large())
        async with request.form(max_files=1, max_fields=1) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile) or not file.filename:
                return self.page(400, error="choose a file first")
            name = re.sub(r"[^\w.-]+", "_", Path(file.filename).name)[-80:]
            if Path(name).suffix.lower() not in TYPES:
                return self.page(400, error=f"{name}: the page reads .csv and .parquet")
            path = Path(tempfile.mkdtemp(dir=self.folder)) / name
            with path.open("wb") as target:
                while block := await file.read(2**20):
                    target.write(block)
        try:
            number = self.add(path)
        except (ValueError, OSError, ImportError) as error:
            return self.page(400, error=str(error))
        return RedirectResponse(f"/{self.token}/{number}/", 303, _HEADERS)

    async def sheet(self, request: Request) -> Response:
        """Show a file: its columns, the work on it, or what came of it."""
        sheet = self._sheet(request)
        names = {"report": REPORT, "model": MODEL, "calibrated": CALIBRATED}
        return self.page(
            sheet=sheet,
            number=request.path_params["number"],
            methods=list_calibrators(),
            error=sheet.error,
            names=names,
        )

    async def work(self, request: Request) -> Response:
        """Begin the work on a file in a thread of its own."""
        sheet = self._sheet(request)
        async with request.form(max_files=0, max_fields=20_000) as form:
            choice = ColumnChoice(
                scores=tuple(map(str, form.getlist("scores"))),
                label=str(form.get("label", "")),
                input=str(form.get("input", "probs")),
                method=str(form.get("method", "pool")),
                classes=str(form.get("classes", "")),
                by=str(form.get("by", "")),
            )
        if not sheet.stage:
            sheet.begin("Beginning")
            threading.Thread(target=sheet.work, args=(choice,), daemon=True).start()
        return RedirectResponse(f"/{self.token}/{request.path_params['number']}/", 303, _HEADERS)

    async def progress(self, request: Request) -> Response:
        """Say how far the work is."""
        return JSONResponse(self._sheet(request).progress(), headers=_HEADERS)

    async def download(self, request: Request) -> Response:
        """Send the report, the model or the calibrated file."""
        sheet = self._sheet(request)
        name = request.path_params["name"]
        if name not in (REPORT, MODEL, CALIBRATED) or sheet.verdict is None:
            raise HTTPException(404)
        path = sheet.result(name)
        kept = "save" in request.query_params or name != REPORT
        way = "attachment" if kept else "inline"
        return FileResponse(
            path, filename=path.name, content_disposition_type=way, headers=_HEADERS
        )

    def _sheet(self, request: Request) -> Sheet:
        number = request.path_params["number"]
        if number not in self.sheets:
            raise HTTPException(404)
        return self.sheets[number]


def too_large() -> str:
    """Return the sentence about a file that is not uploaded."""
    return (
        f"the file is larger than {MOST_BYTES // 10**6} MB: start hcal view FILE, which reads a "
        "file where it is"
    )


def serve(
    file: Path | None = None,
    *,
    port: int = 0,
    browser: bool = True,
    ready: Callable[[str], object] = print,
) -> None:
    """Serve the page on 127.0.0.1 until it is interrupted.

    Parameters
    ----------
    file : Path, optional
        A csv or parquet to begin with, which is read where it is, by blocks.
    port : int
        A free one by default.
    browser : bool
        Whether to open the page in the browser.
    ready : callable
        Is told the address.
    """
    with tempfile.TemporaryDirectory(prefix="hcal-view-") as folder, socket.socket() as listener:
        desk = Desk(Path(folder))
        address = f"{desk.token}/" if file is None else f"{desk.token}/{desk.add(file)}/"
        listener.bind((HOST, port))
        url = f"http://{HOST}:{listener.getsockname()[1]}/{address}"
        ready(url)
        if browser:
            threading.Timer(0.5, webbrowser.open, (url,)).start()
        config = uvicorn.Config(desk.app(), log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listener])
