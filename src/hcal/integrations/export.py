"""A fitted calibrator in other forms: ONNX, JSON for any language, and one Python file that needs numpy alone.

All three come from the calibrator's one formula. The JSON says the formula in words beside its numbers; the Python
file holds the source of the formula itself.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from hcal import xp
from hcal._version import __version__
from hcal.fit_record import refuse_segments
from hcal.io.files import atomic_path
from hcal.maps.base import Map
from hcal.methods.base import Calibrator
from hcal.text import without_nan

#: Raised when the layout of the JSON changes.
SCHEMA = 1
#: Points of the curve from P in to P out that the JSON of two classes holds.
_POINTS = 201


def export(calibrator: Calibrator, path: str | os.PathLike[str], **options: Any) -> None:
    """Write a fitted calibrator for use without hcal.

    Parameters
    ----------
    calibrator : Calibrator
    path : path-like
        ``.onnx`` is an ONNX graph, ``.json`` the formula in words and numbers with a worked example, ``.py`` one file
        with ``predict_proba(scores)`` that needs numpy alone.
    **options
        Of :func:`hcal.export_onnx`, for ``.onnx``.

    Examples
    --------
    >>> import hcal, tempfile
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> path = Path(tempfile.mkdtemp()) / "model.py"
    >>> export(cal, path)
    >>> scope = {}
    >>> exec(path.read_text(), scope)
    >>> scope["predict_proba"]([[0.0, 2.0]]).round(2)
    array([[0.25, 0.75]])
    """
    refuse_segments(calibrator, "an exported model")
    suffix = Path(path).suffix.lower()
    if suffix == ".onnx":
        from hcal.integrations.onnx import export_onnx

        return export_onnx(calibrator, path, **options)
    if options:
        raise ValueError(f"{', '.join(options)}: options of .onnx files alone")
    if suffix not in (".json", ".py"):
        raise ValueError(
            f"export writes .onnx, .json or .py, not {suffix or 'a file without an ending'!r}"
        )
    text = as_json(calibrator) if suffix == ".json" else as_python(calibrator)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def as_json(calibrator: Calibrator) -> str:
    """Return a calibrator as JSON: its formula in words, its parameters, and a worked example."""
    whole = calibrator.prediction_
    scores = _example(calibrator)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "hcal": __version__,
        "method": calibrator.name,
        "title": calibrator.title,
        "input": calibrator.input,
        "classes": calibrator.classes_.tolist(),
        "preserves": calibrator.preserves,
        "floor": None if whole.floor is None else float(whole.floor),
        "log_prior_ratio": None if whole.prior is None else _numbers(whole.prior),
        "steps": [
            "Turn the scores into logits: probabilities become their natural logarithms.",
            "If 'floor' is given, raise low log-probabilities: with knee = ln(2 floor) and d = knee - x > 0, "
            "x becomes knee - ln 2 * d / (d + ln 2).",
            "Apply 'map', which gives log-probabilities; take the exponential.",
            "If 'log_prior_ratio' is given, multiply by its exponential and divide each row by its sum.",
            "If 'preserves' is not null and rounding tied the predicted class, keep the class of the top score.",
        ],
        "map": _described(calibrator.map_),
        "example": {
            "scores": _numbers(scores),
            "probs": _numbers(calibrator.predict_proba(scores)),
        },
    }
    if calibrator.n_classes_ == 2:
        content["curve"] = _curve(calibrator)
    return json.dumps(without_nan(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _described(map: Map) -> dict[str, Any]:
    """Return a map in words and numbers, its parts included."""
    found: dict[str, Any] = {"type": type(map).__name__, "formula": inspect.getdoc(type(map))}
    for each in dataclasses.fields(map):  # type: ignore[arg-type]
        value = getattr(map, each.name)
        if isinstance(value, Map):
            found[each.name] = _described(value)
        elif "array" in each.metadata:
            numbers = None if value is None else _numbers(value)
            found[each.name] = {"what": each.metadata["array"].what, "value": numbers}
        else:
            found[each.name] = {"what": each.metadata.get("what", each.name), "value": value}
    return found


def _numbers(value: Any) -> Any:
    """Return numbers as lists; infinity, which JSON lacks, becomes ±1e308."""
    return np.nan_to_num(value, nan=np.nan, posinf=1e308, neginf=-1e308).tolist()


def _example(calibrator: Calibrator) -> Any:
    """Return three rows of scores of the calibrator's kind."""
    k = calibrator.n_classes_
    logits = 2 * np.cos(np.arange(3)[:, None] + np.arange(k) * 1.7)
    logs = xp.log_softmax(logits)
    return {"logits": logits, "log_probs": logs, "probs": np.exp(logs)}[calibrator.input]


def _curve(calibrator: Calibrator) -> dict[str, Any]:
    """Return P(second class) before and after calibration at many points, to plot or interpolate."""
    p = np.linspace(0, 1, _POINTS + 2)[1:-1]
    two = np.stack([1 - p, p], axis=1)
    scores = two if calibrator.input == "probs" else np.log(two)
    return {
        "what": "P(second class) before and after calibration",
        "before": _numbers(p),
        "after": _numbers(calibrator.predict_proba(scores)[:, 1]),
    }


def as_python(calibrator: Calibrator) -> str:
    """Return a Python module that predicts what the calibrator does, with numpy alone."""
    whole = calibrator.prediction_
    sources: dict[str, str] = {}
    for each in _types(whole):
        _add_class(each, sources)
    binary = """
    if x.ndim == 1:
        x = np.stack([1 - x, x] if KIND == "probs" else [0 * x, x], axis=1)"""
    return f'''"""{calibrator.title}, fitted and exported by hcal {__version__}: predict_proba(scores). Needs numpy."""

from __future__ import annotations

import types
from functools import partial
from typing import Any, Literal

import numpy as np

Array = Any
{_numpy_operations()}

xp = types.SimpleNamespace(**globals())


def namespace(x):
    return xp


{"".join(sources.values())}
CLASSES = {calibrator.classes_.tolist()!r}
KIND = {calibrator.input!r}
PREDICTION = {_constructed(whole)}


def predict_proba(scores):
    """Return probabilities (N, {calibrator.n_classes_}) of {calibrator.input}; NaN rows stay NaN."""
    x = np.asarray(scores, dtype=np.float64){binary if calibrator.n_classes_ == 2 else ""}
    with np.errstate(all="ignore"):
        return PREDICTION(x)
'''


def _types(map: Map) -> list[type[Map]]:
    """Return the types of a map and its parts, parts first."""
    values = [getattr(map, each.name) for each in dataclasses.fields(map)]  # type: ignore[arg-type]
    inner = [t for value in values if isinstance(value, Map) for t in _types(value)]
    return list(dict.fromkeys([*inner, type(map)]))


def _constructed(map: Map) -> str:
    """Return a Python expression that creates the map."""
    parts = []
    for each in dataclasses.fields(map):  # type: ignore[arg-type]
        value = getattr(map, each.name)
        if isinstance(value, Map):
            parts.append(f"{each.name}={_constructed(value)}")
        elif isinstance(value, np.ndarray):
            numbers = repr(value.tolist()).replace("inf", "np.inf")
            parts.append(f"{each.name}=np.array({numbers}, dtype=np.{value.dtype})")
        else:
            parts.append(f"{each.name}={value!r}")
    return f"{type(map).__name__}({', '.join(parts)})"


def _numpy_operations() -> str:
    """Return the source of the numpy operations of :mod:`hcal.xp`."""
    source = inspect.getsource(xp)
    kept = [
        node for node in ast.parse(source).body if isinstance(node, ast.Assign | ast.FunctionDef)
    ]
    parts = [ast.get_source_segment(source, node) or "" for node in kept]
    return "\n\n".join(part for part in parts if not part.startswith(("def namespace", "_SELF")))


def _add_class(cls: type[Map], sources: dict[str, str]) -> None:
    """Add the source of a map, after that of every function and constant of hcal that it uses."""
    methods: dict[str, Any] = {"probabilities": Map.probabilities}
    for base in reversed(cls.__mro__):
        if issubclass(base, Map) and base is not Map:
            methods |= {n: f for n, f in vars(base).items() if isinstance(f, FunctionType)}
    methods["compiled"] = Map.compiled  # what is exported is the formula
    unused = ("check", "in_blocks", "narrowed")
    kept = [f for n, f in methods.items() if n == "__call__" or not n.startswith(("__", *unused))]
    for method in kept:
        _add_globals(method, sources)
    names = [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]
    store = "".join(f"        self.{name} = {name}\n" for name in names) or "        pass\n"
    head = f"class {cls.__name__}:\n    def __init__(self, {', '.join(f'{n}=None' for n in names)}):\n{store}\n"
    sources[cls.__name__] = head + "\n".join(map(inspect.getsource, kept)) + "\n\n"


def _add_globals(function: FunctionType, sources: dict[str, str]) -> None:
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if name in sources or name in vars(xp):
            continue
        if isinstance(value, FunctionType) and value.__module__.startswith("hcal"):
            _add_globals(value, sources)
            sources[name] = inspect.getsource(value) + "\n\n"
        elif isinstance(value, (int, float, str, tuple, dict, np.ndarray)):
            shown = (
                f"np.array({value.tolist()!r})" if isinstance(value, np.ndarray) else repr(value)
            )
            sources[name] = f"{name} = {shown}\n\n\n"


def _names(code: Any) -> list[str]:
    inner = [name for const in code.co_consts if inspect.iscode(const) for name in _names(const)]
    return [*code.co_names, *inner]
