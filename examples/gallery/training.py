"""
Train with the paper's objective
================================

Can a network be calibrated while it trains? Cross-entropy alone makes a flexible network too sure of itself. The
h-calibration loss on a second batch holds it back. Both networks see the same 3,000 rows.
"""

# %%
# Labels that nobody can predict for certain
# ------------------------------------------

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import hcal

torch.set_num_threads(1)
law = np.random.default_rng(0).normal(size=(20, 10)) * 0.7


def make_rows(rows, seed):
    """Return rows of ten classes in 20 dimensions."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 20))
    y = (hcal.softmax(x @ law).cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


x, y = make_rows(3000, seed=1)
x_test, y_test = make_rows(5000, seed=3)

# %%
# Train twice
# -----------
# With h-calibration, cross-entropy gets 2,000 rows and the h loss the other 1,000.

h_loss = hcal.HCalibrationLoss(scale=1.0)


def train(strength, epochs=40):
    """Return test error and test log loss after every epoch."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    first = 2000 if strength else 3000
    history = []
    for _ in range(epochs):
        for rows in torch.randperm(first).split(200):
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            if strength:
                loss = loss + strength * h_loss(network(x[2000:]).softmax(dim=1), y[2000:])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            probs = network(x_test).softmax(dim=1)
        history.append((hcal.metrics.ece_ew(probs, y_test), hcal.metrics.accuracy(probs, y_test)))
    return np.array(history)


plain = train(strength=0.0)
helped = train(strength=20.0)
print(f"cross-entropy       error {plain[-1, 0]:.3f}, accuracy {plain[-1, 1]:.3f}")
print(f"with h-calibration  error {helped[-1, 0]:.3f}, accuracy {helped[-1, 1]:.3f}")

# %%
# Look
# ----

figure, axes = plt.subplots()
axes.plot(plain[:, 0], color="C1", label="cross-entropy")
axes.plot(helped[:, 0], color="C0", label="with the h-calibration loss")
axes.set_ylim(bottom=0)
axes.set_xlabel("epoch")
axes.set_ylabel("calibration error on test rows")
axes.set_title("Calibrated while it trains")
axes.legend()
plt.show()
