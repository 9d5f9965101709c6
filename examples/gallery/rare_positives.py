"""
Rare positives
==============

How sure is "fraud, 30 %"? Training with balanced class weights helps a model to find a rare class, and makes its
probabilities many times too large. Calibration repairs the probabilities and keeps the ranking of the rows.
"""

# %%
# One row in fifty is positive
# ----------------------------

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split

import hcal

X, y = make_classification(
    60_000, 12, n_informative=6, weights=[0.98], flip_y=0.01, class_sep=0.8, random_state=0
)
X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=12_000, random_state=0)
X_cal, X_test, y_cal, y_test = train_test_split(X_rest, y_rest, test_size=0.5, random_state=0)

model = HistGradientBoostingClassifier(max_iter=60, class_weight="balanced", random_state=0)
model.fit(X_train, y_train)
before = model.predict_proba(X_test)[:, 1]

# %%
# Calibrate the margin of the booster
# -----------------------------------
# ``decision_function`` returns log-odds, which are better than probabilities: nothing is rounded near 0 and 1.

calibrator = hcal.PooledCalibrator().fit(model.decision_function(X_cal), y_cal)
after = calibrator.predict_proba(model.decision_function(X_test))[:, 1]

print(f"positives in the test rows      {y_test.mean():.3f}")
print(f"mean probability before, after  {before.mean():.3f}, {after.mean():.3f}")

# %%
# Look at small probabilities on a logarithmic scale
# --------------------------------------------------
# The rows are cut into ten groups from the smallest to the largest prediction. Before calibration the model promises
# up to ten times as many frauds as there are.

figure, axes = plt.subplots()
axes.plot([1e-3, 1], [1e-3, 1], color="0.6", linewidth=1, linestyle="--")
for label, risk in (("balanced training", before), ("calibrated", after)):
    groups = np.array_split(np.argsort(risk), 10)
    stated = np.array([risk[rows].mean() for rows in groups])
    observed = np.array([y_test[rows].mean() for rows in groups])
    axes.loglog(stated, observed, marker="o", label=label)

axes.set_xlabel("stated probability of fraud")
axes.set_ylabel("observed frequency")
axes.set_title("A rare class, before and after")
axes.legend()
plt.show()
