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

figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 4))
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
