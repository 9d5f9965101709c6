"""Dirichlet calibration with off-diagonal and intercept regularisation (Kull et al., NeurIPS 2019)."""

from __future__ import annotations

from hcal.methods.ms import FoldMatrices


class DirichletCalibration(FoldMatrices):
    """softmax(W log p + b), penalised, tuned and averaged over folds as in ``ms``.

    Kull, Perelló-Nieto, Kängsepp, Silva Filho, Song, Flach: Beyond temperature scaling: Obtaining
    well-calibrated multiclass probabilities with Dirichlet calibration, NeurIPS 2019.

    Parameters
    ----------
    penalty, folds, input
        As in :class:`MatrixScaling`.

    Examples
    --------
    >>> logits = [[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]] * 50
    >>> cal = DirichletCalibration().fit(logits, [1, 1, 0, 1, 0, 1, 0, 1] * 25)
    >>> cal.predict_proba([[0.0, 1.0]]).round(2)
    array([[0.25, 0.75]])
    """

    name = "dir"
    title = "Dirichlet calibration"
