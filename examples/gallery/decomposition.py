"""
Calibrated is not the same as good
==================================

Which of three models is best? The log loss falls into two parts: what calibration can repair, and what the model
does not know. A forecaster who always states the base rate is perfectly calibrated and useless.
"""

# %%
# Three models of one table
# -------------------------

import matplotlib.pyplot as plt
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

import hcal

X, y = make_classification(8000, 20, n_informative=8, n_redundant=8, random_state=3)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)

models = {
    "base rate": DummyClassifier(),
    "naive Bayes": GaussianNB(),
    "boosted trees": HistGradientBoostingClassifier(max_iter=200, random_state=0),
}

# %%
# Split the log loss
# ------------------

repairable = []
unknown = []
for name, model in models.items():
    probs = model.fit(X_train, y_train).predict_proba(X_test)
    parts = hcal.metrics.decompose(probs, y_test)
    repairable.append(max(parts.calibration, 0.0))
    unknown.append(parts.refinement)
    print(f"{name:14} log loss {parts.score:.3f}, of which {parts.calibration:.3f} can be repaired")

# %%
# Look
# ----
# Calibration removes the orange part. The blue part needs a better model.

figure, axes = plt.subplots(figsize=(6.4, 3.2))
axes.barh(list(models), unknown, color="C0", label="what the model does not know")
axes.barh(list(models), repairable, left=unknown, color="C1", label="what calibration repairs")
axes.invert_yaxis()
axes.set_xlabel("log loss (lower is better)")
axes.set_title("Calibrated is not the same as good")
axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2)
plt.show()
