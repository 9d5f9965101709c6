"""
Answer only when sure: confidences of a language model
======================================================

When may an answer go out without a human? Language models state confidences like "90 %" far too often. After
calibration a threshold means what it says, and you can choose how many answers to hold back.
"""

# %%
# Questions with four options
# ---------------------------
# The log-probabilities of the options are made up here: three times too large, as those of a tuned model often are.
# :func:`hcal.evaluate` and the calibrator take rows of different lengths too.

import matplotlib.pyplot as plt
import numpy as np

import hcal
from hcal.language_models import MultipleChoiceCalibrator

rng = np.random.default_rng(0)
evidence = rng.normal(size=(6000, 4)) * 1.4
answer = (hcal.softmax(evidence).cumsum(axis=1) > rng.random((6000, 1))).argmax(axis=1)
log_probs = 3 * evidence - 20

# %%
# Calibrate on the first half of the questions
# --------------------------------------------

calibrator = MultipleChoiceCalibrator().fit(log_probs[:3000], answer[:3000])
before = hcal.softmax(log_probs[3000:])
after = np.asarray(calibrator.predict_proba(log_probs[3000:]))
y = answer[3000:]
right = after.argmax(axis=1) == y
print(f"temperature {calibrator.temperature_:.2f}; {right.mean():.1%} of the answers are right")

# %%
# Send out the answers that claim at least 80 %
# ---------------------------------------------

for label, probs in (("stated", before), ("calibrated", after)):
    sent = probs.max(axis=1) >= 0.8
    print(
        f"{label:10} sends {sent.mean():.0%} of the answers, {right[sent].mean():.0%} of them right"
    )

# %%
# Look
# ----
# The line is what a threshold promises. Calibrated confidences keep the promise.

thresholds = np.linspace(0.3, 0.97, 40)
figure, axes = plt.subplots()
for label, probs, colour in (("as stated", before, "C1"), ("calibrated", after, "C0")):
    confidence = probs.max(axis=1)
    correct = [right[confidence >= threshold].mean() for threshold in thresholds]
    promised = [confidence[confidence >= threshold].mean() for threshold in thresholds]
    axes.plot(thresholds, correct, color=colour, label=f"{label}: share that is right")
    axes.plot(thresholds, promised, color=colour, linestyle=":", label=f"{label}: promised")
axes.set_xlabel("send the answers with at least this confidence")
axes.set_ylabel("share of right answers")
axes.set_title("Answer only when sure")
axes.legend(fontsize=9)
plt.show()
