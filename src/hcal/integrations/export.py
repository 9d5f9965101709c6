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
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from hcal import xp
from hcal._version import __version__
from hcal.calibrators.base import Calibrator
from hcal.io.atomic import atomic_path
from hcal.maps.base import Map
from hcal.maps.prediction import Prediction

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
    suffix = Path(path).suffix.lower()
    if suffix == ".onnx":
        from hcal.integrations.onnx import export_onnx

        return export_onnx(calibrator, path, **options)
    if options:
        raise ValueError(f"{', '.join(options)}: options of .onnx files alone")
    if suffix not in (".json", ".py"):
        raise ValueError(f"export writes .onnx, .json or .py, not {suffix or 'a file without an ending'!r}")
    text = as_json(calibrator) if suffix == ".json" else as_python(calibrator)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def as_json(calibrator: Calibrator) -> str:
    """Return a calibrator as JSON: what it computes in words, the numbers, and an example to check against."""
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
        "example": {"scores": _numbers(scores), "probs": _numbers(calibrator.predict_proba(scores))},
    }
    if calibrator.n_classes_ == 2:
        content["curve"] = _curve(calibrator)
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


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
    """Return numbers as JSON has them: infinity becomes a number beyond any use, NaN becomes null."""
    if isinstance(value, np.ndarray):
        return _numbers(value.tolist())
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else float(np.copysign(1e308, value))
    return value


def _example(calibrator: Calibrator) -> Any:
    """Return three rows of scores of the calibrator's kind."""
    k = calibrator.n_classes_
    logits = 2 * np.cos(np.arange(3)[:, None] + np.arange(k) * 1.7)
    logs = xp.log_softmax(logits)
    return {"logits": logits, "log_probs": logs, "probs": np.exp(logs)}[calibrator.input]


def _curve(calibrator: Calibrator) -> dict[str, Any]:
    """Return P(second class) in and out at many points: enough to plot, or to interpolate."""
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
    needed = _Needed()
    for each in _types(whole):
        needed.add_class(each)
    needed.add_function(Prediction.__call__.__globals__["to_logits"])
    binary = (
        '    if x.ndim == 1:\n        x = np.stack([1 - x, x] if KIND == "probs" else [0 * x, x], axis=1)\n'
    )
    return "\n".join(
        [
            f'"""{calibrator.title}, fitted and exported by hcal {__version__}: predict_proba(scores). Needs numpy."""',
            "",
            "import types",
            "from functools import partial",
            "",
            "import numpy as np",
            "",
            _numpy_operations(),
            *needed.sources,
            "",
            f"CLASSES = {calibrator.classes_.tolist()!r}",
            f"KIND = {calibrator.input!r}",
            f"PREDICTION = {_constructed(whole)}",
            "",
            "",
            "def predict_proba(scores):",
            f'    """Return probabilities (N, {calibrator.n_classes_}) of {calibrator.input}; NaN rows stay NaN."""',
            "    x = np.asarray(scores, dtype=np.float64)",
            *([binary.rstrip()] if calibrator.n_classes_ == 2 else []),
            '    with np.errstate(all="ignore"):',
            "        return PREDICTION(x)",
            "",
        ]
    )


def _types(map: Map) -> list[type[Map]]:
    """Return the types of a map and its parts, parts first."""
    values = [getattr(map, each.name) for each in dataclasses.fields(map)]  # type: ignore[arg-type]
    inner = [t for value in values if isinstance(value, Map) for t in _types(value)]
    return list(dict.fromkeys([*inner, type(map)]))


def _constructed(map: Map) -> str:
    """Return the expression that makes a map again."""
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
    """Return the numpy operations of :mod:`hcal.xp` as a namespace of the exported file."""
    body = ast.parse(inspect.getsource(xp)).body
    names = [
        ast.unparse(node)
        for node in body
        if isinstance(node, ast.Assign) and "_SELF" not in ast.unparse(node)
    ]
    functions = [_plain(n) for n in body if isinstance(n, ast.FunctionDef) and n.name != "namespace"]
    export = "xp = types.SimpleNamespace(**globals())"
    return "\n".join([*names, "", *functions, "", export, "", "", "def namespace(x):", "    return xp", ""])


def _plain(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return the source of a function or class without types, decorators and documentation."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            each.decorator_list = [
                d for d in each.decorator_list if getattr(d, "id", "") in ("property", "staticmethod")
            ]
            first = each.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(each.body) > 1:
                each.body = each.body[1:]
        if isinstance(each, ast.FunctionDef):
            each.returns = None
            for argument in [*each.args.args, *each.args.kwonlyargs]:
                argument.annotation = None
    return "\n\n" + ast.unparse(node)


class _Needed:
    """The sources of the maps and of every function and constant of hcal that they use, in order."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self._seen: set[str] = set(vars(xp))

    def add_class(self, cls: type[Map]) -> None:
        methods = {
            name: value
            for base in reversed(cls.__mro__)
            if issubclass(base, Map) and base is not Map
            for name, value in vars(base).items()
            if (isinstance(value, FunctionType) and not name.startswith("__")) or name == "__call__"
        }
        for unused in ("check", "in_blocks", "narrowed"):
            methods.pop(unused, None)
        methods.setdefault("probabilities", Map.probabilities)
        methods["compiled"] = Map.compiled  # what is exported is the formula
        for method in methods.values():
            self._add_globals(method)
        names = [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]
        body = "\n".join(
            textwrap.indent(_source(method).strip("\n"), "    ") + "\n" for method in methods.values()
        )
        store = "\n".join(f"        self.{name} = {name}" for name in names) or "        pass"
        head = f"\n\nclass {cls.__name__}:\n    def __init__(self, {', '.join(f'{n}=None' for n in names)}):\n{store}\n"
        self.sources.append(f"{head}\n{body}")

    def add_function(self, function: FunctionType) -> None:
        if function.__name__ in self._seen:
            return
        self._seen.add(function.__name__)
        self._add_globals(function)
        self.sources.append(_source(function))

    def _add_globals(self, function: FunctionType) -> None:
        for name in _names(function.__code__):
            value = function.__globals__.get(name)
            if name in self._seen or value is None or isinstance(value, ModuleType):
                continue
            if isinstance(value, FunctionType) and value.__module__.startswith("hcal"):
                self.add_function(value)
            elif isinstance(value, (int, float, str, tuple, dict, np.ndarray)):
                self._seen.add(name)
                shown = f"np.array({value.tolist()!r})" if isinstance(value, np.ndarray) else repr(value)
                self.sources.append(f"\n{name} = {shown}")


def _names(code: Any) -> list[str]:
    inner = [name for const in code.co_consts if inspect.iscode(const) for name in _names(const)]
    return [*code.co_names, *inner]


def _source(function: Any) -> str:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    node = tree.body[0]
    assert isinstance(node, ast.FunctionDef), f"{function!r} is not written with def"
    return _plain(node)
