"""Calibrators in files: what a fitted method is, written down, and built again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hcal.calibrators.base import Calibrator, Fitted, State
from hcal.calibrators.multiple_choice import MultipleChoiceCalibrator
from hcal.calibrators.params import check_params
from hcal.calibrators.registry import get_calibrator, list_calibrators
from hcal.io.class_names import ClassName, check_classes
from hcal.io.model_file import read_model, reason, write_model

#: The most classes a file may speak of.
MOST_CLASSES = 10_000_000
# Between the name of a member and that of its array, where a model holds models.
_OF = "."


def save(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
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
    calibrator._check_fitted()
    calibrator._check_state()  # a state that could not be read again is not written
    header, arrays = _described(calibrator), dict(calibrator.state_)
    members: Mapping[str, Calibrator] = getattr(calibrator, "members_", {})
    if members:  # a model of models: their arrays carry the member's name
        header["members"] = {key: _described(member) for key, member in members.items()}
        for key, member in members.items():
            arrays |= {f"{key}{_OF}{name}": array for name, array in member.state_.items()}
    write_model(path, header, arrays)


def _described(calibrator: Calibrator) -> dict[str, Any]:
    """Return what the header says of a calibrator."""
    header = {
        "name": calibrator.name,
        "params": calibrator.get_params(deep=False),
        "n_classes": calibrator.n_classes_,
        "converged": calibrator.converged_,
        "info": calibrator.info_,
        "scores": calibrator.scores_,
    }
    names = getattr(calibrator, "class_names_", None)
    return header if names is None else {**header, "classes": list(names)}


def load(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator that :func:`save` wrote, in this or any earlier version.

    The checksum, the header and every array are checked against what the method declares before anything is
    computed: a file either gives a calibrator whose probabilities are probabilities, or is refused with the
    name of what is wrong.

    Examples
    --------
    >>> load("no such file")
    Traceback (most recent call last):
    ...
    FileNotFoundError: no such file: no such file
    """
    header, state = read_model(path)
    name = header.get("name")
    if isinstance(name, str) and name not in (*list_calibrators(), MultipleChoiceCalibrator.name):
        raise ValueError(
            f"{path} holds a model of the method {name[:60]!r}, which is not registered here: import its "
            "module and call hcal.register(its class) first, or upgrade hcal if the method is newer"
        )
    try:
        return _rebuild(header, state)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a whole hcal model file ({reason(error)})") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a sound hcal model file: {reason(error)}") from None


def _rebuild(header: dict[str, Any], state: State) -> Calibrator:
    _check_header(header)
    if header["name"] == MultipleChoiceCalibrator.name:
        questions: Calibrator = _rebuild_questions(header, state)
        return questions
    method = get_calibrator(header["name"])
    calibrator = method(**check_params(method, header["params"]))
    fitted = Fitted(state, header["converged"], "", header["info"])
    calibrator._remember(fitted, header["n_classes"], _classes(header))
    calibrator._check_state()
    calibrator.scores_ = header["scores"]
    return calibrator


def _rebuild_questions(header: dict[str, Any], state: State) -> Any:
    """Return a model of models; its members are plain ones."""
    described = header.get("members", {})
    if type(described) is not dict:
        raise ValueError(f"'members' is {type(described).__name__}, declared is dict")
    members = {}
    for key, each in described.items():
        if type(each) is not dict or each.get("name") == MultipleChoiceCalibrator.name:
            raise ValueError(f"the member {key[:40]!r} is no calibrator")
        start = f"{key}{_OF}"
        own = {name.removeprefix(start): a for name, a in state.items() if name.startswith(start)}
        members[key] = _rebuild(each, own)
        state = {name: a for name, a in state.items() if not name.startswith(start)}
    params = check_params(MultipleChoiceCalibrator, header["params"])
    return MultipleChoiceCalibrator(**params)._restore(state, members, header)


def _classes(header: dict[str, Any]) -> tuple[ClassName, ...] | None:
    """Return the names of the classes; files without them, all early ones, have numbers."""
    if "classes" not in header:
        return None
    if not isinstance(header["classes"], list):
        raise ValueError("'classes' must be a list of names")
    return check_classes(header["classes"], header["n_classes"])


def _check_header(header: dict[str, Any]) -> None:
    kinds: dict[str, type] = {
        "name": str,
        "params": dict,
        "n_classes": int,
        "converged": bool,
        "info": dict,
        "scores": dict,
    }
    for name, kind in kinds.items():
        if type(header[name]) is not kind:
            raise ValueError(f"{name!r} is {type(header[name]).__name__}, declared is {kind.__name__}")
    if not 2 <= header["n_classes"] <= MOST_CLASSES:
        raise ValueError(f"'n_classes' is {header['n_classes']}, declared is 2 to {MOST_CLASSES}")
    if not isinstance(header["info"].get("fitted_on", {}), dict):
        raise ValueError("'info.fitted_on' must be an object")
    for when in ("before", "after"):
        scores = header["scores"][when]
        if not isinstance(scores, dict) or not all(isinstance(v, int | float) for v in scores.values()):
            raise ValueError(f"'scores.{when}' must be an object of numbers")
