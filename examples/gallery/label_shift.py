"""
Other class frequencies, without labels
=======================================

What if the disease is rare where the model is used and common where it was trained? The probabilities are then wrong
even if the model was calibrated. hcal learns the new frequencies from unlabelled scores and corrects for them.
"""

# %%
# Half of the calibration rows are ill, a tenth of the new ones
# -------------------------------------------------------------

import matplotlib.pyplot as plt
import numpy as np

import hcal


def clinic(rows, share_ill, seed):
    """Return scores and labels; only the share of ill people differs between clinics."""
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < share_ill
    score = rng.normal(loc=np.where(ill, 1.2, -1.2), scale=1.3)
    return score, ill.astype(int)


scores, y = clinic(4000, 0.5, seed=0)
new_scores, new_y = clinic(8000, 0.1, seed=1)

# %%
# Correct the calibrator
# ----------------------
# ``with_prior_from`` reads scores alone. If you know the new frequencies, say ``with_prior([0.9, 0.1])``.

calibrator = hcal.PooledCalibrator().fit(scores, y)
corrected = calibrator.with_prior_from(new_scores)

before = calibrator.predict_proba(new_scores)[:, 1]
after = corrected.predict_proba(new_scores)[:, 1]
share = corrected.fit_.prior[1]
print(f"share of ill people: estimated {share:.3f}, true {new_y.mean():.3f}")

# %%
# Look
# ----

figure, axes = plt.subplots()
axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
for label, risk, colour in (("as fitted", before, "C1"), ("corrected without labels", after, "C0")):
    edges = np.quantile(risk, np.linspace(0, 1, 13))
    place = np.digitize(risk, edges[1:-1])
    stated = [risk[place == k].mean() for k in range(12)]
    observed = [new_y[place == k].mean() for k in range(12)]
    axes.plot(stated, observed, marker="o", color=colour, label=label)
axes.set_xlabel("stated risk")
axes.set_ylabel("observed frequency")
axes.set_title("A clinic where few people are ill")
axes.legend()
plt.show()
