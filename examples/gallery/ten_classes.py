"""
A network of ten classes
========================

Is only the winning class calibrated, or every class? A network that has learned its training digits by heart is too
sure of every class. One call corrects all ten probabilities at once.
"""

# %%
# Train a small network on the digits of scikit-learn
# ---------------------------------------------------
# Noise on the pictures makes the task hard enough that the network errs.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import hcal

pixels, digit = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
noisy = np.repeat(pixels, 5, axis=0) + rng.normal(scale=7, size=(5 * len(pixels), 64))
digits = np.repeat(digit, 5)

# The five noisy copies of one picture stay together.
picture = np.repeat(np.arange(len(pixels)), 5)
train, rest = train_test_split(np.unique(picture), train_size=0.4, random_state=0)
cal, test = train_test_split(rest, test_size=0.5, random_state=0)
in_train, in_cal, in_test = (np.isin(picture, part) for part in (train, cal, test))

network = MLPClassifier((64,), max_iter=80, tol=3e-4, random_state=0)
network.fit(noisy[in_train], digits[in_train])

# %%
# Calibrate
# ---------
# The probabilities of the network are the scores. ``groups`` tells hcal which rows depend on each other.

scores = network.predict_log_proba(noisy)
calibrator = hcal.PooledCalibrator(input="log_probs")
calibrator.fit(scores[in_cal], digits[in_cal], groups=picture[in_cal])

before = np.exp(scores[in_test])
after = calibrator.predict_proba(scores[in_test])
y_test = digits[in_test]

for name in ("accuracy", "ece_ew", "cwece_a", "nll"):
    metric = getattr(hcal.metrics, name)
    print(f"{name:9} {metric(before, y_test):7.3f} before {metric(after, y_test):7.3f} after")

# %%
# Every class, before and after
# -----------------------------
# Each line is one digit: the average gap between the probability of this digit and its frequency.

diagram_before = hcal.reliability(before, y_test, level="class-wise")
diagram_after = hcal.reliability(after, y_test, level="class-wise")
gap_before = np.array([100 * curve.error for curve in diagram_before.curves])
gap_after = np.array([100 * curve.error for curve in diagram_after.curves])

figure, axes = plt.subplots()
axes.hlines(range(10), gap_after, gap_before, color="0.7", linewidth=3)
axes.scatter(gap_before, range(10), s=70, color="C1", label="network", zorder=3)
axes.scatter(gap_after, range(10), s=70, color="C0", label="calibrated", zorder=3)
axes.set_yticks(range(10))
axes.set_xlim(left=0)
axes.set_xlabel("calibration error of the class, in percentage points")
axes.set_ylabel("digit")
axes.set_title("Every class is calibrated")
axes.legend()
plt.show()
