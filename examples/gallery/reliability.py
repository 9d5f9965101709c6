"""
Reliability before and after
============================

Does the model mean what it says? A reliability diagram answers: it compares the probability that the model states
with the frequency that then occurs. Naive Bayes counts redundant features twice, so it is far too sure.
"""

# %%
# Train a model, and keep rows that it does not see
# -------------------------------------------------
# One half of the remaining rows is for calibration, the other half for the test.

import matplotlib.pyplot as plt
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

import hcal

X, y = make_classification(15_000, 20, n_informative=5, n_redundant=10, random_state=0)
X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=3000, random_state=0)
X_cal, X_test, y_cal, y_test = train_test_split(X_rest, y_rest, test_size=0.5, random_state=0)

model = GaussianNB().fit(X_train, y_train)
before = model.predict_proba(X_test)

# %%
# Calibrate
# ---------

scores = model.predict_proba(X_cal)
calibrator = hcal.PooledCalibrator(input="probs").fit(scores, y_cal)
after = calibrator.predict_proba(before)

error_before = hcal.metrics.ece_ew(before, y_test)
error_after = hcal.metrics.ece_ew(after, y_test)
print(f"calibration error {error_before:.3f} before, {error_after:.3f} after")

# %%
# Look
# ----
# A dot on the diagonal is a probability that can be taken at its word. The lines at the dots are confidence intervals,
# and the panel at the foot shows how many rows get each probability. The legend has the errors.

diagram = hcal.reliability({"naive Bayes": before, "calibrated": after}, y_test, bins=10)
axes = plt.subplots(figsize=(5.4, 5))[1]
diagram.plot(axes, title="Before and after")
plt.show()

# %%
# Is the rest noise?
# ------------------
# A single curve has a grey band, where chance alone can put the dots of a calibrated model. The title says what error
# chance alone would show.

axes = plt.subplots(figsize=(5.4, 5))[1]
hcal.reliability(after, y_test, bins=10).plot(axes)
plt.show()
