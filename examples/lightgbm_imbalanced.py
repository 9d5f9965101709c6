"""Calibrate LightGBM with balanced class weights: string labels, and one "fraud" in fifty rows.

Balanced class weights help a booster to find the rare class, but they make its probabilities useless: on average it
says "fraud" several times too often. The wrapper takes the booster as it is and learns from its margins on held-out
rows. Here predictions must cross 0.5 to be calibrated, and Platt scaling allows that.

Run: python examples/lightgbm_imbalanced.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

from hcal.integrations.sklearn import CalibratedClassifier, Scorer

try:
    from lightgbm import LGBMClassifier
except ImportError:
    raise ImportError("this example needs LightGBM: pip install lightgbm") from None


def main() -> dict[str, dict[str, float]]:
    """Fit with and without calibration, and compare on new rows."""
    X, codes = make_classification(
        20_000, 12, n_informative=6, weights=[50 / 51], flip_y=0.01, class_sep=0.8, random_state=0
    )
    y = np.where(codes == 1, "fraud", "honest")
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.4, stratify=y, random_state=0
    )
    X_train, X_cal, y_train, y_cal = train_test_split(
        X_train, y_train, stratify=y_train, random_state=0
    )
    booster = LGBMClassifier(n_estimators=60, class_weight="balanced", n_jobs=1, verbose=-1)
    booster.fit(X_train, y_train)
    models = {
        "plain": booster,
        "calibrated": CalibratedClassifier(booster, method="platt", cv="prefit").fit(X_cal, y_cal),
    }
    result = {}
    print(f"share of fraud: {np.mean(y_test == 'fraud'):.3f}")
    for name, model in models.items():
        column = list(model.classes_).index("fraud")
        result[name] = {
            "mean P(fraud)": float(model.predict_proba(X_test)[:, column].mean()),
            **{
                metric: -Scorer(metric)(model, X_test, y_test)
                for metric in ("nll", "brier", "cwece_a")
            },
        }
        print(f"{name:11}", "  ".join(f"{k} {v:.4f}" for k, v in result[name].items()))
    result["truth"] = {"share": float(np.mean(y_test == "fraud"))}
    return result


if __name__ == "__main__":
    main()
