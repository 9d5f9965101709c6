"""A fitted calibrator in other forms: ONNX, and JSON for any language.

All of them come from the calibrator's one formula.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hcal.fit_record import refuse_segments
from hcal.integrations.json_file import as_json
from hcal.io.files import atomic_path
from hcal.methods.base import Calibrator

_FORMS = ".onnx, .json"


def export(calibrator: Calibrator, path: str | os.PathLike[str], **options: Any) -> None:
    """Write a fitted calibrator for use without hcal.

    Parameters
    ----------
    calibrator : Calibrator
    path : path-like
        ``.onnx`` is an ONNX graph; ``.json`` is the formula step by step, in words and numbers, with an example.
    **options
        Of :func:`hcal.export_onnx`, for ``.onnx``.

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
    if suffix == ".onnx":
        from hcal.integrations.onnx import export_onnx

        return export_onnx(calibrator, path, **options)
    if options:
        raise ValueError(f"{', '.join(options)}: options of .onnx files alone")
    if suffix == ".py":
        raise ValueError(
            "export writes no .py since 0.4: write .json and read it as the guide on deployment does, or .onnx"
        )
    if suffix != ".json":
        raise ValueError(f"export writes {_FORMS}, not {suffix or 'a file without an ending'!r}")
    refuse_segments(calibrator, f"a {suffix} file")
    with atomic_path(path) as temporary:
        temporary.write_text(as_json(calibrator), encoding="utf-8")


def _check_calibrator(calibrator: Any) -> None:
    """Refuse what is no fitted calibrator, with the words that say what to pass."""
    if not isinstance(calibrator, Calibrator):
        hint = ""
        if hasattr(calibrator, "calibrated_classifiers_"):
            hint = (
                ": of a CalibratedClassifier, export its calibrator_ (fitted with ensemble=False) and give it the "
                "scores of estimator_"
            )
        raise TypeError(f"export takes a fitted calibrator, got {type(calibrator).__name__}{hint}")
    if "prediction_" not in vars(calibrator):
        raise ValueError(f"this {type(calibrator).__name__} is not fitted: call fit first")
