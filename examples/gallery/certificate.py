"""
A certificate, and how many rows it takes
=========================================

An estimate says that the error is about 3 points. How large can it be at most? A certificate is a bound that holds
with 95 % probability, for every model and every number of rows. The price of the proof falls as rows are added.
"""

# %%
# A model whose probabilities are 3 points too high
# --------------------------------------------------

import matplotlib.pyplot as plt
import numpy as np

import hcal

rng = np.random.default_rng(0)
stated = rng.uniform(0.05, 0.95, 100_000)
true_error = 0.03
y = (rng.random(len(stated)) < stated - true_error).astype(int)

# %%
# Certify it on more and more rows
# --------------------------------
# ``bound`` is proven to be at least as large as the error, ``proven_gap`` to be at most as large.

sizes = np.array([200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000])
at_most = []
at_least = []
for size in sizes:
    certificate = hcal.certify(stated[:size], y[:size])
    at_most.append(100 * certificate.headline.bound)
    at_least.append(100 * certificate.headline.proven_gap)

print(hcal.certify(stated, y).sentences[2])

# %%
# Look
# ----
# The error is known here. It lies between the two proofs at every size.

figure, axes = plt.subplots()
axes.semilogx(sizes, at_most, marker="o", label="proven: at most")
axes.semilogx(sizes, at_least, marker="o", color="C4", label="proven: at least")
axes.fill_between(sizes, at_least, at_most, alpha=0.1)
axes.axhline(100 * true_error, color="C1", linestyle="--", label="the true error")
axes.set_ylim(0, 25)
axes.set_xlabel("rows")
axes.set_ylabel("calibration error, percentage points")
axes.set_title("What can be proven, with how many rows")
axes.legend()
plt.show()
