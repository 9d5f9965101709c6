"""Calibrate a scikit-learn classifier on rows that it was not trained on.

Run: python examples/sklearn_wrapper.py
"""

from __future__ import annotations

from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

import hcal
from hcal.integrations.sklearn import CalibratedClassifier


def main() -> dict[str, float]:
    """Compare naive Bayes, which counts redundant features twice, with and without calibration."""
    X, y = make_classification(
        6000, 20, n_informative=5, n_redundant=12, n_classes=3, random_state=0
    )
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
    models = {
        "plain": GaussianNB().fit(X_train, y_train),
        "calibrated": CalibratedClassifier(GaussianNB(), method="ts", cv=5).fit(X_train, y_train),
    }
    result = {
        name: hcal.metrics.ece_ew(m.predict_proba(X_test), y_test) for name, m in models.items()
    }
    print("  ".join(f"ECE {name} {value:.4f}" for name, value in result.items()))
    return result


if __name__ == "__main__":
    main()
