"""
The clinical figure
===================

Would patients be better off with this model? Medical journals ask for one figure: a flexible calibration curve with
its band, and the net benefit of treating by the model against treating all or none.
"""

# %%
# Predict the malignant tumours of scikit-learn's breast cancer table
# -------------------------------------------------------------------
# Two poor features keep the task uncertain. Cross-fitting predicts every row by a model that has not seen it.

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import shuffle

import hcal

table = load_breast_cancer()
malignant = (table.target == 0).astype(int)
features = table.data[:, [1, 4]]  # mean texture, mean smoothness
model = make_pipeline(StandardScaler(), LogisticRegression())
risk = cross_val_predict(model, features, malignant, cv=10, method="predict_proba")[:, 1]

# %%
# The numbers that a paper reports
# --------------------------------

panel = hcal.clinical(risk, malignant)
for name in ("in_the_large", "slope", "ici", "brier", "auc"):
    estimate = getattr(panel, name)
    print(f"{name:13} {estimate.value:6.3f}  [{estimate.low:6.3f}, {estimate.high:6.3f}]")

# %%
# The figure
# ----------

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 4.3))
curve = panel.curve
left.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
left.fill_between(curve.predicted, curve.low, curve.high, alpha=0.2)
left.plot(curve.predicted, curve.observed)
left.set_xlabel("predicted risk")
left.set_ylabel("observed risk")
left.set_title("Calibration")

decision = panel.net_benefit
right.plot(decision.thresholds, decision.model, label="treat by the model")
right.plot(decision.thresholds, decision.treat_all, label="treat all")
right.axhline(0, color="0.6", linewidth=1, label="treat none")
right.set_ylim(-0.05, malignant.mean() + 0.03)
right.set_xlabel("treat if the risk is at least")
right.set_ylabel("net benefit")
right.set_title("Clinical use")
right.legend()
plt.show()

# %%
# The whole model, validated on its own rows
# ------------------------------------------
# With 150 patients there is no test set. :func:`hcal.validate` fits the model again on bootstrap samples, and says by
# how much ten poor features make it look too good on its own rows.

columns = [4, 8, 9, 11, 14, 15, 16, 17, 18, 19]
X, y = shuffle(table.data[:, columns], malignant, n_samples=150, random_state=0)
bold_model = make_pipeline(StandardScaler(), LogisticRegression(C=1000))
validation = hcal.validate(bold_model, X, y, resamples=100)
print(validation)

figure, axes = plt.subplots(figsize=(6.4, 2.4))
for place, part in enumerate((validation.slope, validation.auc)):
    axes.plot([part.low, part.high], [place, place], color="C0", linewidth=7, alpha=0.35)
    axes.plot(part.apparent, place, "D", color="C1", label=None if place else "on its own rows")
    axes.plot(part.corrected, place, "o", color="C0", label=None if place else "on new patients")
axes.set_yticks([0, 1], ["calibration slope", "AUC"])
axes.set_ylim(1.5, -0.5)
axes.set_title("What to expect of new patients")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()
