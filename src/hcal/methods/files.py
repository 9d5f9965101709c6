"""Save fitted calibrators to files and load them."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

from hcal.fit_record import FitRecord
from hcal.inputs import check_kind
from hcal.io.model_file import read_model, reason, write_model
from hcal.io.request import Request
from hcal.maps.base import build_map
from hcal.maps.prediction import Prediction
from hcal.methods.base import Calibrator
from hcal.methods.parameters import check_params
from hcal.methods.registry import get_calibrator, is_calibrator, list_calibrators

#: Calibrators that consist of others; they have ``members_``, ``facts()`` and ``restore(members, facts)``.
_COMPOSITES: Final = {
    "multilabel": "hcal.methods.multilabel.MultilabelCalibrator",
    "multiple_choice": "hcal.language_models.calibrator.MultipleChoiceCalibrator",
}
#: The fields of the header of a calibrator, and of one that consists of others.
_KINDS: dict[str, Any] = {
    "name": str, "params": dict, "kind": str, "map": dict, "preserves": str | None, "fit": dict,
}  # fmt: skip
_KINDS_OF_COMPOSITES: dict[str, Any] = {"name": str, "params": dict, "members": dict, "facts": dict}
#: Prefixes of the arrays of the map and of the fingerprint of the rows, and the names of the other two arrays.
_MAP, _ROWS, _FLOOR, _PRIOR = "map.", "fitted_on.", "floor", "prior"


def save(calibrator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator to one file: safetensors with a JSON header and a checksum.

    Parameters
    ----------
    calibrator : Calibrator
    path : path-like

    Examples
    --------
    >>> import hcal, tempfile
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> path = os.path.join(tempfile.mkdtemp(), "model.hcal")
    >>> save(cal, path)
    >>> bool((load(path).predict_proba([[0.0, 1.0]]) == cal.predict_proba([[0.0, 1.0]])).all())
    True
    """
    if hasattr(calibrator, "members_"):
        header, arrays = _describe_members(calibrator)
    elif isinstance(calibrator, Calibrator):
        header, arrays = describe(calibrator)
    else:
        hint = ""
        if hasattr(calibrator, "calibrator_"):
            hint = ": save its calibrator_, and the classifier itself with joblib or skops"
        elif hasattr(calibrator, "calibrated_classifiers_"):
            hint = (
                ": save it with joblib or skops, because it has several classifiers and calibrators"
            )
        raise TypeError(
            f"hcal.save takes a fitted calibrator, got {type(calibrator).__name__}{hint}"
        )
    write_model(path, header, arrays)


def describe(calibrator: Calibrator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the arrays that a file stores for a fitted calibrator; :func:`rebuild` reverses this."""
    prediction = calibrator.prediction_
    params = plain_params(calibrator)
    for name, value in params.items():
        if callable(value):
            raise ValueError(
                f"the parameter {name!r} is a function, and a model file holds no code: set it to a value "
                f"with set_params({name}=…) before you save; the fitted model stays as it is"
            )
    header = {
        "name": calibrator.name,
        "params": params,
        "kind": prediction.kind,
        "map": prediction.map.options(),
        "preserves": prediction.preserves,
        "fit": calibrator.fit_.to_json(),
    }
    arrays = {f"{_MAP}{name}": array for name, array in prediction.map.arrays().items()}
    for name, array in calibrator.fit_.fingerprint.items():
        arrays[f"{_ROWS}{name}"] = array
    for name, array in ((_FLOOR, prediction.floor), (_PRIOR, prediction.prior)):
        if array is not None:
            arrays[name] = array
    return header, arrays


def plain_params(calibrator: Any) -> dict[str, Any]:
    """Return the parameters of a calibrator as plain values; one that is a calibrator becomes its name and parameters.

    >>> from hcal.methods.ts import TemperatureScaling
    >>> from hcal.segments import SegmentedCalibrator
    >>> plain_params(SegmentedCalibrator(TemperatureScaling()))["method"]
    {'name': 'ts', 'params': {'input': 'logits'}}
    """
    params = calibrator.get_params(deep=False)
    inner = {name: value for name, value in params.items() if isinstance(value, Calibrator)}
    described = {
        name: {"name": value.name, "params": plain_params(value)} for name, value in inner.items()
    }
    return {**params, **described}


def _params(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that :func:`plain_params` describes; only registered methods can be among them."""
    inner = {
        name: value for name, value in plain.items() if isinstance(value, dict) and "name" in value
    }
    return {**plain, **{name: _unfitted(value) for name, value in inner.items()}}


def _unfitted(described: dict[str, Any]) -> Calibrator:
    name = described["name"]
    params = described.get("params")
    if name not in list_calibrators() or not isinstance(params, dict):
        raise ValueError(
            f"a parameter is the method {str(name)[:60]!r}, which is not registered here"
        )
    method = get_calibrator(name)
    return method(**check_params(method, params))


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator that :func:`save` wrote with this version or an earlier one, from 0.4 on.

    The checksum, the header and every array are checked against the declarations of the method before anything is
    computed. A file that does not pass is refused with an error that names what is wrong.

    Examples
    --------
    >>> load("no such file")
    Traceback (most recent call last):
    ...
    FileNotFoundError: no such file: no such file
    """
    header, arrays = read_model(path)
    try:
        return _rebuild_members(header, arrays) if "members" in header else rebuild(header, arrays)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a whole hcal model file ({reason(error)})") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a sound hcal model file: {reason(error)}") from None


def rebuild(header: dict[str, Any], arrays: dict[str, Any]) -> Calibrator:
    """Return the calibrator that a header and arrays describe, after checking them."""
    _check_header(header)
    name = header["name"]
    if not is_calibrator(name):
        raise ValueError(
            f"it holds the method {name[:60]!r}, which is not registered here: import its module and call "
            "hcal.register(its class) first, or upgrade hcal if the method is newer"
        )
    method = get_calibrator(name)
    calibrator = method(**check_params(method, _params(header["params"])))
    # Such methods decide in the fit, or their common calibrator does; the others preserve what they declare.
    chosen = not {"preserve", "method"}.isdisjoint(header["params"])
    if not chosen and header["preserves"] not in (None, method.promises):
        raise ValueError(f"'preserves' is {header['preserves']!r}, which {name!r} does not promise")
    parts = {
        start: {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
        for start in (_MAP, _ROWS)
    }
    known = {_FLOOR, _PRIOR, *(f"{start}{n}" for start, part in parts.items() for n in part)}
    if unknown := sorted(set(arrays) - known):
        raise ValueError(f"{unknown[0][:80]!r} is not an array of a model")
    record = FitRecord.from_json(header["fit"], parts[_ROWS])
    Request.from_json(record.request)
    fitted_map = build_map(calibrator.types_of_maps(), header["map"], parts[_MAP])
    fitted_map.check_fields(record.sizes)
    prediction = Prediction(
        map=fitted_map,
        kind=header["kind"],
        preserves=header["preserves"],
        floor=arrays.get(_FLOOR),
        prior=arrays.get(_PRIOR),
    )
    prediction.check_fields({"K": record.n_classes})
    calibrator.prediction_ = prediction
    calibrator.fit_ = record
    return calibrator


def _describe_members(calibrator: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and arrays of a calibrator that consists of others; arrays are named ``member/array``."""
    headers: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for key, member in calibrator.members_.items():
        headers[key], own = describe(member)
        arrays |= {f"{key}/{name}": array for name, array in own.items()}
    params = calibrator.get_params(deep=False)
    return {
        "name": calibrator.name,
        "params": params,
        "members": headers,
        "facts": calibrator.facts(),
    }, arrays


def _rebuild_members(header: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """Return a calibrator that consists of others; every member is checked like a model of its own."""
    _check_kinds(header, _KINDS_OF_COMPOSITES)
    if header["name"] not in _COMPOSITES:
        raise ValueError(
            f"it holds {header['name'][:60]!r}, declared is one of {', '.join(_COMPOSITES)}"
        )
    module, _, class_name = _COMPOSITES[header["name"]].rpartition(".")
    method = getattr(importlib.import_module(module), class_name)
    members = {}
    for key, each in header["members"].items():
        if type(each) is not dict:
            raise ValueError(f"the member {key[:40]!r} is no calibrator")
        members[key] = rebuild(
            each, {n.partition("/")[2]: a for n, a in arrays.items() if n.startswith(f"{key}/")}
        )
    stray = [n for n in arrays if n.partition("/")[0] not in members]
    if stray:
        raise ValueError(f"{stray[0][:80]!r} is not an array of a member")
    return method(**check_params(method, header["params"])).restore(members, header["facts"])


def _check_kinds(header: dict[str, Any], kinds: dict[str, Any]) -> None:
    for name, kind in kinds.items():
        value = header[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise ValueError(
                f"{name!r} is {type(value).__name__}, declared is {getattr(kind, '__name__', kind)}"
            )


def _check_header(header: dict[str, Any]) -> None:
    _check_kinds(header, _KINDS)
    if header["preserves"] not in ("order", "accuracy", None):
        raise ValueError(
            f"'preserves' is {header['preserves'][:40]!r}, declared is 'order', 'accuracy' or null"
        )
    check_kind(header["kind"])
