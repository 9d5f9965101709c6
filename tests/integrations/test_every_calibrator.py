"""Every registered calibrator is a scikit-learn estimator: clone, pickle, workers, pipelines, searches."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import hcal
from helpers import fit_quietly, synthetic

NAMES = [name for name in hcal.list_calibrators() if name != "h"]
Z, Y = synthetic(150, 3)


def test_clone_pickle_and_the_end_of_a_pipeline() -> None:
    for name in NAMES:
        cal = fit_quietly(hcal.make_calibrator(name), Z, Y)
        fresh = clone(cal)
        assert not hasattr(fresh, "map_")
        assert fresh.get_params() == cal.get_params()
        again = pickle.loads(pickle.dumps(cal))
        np.testing.assert_array_equal(again.predict_proba(Z), cal.predict_proba(Z))
        pipe = make_pipeline(FunctionTransformer(lambda z: z * 2, lambda z: z / 2), clone(cal))
        fit_quietly(pipe, Z / 2, Y)
        np.testing.assert_allclose(pipe.predict_proba(Z / 2), cal.predict_proba(Z), atol=1e-9)


@pytest.mark.slow
def test_all_travel_to_joblib_workers() -> None:
    fitted = [fit_quietly(hcal.make_calibrator(name), Z, Y) for name in NAMES]
    of_workers = joblib.Parallel(n_jobs=2)(joblib.delayed(_predict)(cal, Z) for cal in fitted)
    for cal, probs in zip(fitted, of_workers, strict=True):
        np.testing.assert_array_equal(probs, cal.predict_proba(Z), err_msg=cal.name)


def _predict(cal, z):
    return cal.predict_proba(z)


def test_grid_search() -> None:
    for cal, params in (
        (hcal.make_calibrator("ts"), {"input": ["logits"]}),
        (hcal.PooledCalibrator(), {"preserve": ["accuracy", "order"]}),
    ):
        grid = fit_quietly(GridSearchCV(cal, params, cv=2), Z, Y)
        assert grid.best_params_.keys() == params.keys()
        assert grid.best_score_ < 0  # the negative NLL
        assert grid.predict_proba(Z).shape == Z.shape
