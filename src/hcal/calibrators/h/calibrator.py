"""HCalibrator: h-calibration (Huang et al., TPAMI 2025), the flagship."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcal.calibrators.base import PRIOR, CalibrationWarning, Calibrator, Fitted, Preserves
from hcal.calibrators.declared import parameters
from hcal.calibrators.h.state import STATES
from hcal.inputs import InputKind
from hcal.maps.predict import graph_map, predict_map
from hcal.runtime.device_rows import DeviceRows, Logits
from hcal.runtime.fused import takes_fused
from hcal.numerics import FloatArray, IntArray
from hcal.runtime.ops import Ops
from hcal.solvers.rows import ArrayRows, FitRows

if TYPE_CHECKING:
    from torch import Tensor

Protocol = Literal["default", "paper"]
Select = Literal["top-label", "class-wise", "nll"]
#: Scores from which on a fit stays on the device of its input; fewer are fitted sooner on the host.
_WORTH_A_DEVICE = 1_000_000


@parameters
class HCalibrator(Calibrator):
    """One calibrator for every level of calibration, judged by windowed h-errors; or the paper's protocol.

    Huang et al.: h-calibration: Rethinking Classifier Recalibration with Probabilistic Error-Bounded
    Objective, TPAMI 2025.

    Parameters
    ----------
    protocol : {"default", "paper"}
        ``"default"``: one calibrator for everything, its candidates judged out of fold by a criterion that
        includes a proper score. ``"paper"``: the twelve maps of the paper, trained and selected on the
        calibration set itself, as published.
    select : {"top-label", "class-wise", "nll"}, optional
        The paper protocol's selector: dECE (the default there), CWECE_a or NLL on the calibration set.
    preserve : {"auto", "accuracy", "order", None}
        What the default protocol must keep. ``"auto"``: with two classes the ranking of the rows (the
        probability rises strictly with the score; which side of ½ a row falls on may change, and is
        reported), with more the most probable class. ``"accuracy"``: the most probable class, with two
        classes beside the ranking. ``"order"``: the order of all classes. ``None``: nothing but, with two
        classes, the ranking. The maps of the paper protocol keep the order in any case.
    input : {"logits", "probs", "log_probs"}
    device : str, optional
        Where the paper protocol trains, e.g. ``"cuda"``; by default the CPU. The default protocol works on
        the CPU, in threads.
    random_state : int
    verbose : bool
        Show a progress bar from the start (long fits on a terminal show one anyway), and say on stderr how
        many predictions of two classes change side.
    loss : {"paper", "published"}
        Of the paper protocol: its own loss, or the published code's variant (slow; for comparison).
    batch_size : int, optional
        Rows a step of the paper protocol; by default all.

    Attributes
    ----------
    info_ : dict
        The chosen map, every candidate's score, and the loss curve of the winner; with two classes
        ``changed_sides`` and, in ``notes``, the sentence on it that the command and ``verbose`` print.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(400, 3)) * 2
    >>> y = (np.exp(z).cumsum(1) / np.exp(z).sum(1, keepdims=True) > rng.random((400, 1))).argmax(1)
    >>> cal = HCalibrator().fit(3 * z, y)
    >>> cal.scores_["after"]["nll"] < cal.scores_["before"]["nll"]
    True
    """

    name = "h"
    title = "h-calibration"
    weighted = True
    native_float32 = True
    state_specs = STATES

    protocol: Protocol = "default"
    select: Select | None = None
    preserve: Preserves | Literal["auto"] = "auto"
    input: InputKind = "logits"
    device: str | None = None
    random_state: int = 0
    verbose: bool = False
    loss: Literal["paper", "published"] = "paper"
    batch_size: int | None = None

    @property
    def preserves(self) -> Preserves:  # type: ignore[override]
        """What the fitted probabilities keep of the scores: "order", "accuracy" or None."""
        if PRIOR in getattr(self, "state_", {}):  # other class frequencies: another class may be on top
            return None
        if self.protocol == "paper":
            return "order"
        return self._promise(getattr(self, "n_classes_", None))

    def _promise(self, n_classes: int | None) -> Preserves:
        """Return what is kept of each row's classes."""
        if self.preserve == "auto":
            return None if n_classes == 2 else "accuracy"
        return self.preserve

    def _fits_on_device(self, n_rows: int, n_classes: int) -> bool:
        from hcal.calibrators.h.candidates import MATRIX_CLASSES

        # Few classes have candidates that only the host fits.
        many = n_classes > MATRIX_CLASSES and n_rows * n_classes >= _WORTH_A_DEVICE
        return self.protocol == "default" and many

    def _fit(self, logits: Logits, y: IntArray, sample_weight: NDArray[np.float64] | None) -> Fitted:
        self._check_parameters()
        if not isinstance(logits, DeviceRows):
            logits = logits.astype(np.float64, copy=False)
            if self.protocol == "paper":
                return self._fit_paper(logits, y, sample_weight)
        from hcal.calibrators.h.fit import fit_default

        return fit_default(
            logits,
            y,
            sample_weight,
            preserve=self._promise(logits.shape[1]),
            verbose=self.verbose,
        )

    def _fit_sampled_rows(self, rows: FitRows, sample: ArrayRows) -> Fitted | None:
        """Fit the default's candidates by sums over all rows, and pool them by a sample; None: cannot be."""
        self._check_parameters()
        if self.protocol == "paper" or len(rows.mass) == 2:
            return None
        from hcal.calibrators.h.summed import fit_default_rows

        return fit_default_rows(rows, sample, preserve=self._promise(len(rows.mass)))

    def _warn(self, fitted: Fitted) -> None:
        super()._warn(fitted)
        for words in fitted.info.get("warnings", []):
            warnings.warn(f"{self.name}: {words}", CalibrationWarning, stacklevel=3)
        if self.verbose:
            for words in fitted.info.get("notes", []):
                print(f"{self.name}: {words}", file=sys.stderr)

    def _fit_paper(
        self, logits: FloatArray, y: IntArray, sample_weight: NDArray[np.float64] | None
    ) -> Fitted:
        from hcal.calibrators.h.paper import PaperSettings, fit_paper
        from hcal.solvers.adam import AdamSettings

        if sample_weight is not None:  # the published training knows rows, not weights
            if not (sample_weight == np.rint(sample_weight)).all():
                raise ValueError('protocol="paper" takes a sample_weight of integers only, as repetitions')
            times = sample_weight.astype(np.int64)
            logits, y = np.repeat(logits, times, axis=0), np.repeat(y, times)
        select = self.select or "top-label"
        settings = PaperSettings((select,), self.loss, adam=AdamSettings(batch_size=self.batch_size))
        return fit_paper(
            logits,
            y,
            settings,
            device=self.device,
            random_state=self.random_state,
            verbose=self.verbose,
        )[select]

    def _predict(self, logits: FloatArray) -> FloatArray:
        from hcal.calibrators.h.fit import predict_default

        if self.preserves == "order":  # float32 may round two scores past each other; float64 cannot
            logits = logits.astype(np.float64, copy=False)
        if self.protocol == "paper":
            return predict_map(self.state_, logits)
        out = np.empty(logits.shape, dtype=logits.dtype)
        predict_default(self.state_, logits, out)
        return out

    def _predict_into(self, x: FloatArray, out: FloatArray) -> None:
        from hcal.calibrators.h.fit import is_fused, predict_default

        promised = self.preserves == "order" and self.n_classes_ == 2
        if self.protocol == "paper" or promised or not is_fused(self.state_, x):
            super()._predict_into(x, out)
        else:  # keeps the promise while the row is at hand
            predict_default(self.state_, x, out)

    def _predict_on_cuda(self, logits: Tensor, *, check: bool = True) -> Tensor | None:
        if self.protocol == "paper" or self.preserves == "order" or not takes_fused(logits, halves=True):
            return None
        from hcal.calibrators.h.on_cuda import predict_kernel, takes_kernel

        return (
            predict_kernel(self, logits, check=check) if takes_kernel(self.state_, self.n_classes_) else None
        )

    def _graph(self, ops: Ops, x: Any) -> Any:
        if self.protocol == "paper":
            return graph_map(self.state_, ops, x)
        from hcal.calibrators.h.fit import graph_default

        return graph_default(self.state_, ops, x)

    def _check_parameters(self) -> None:
        allowed: dict[str, tuple[Any, ...]] = {
            "protocol": ("default", "paper"),
            "select": (None, "top-label", "class-wise", "nll"),
            "preserve": ("auto", "accuracy", "order", None),
            "loss": ("paper", "published"),
        }
        for parameter, values in allowed.items():
            if getattr(self, parameter) not in values:
                valid = ", ".join(map(repr, values))
                raise ValueError(f"{parameter} must be one of {valid}, got {getattr(self, parameter)!r}")
        if self.protocol == "default" and self.select is not None:
            raise ValueError(
                'select belongs to protocol="paper"; the default has one criterion for everything'
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
