"""
h-calibration against canonical calibration
===========================================

Can every class be calibrated and the vector still be wrong? Yes: gaps can cancel. This predictor of three classes is
calibrated in every single class, and its probability of each class is wrong on almost every row.
"""

# %%
# The errors of a row depend on where it lies in the triangle
# -----------------------------------------------------------
# A wave turns each vector of probabilities around. Averaged over all rows with the same probability of one class, the
# wave is zero.

import matplotlib.pyplot as plt
import numpy as np

import hcal

rng = np.random.default_rng(0)
stated = rng.dirichlet([2, 2, 2], 40_000)
first, second, third = stated.T
wave = 9 * first * second * third
turn = np.stack([second - third, third - first, first - second], axis=1)
true = stated + wave[:, None] * turn
y = (true.cumsum(axis=1) > rng.random((len(true), 1))).argmax(axis=1)

# %%
# Three questions, three answers
# ------------------------------

largest_gap = np.abs(true - stated).max(axis=1)
class_wise = hcal.metrics.cwece_a(stated, y)
kernel = hcal.metrics.dkde_ce(stated[:4000], y[:4000])
print(f"class-wise error           {class_wise:.4f}")
print(f"canonical error (kernel)   {kernel:.4f}")
print(f"mean of the largest gap    {largest_gap.mean():.4f}")

# %%
# Look
# ----
# Each class alone looks perfect.

axes = plt.subplots()[1]
axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
for k in range(3):
    edges = np.quantile(stated[:, k], np.linspace(0, 1, 13))
    place = np.digitize(stated[:, k], edges[1:-1])
    means = [stated[place == b, k].mean() for b in range(12)]
    observed = [(y[place == b] == k).mean() for b in range(12)]
    axes.plot(means, observed, marker="o", label=f"class {k}")
axes.set_xlabel("stated probability")
axes.set_ylabel("observed frequency")
axes.set_title("Class by class: calibrated")
axes.legend()
plt.show()

# %%
# The same rows in the triangle of probabilities: the colour is the largest error of the row, which is h.

# sphinx_gallery_thumbnail_number = 2
figure, axes = plt.subplots()
drawn_rows = slice(0, 3000)
across = second[drawn_rows] + third[drawn_rows] / 2
up = third[drawn_rows] * np.sqrt(3) / 2
dots = axes.scatter(across, up, c=100 * largest_gap[drawn_rows], s=5, cmap="viridis")
axes.plot([0, 1, 0.5, 0], [0, 0, np.sqrt(3) / 2, 0], color="0.6", linewidth=1)
axes.set_aspect("equal")
axes.axis("off")
axes.set_title("Row by row: not")
figure.colorbar(dots, ax=axes, label="largest error of the row, points", shrink=0.8)
plt.show()
