"""ONNX: a fitted calibrator as a graph that onnxruntime, and anything else that reads ONNX, can run.

PyTorch's own exporter writes the graph from the one formula of the calibrator.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import Literal

from hcal._version import __version__
from hcal.extras import load_extra
from hcal.fit_record import refuse_segments
from hcal.io.files import atomic_path
from hcal.methods.base import Calibrator

#: ONNX operator set: onnxruntime 1.14 (2023) and later.
OPSET = 18


def export_onnx(
    calibrator: Calibrator,
    path: str | os.PathLike[str],
    *,
    width: Literal["float32", "float64"] = "float32",
    dense: bool = False,
    one_column: bool = False,
) -> None:
    """Write a fitted calibrator as an ONNX file.

    onnxruntime then gives what ``predict_proba`` gives, to 1e-5 in float32. A method that preserves accuracy keeps
    every argmax. A row with NaN or +inf comes out NaN.

    Parameters
    ----------
    calibrator : Calibrator
    path : path-like
    width : {"float32", "float64"}
        Float width of the graph. Methods that look up steps are computed in float64 inside.
    dense : bool
        Scores of shape (N, K, H, W) instead of (N, K).
    one_column : bool
        Scores of shape (N, 1) or (N,), the score of the positive class of two; the output has both columns.

    Examples
    --------
    >>> import hcal, pathlib, tempfile
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "ts.onnx"
    >>> export_onnx(cal, target)
    >>> target.exists()
    True
    """
    refuse_segments(calibrator, "an ONNX graph")
    torch = load_extra("exporting to ONNX", "torch", "torch")
    load_extra("exporting to ONNX", "onnxscript", "onnx")
    onnx = load_extra("exporting to ONNX", "onnx", "onnx")
    from hcal.integrations.exact_numbers import exported_exactly
    from hcal.integrations.torch import CalibrationHead

    if width not in ("float32", "float64"):
        raise ValueError(f'width must be "float32" or "float64", got {width!r}')
    if one_column and calibrator.n_classes_ != 2:
        raise ValueError(
            f"one_column is for two classes; this calibrator has {calibrator.n_classes_}"
        )
    columns = 1 if one_column else calibrator.n_classes_
    shape, free = ((2, columns, 3, 3), (0, 2, 3)) if dense else ((2, columns), (0,))
    names = {0: "batch", 2: "height", 3: "width"}
    with warnings.catch_warnings():  # the exporter speaks of its own internals
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            exported_exactly(CalibrationHead(calibrator).eval(), getattr(torch, width)),
            (torch.zeros(shape, dtype=getattr(torch, width)),),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=["scores"],
            output_names=["probs"],
            dynamic_shapes=({axis: torch.export.Dim(names[axis]) for axis in free},),
        )
    model = program.model_proto
    model.producer_name, model.producer_version = "hcal", __version__
    facts = {
        "name": calibrator.name,
        "input": calibrator.prediction_.kind,
        "preserves": calibrator.preserves,
        "classes": [str(name) for name in calibrator.classes_],
    }
    onnx.helper.set_model_props(model, {"hcal": json.dumps(facts)})
    onnx.checker.check_model(model, full_check=True)
    with atomic_path(path) as temporary:
        onnx.save(model, temporary)
