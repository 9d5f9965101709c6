"""Save fitted calibrators to files and load them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from types import UnionType
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from hcal.fit_record import FitRecord
from hcal.inputs import check_kind
from hcal.io.model_file import Arrays, read_model, reason, write_model
from hcal.io.request import Request
from hcal.maps.base import Prediction, build_map
from hcal.methods.base import Calibrator
from hcal.methods.parameters import check_params
from hcal.methods.registry import get_calibrator, is_calibrator, list_calibrators
from hcal.text import JsonObject

#: Calibrators that consist of others; they have ``members_``, ``facts()`` and ``restore(members, facts)``.
_COMPOSITES: Final = {
    "multilabel": "hcal.methods.multilabel.MultilabelCalibrator",
    "joint": "hcal.language_models.joint.JointConfidence",
    "multiple_choice": "hcal.language_models.calibrator.MultipleChoiceCalibrator",
}
FieldType: TypeAlias = type | UnionType
#: The fields of the header of a calibrator, and of one that consists of others.
_KINDS: dict[str, FieldType] = {
    "name": str, "params": dict, "kind": str, "map": dict, "preserves": str | None, "fit": dict,
}  # fmt: skip
_KINDS_OF_COMPOSITES: dict[str, FieldType] = {
    "name": str,
    "params": dict,
    "members": dict,
    "facts": dict,
}
#: Prefixes of the arrays of the map and of the fingerprint of the rows.
_MAP = "map."
_ROWS = "fitted_on."
#: The names of the other two arrays.
_FLOOR = "floor"
_PRIOR = "prior"


class Composite(Protocol):
    """A fitted calibrator that consists of others."""

    name: ClassVar[str]
    members_: dict[str, Calibrator]

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return the arguments of the constructor by name."""

    def facts(self) -> JsonObject:
        """Return what a model file stores in addition to the members."""


def save(calibrator: Calibrator | Composite, path: str | os.PathLike[str]) -> None:
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
    if isinstance(calibrator, Calibrator):
        header, arrays = describe(calibrator)
    elif hasattr(calibrator, "members_"):
        header, arrays = _describe_members(calibrator)
    else:
        name = type(calibrator).__name__
        advice = _advice(calibrator)
        raise TypeError(f"hcal.save takes a fitted calibrator, got {name}{advice}")
    write_model(path, header, arrays)


def _advice(other: object) -> str:
    """Say how to save an object that holds calibrators."""
    if hasattr(other, "calibrator_"):
        return ": save its calibrator_, and the classifier itself with joblib or skops"
    if hasattr(other, "calibrated_classifiers_"):
        return ": save it with joblib or skops, because it has several classifiers and calibrators"
    return ""


def describe(calibrator: Calibrator) -> tuple[JsonObject, Arrays]:
    """Return the header and the arrays that a file stores for a fitted calibrator; :func:`rebuild` reverses this."""
    prediction = calibrator.prediction_
    params = plain_params(calibrator)
    for name, value in params.items():
        if callable(value):
            raise ValueError(
                f"the parameter {name!r} is a function, and a model file holds no code: "
                f"set it to a value with set_params({name}=…) before you save; "
                "the fitted model stays as it is"
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
    if prediction.floor is not None:
        arrays[_FLOOR] = prediction.floor
    if prediction.prior is not None:
        arrays[_PRIOR] = prediction.prior
    return header, arrays


def plain_params(calibrator: Calibrator) -> JsonObject:
    """Return the parameters of a calibrator as plain values; one that is a calibrator becomes its name and parameters.

    >>> from hcal.methods.ts import TemperatureScaling
    >>> from hcal.segments import SegmentedCalibrator
    >>> plain_params(SegmentedCalibrator(TemperatureScaling()))["method"]
    {'name': 'ts', 'params': {'input': 'logits'}}
    """
    params: JsonObject = dict(calibrator.get_params(deep=False))
    for name, value in params.items():
        if isinstance(value, Calibrator):
            params[name] = {"name": value.name, "params": plain_params(value)}
    return params


def _params(plain: JsonObject) -> JsonObject:
    """Return the parameters that :func:`plain_params` describes; only registered methods can be among them."""
    params = dict(plain)
    for name, value in plain.items():
        if isinstance(value, dict) and "name" in value:
            params[name] = _unfitted_inner(value)
    return params


def _unfitted_inner(described: JsonObject) -> Calibrator:
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


def rebuild(header: JsonObject, arrays: Arrays) -> Calibrator:
    """Return the calibrator that a header and arrays describe, after checking them."""
    _check_header(header)
    name = header["name"]
    if not is_calibrator(name):
        raise ValueError(
            f"it holds the method {name[:60]!r}, which is not registered here: import its module "
            "and call hcal.register(its class) first, or upgrade hcal if the method is newer"
        )
    method = get_calibrator(name)
    calibrator = method(**check_params(method, _params(header["params"])))
    # Such methods decide in the fit, or their common calibrator does; the others preserve what they declare.
    is_decided_in_fit = not {"preserve", "method"}.isdisjoint(header["params"])
    if not is_decided_in_fit and header["preserves"] not in (None, method.promises):
        raise ValueError(f"'preserves' is {header['preserves']!r}, which {name!r} does not promise")

    for array_name in sorted(arrays):
        if array_name not in (_FLOOR, _PRIOR) and not array_name.startswith((_MAP, _ROWS)):
            raise ValueError(f"{array_name[:80]!r} is not an array of a model")
    record = FitRecord.from_json(header["fit"], _with_prefix(_ROWS, arrays))
    Request.from_json(record.request)
    calibrator.fit_ = record
    fitted_map = build_map(calibrator.types_of_maps(), header["map"], _with_prefix(_MAP, arrays))
    fitted_map.check_fields(record.sizes)
    prediction = Prediction(
        map=fitted_map,
        kind=header["kind"],
        preserves=header["preserves"],
        floor=arrays.get(_FLOOR),
        prior=arrays.get(_PRIOR),
        states_zero=method.states_zero(arrays.get(_PRIOR)),
    )
    prediction.check_fields({"K": record.n_classes})
    calibrator.prediction_ = prediction
    return calibrator


def _with_prefix(prefix: str, arrays: Arrays) -> Arrays:
    """Return the arrays whose names have a prefix, by the rest of their names."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays[name] for name in names}


def _describe_members(calibrator: Composite) -> tuple[JsonObject, Arrays]:
    """Return the header and arrays of a calibrator that consists of others; arrays are named ``member/array``."""
    headers: JsonObject = {}
    arrays: Arrays = {}
    for key, member in calibrator.members_.items():
        headers[key], member_arrays = describe(member)
        for name, array in member_arrays.items():
            arrays[f"{key}/{name}"] = array
    header = {
        "name": calibrator.name,
        "params": calibrator.get_params(deep=False),
        "members": headers,
        "facts": calibrator.facts(),
    }
    return header, arrays


def _rebuild_members(header: JsonObject, arrays: Arrays) -> Any:
    """Return a calibrator that consists of others; every member is checked like a model of its own."""
    _check_kinds(header, _KINDS_OF_COMPOSITES)
    if header["name"] not in _COMPOSITES:
        raise ValueError(
            f"it holds {header['name'][:60]!r}, declared is one of {', '.join(_COMPOSITES)}"
        )
    module, _, class_name = _COMPOSITES[header["name"]].rpartition(".")
    method = getattr(importlib.import_module(module), class_name)
    members = {}
    for key, member in header["members"].items():
        if type(member) is not dict:
            raise ValueError(f"the member {key[:40]!r} is no calibrator")
        members[key] = rebuild(member, _with_prefix(f"{key}/", arrays))
    for array_name in arrays:
        key, _, _ = array_name.partition("/")
        if key not in members:
            raise ValueError(f"{array_name[:80]!r} is not an array of a member")
    calibrator = method(**check_params(method, header["params"]))
    return calibrator.restore(members, header["facts"])


def _check_kinds(header: JsonObject, kinds: Mapping[str, FieldType]) -> None:
    for name, kind in kinds.items():
        value = header[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            declared = getattr(kind, "__name__", kind)
            raise ValueError(f"{name!r} is {type(value).__name__}, declared is {declared}")


def _check_header(header: JsonObject) -> None:
    _check_kinds(header, _KINDS)
    if header["preserves"] not in ("order", "accuracy", None):
        raise ValueError(
            f"'preserves' is {header['preserves'][:40]!r}, declared is 'order', 'accuracy' or null"
        )
    check_kind(header["kind"])
