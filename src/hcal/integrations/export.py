"""A fitted calibrator in other forms: ONNX, SQL, JavaScript, and JSON for any language.

All of them come from the calibrator's one formula.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hcal.fit_record import refuse_segments
from hcal.integrations.javascript import as_javascript
from hcal.integrations.json_file import as_json
from hcal.integrations.sql import as_sql
from hcal.io.files import atomic_path
from hcal.methods.base import Calibrator

#: The endings of files that export writes, and their options.
_OPTIONS: dict[str, tuple[str, ...]] = {
    ".onnx": ("width", "dense", "one_column"),
    ".json": (),
    ".sql": ("dialect", "table", "columns"),
    ".mjs": (),
}


def export(calibrator: Calibrator, path: str | os.PathLike[str], **options: Any) -> None:
    """Write a fitted calibrator for use without hcal.

    Parameters
    ----------
    calibrator : Calibrator
    path : path-like
        ``.onnx`` is an ONNX graph; ``.json`` is the formula step by step, in words and numbers, with an example;
        ``.sql`` is a query; ``.mjs`` is an ES module for browsers and node.
    **options
        For ``.onnx``: those of :func:`hcal.export_onnx`. For ``.sql``: ``dialect`` (``"duckdb"``, ``"postgres"`` or
        ``"sqlite"``), ``table``, and ``columns``, the names of the columns of scores.

    Examples
    --------
    >>> import hcal, json, tempfile
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> path = Path(tempfile.mkdtemp()) / "model.json"
    >>> export(cal, path)
    >>> round(json.loads(path.read_text())["arrays"]["map.beta"]["value"], 4)
    0.5493
    """
    _check_calibrator(calibrator)
    suffix = Path(path).suffix.lower()
    _check_options(suffix, options)
    if suffix == ".onnx":
        from hcal.integrations.onnx import export_onnx

        return export_onnx(calibrator, path, **options)
    if suffix == ".sql":
        text = as_sql(calibrator, **options)
    else:
        refuse_segments(calibrator, f"a {suffix} file")
        text = as_javascript(calibrator) if suffix == ".mjs" else as_json(calibrator)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _check_options(suffix: str, options: Iterable[str]) -> None:
    """Refuse a file of another kind, or options of another kind of file."""
    if suffix == ".py":
        raise ValueError(
            "export writes no .py since 0.4: write .json and read it as the guide on deployment "
            "does, or .onnx"
        )
    if suffix not in _OPTIONS:
        endings = ", ".join(_OPTIONS)
        raise ValueError(f"export writes {endings}, not {suffix or 'a file without an ending'!r}")
    for name in options:
        if name not in _OPTIONS[suffix]:
            owners = [ending for ending, names in _OPTIONS.items() if name in names]
            whose = f"an option of {owners[0]} files alone" if owners else "no option of export"
            raise ValueError(f"{name} is {whose}")


def _check_calibrator(calibrator: object) -> None:
    """Refuse what is no fitted calibrator, with the words that say what to pass."""
    if not isinstance(calibrator, Calibrator):
        hint = ""
        if hasattr(calibrator, "calibrated_classifiers_"):
            hint = (
                ": of a CalibratedClassifier, export its calibrator_ (fitted with ensemble=False) "
                "and give it the scores of estimator_"
            )
        raise TypeError(f"export takes a fitted calibrator, got {type(calibrator).__name__}{hint}")
    if "prediction_" not in vars(calibrator):
        raise ValueError(f"this {type(calibrator).__name__} is not fitted: call fit first")
