"""How fast on a GPU: one table. Needs torch with CUDA and numpy, nothing else.

    PYTHONPATH=src python3 benchmarks/speed_gpu.py            # about three minutes with the protocols
    PYTHONPATH=src python3 benchmarks/speed_gpu.py --quick    # without them, under a minute
    PYTHONPATH=src python3 benchmarks/speed_gpu.py --sections evaluate
    PYTHONPATH=src python3 benchmarks/device_fit.py           # the default's fit and predict

First the CUDA kernels are checked against plain torch operations on the CPU; a wrong number ends the run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from hcal.maps import build_map
from hcal.objective._torch import families_loss
from hcal.objective.events import PooledEvents
from hcal.objective.loss import HCalibrationLoss
from hcal.objective.settings import ObjectiveSettings
from hcal.runtime.fused import fused
from hcal.solvers import monitors
from hcal.solvers.adam import AdamSettings, train
from hcal.solvers.captured import CapturedEpoch, can_capture

SIZES = ((5000, 10), (5000, 100), (25000, 1000))
MONITORS = (monitors.epoch_ece_ew, *monitors.SELECTORS.values())
MAPS = ("piecewise-500", "monotonic-50", "ensemble-16", "ensemble-128")


def problem(n: int, k: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (n, k)).astype(np.float32)
    y = rng.integers(0, k, n)
    z[np.arange(n), y] += rng.normal(np.log(k) + 4, 4, n).astype(np.float32)
    return torch.log_softmax(torch.from_numpy(z), 1).to(device), torch.from_numpy(y).to(device)


def timed(call: Callable[[], object], repeats: int = 20) -> float:
    """Median milliseconds between synchronised ends, after three warm-up calls."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def plain_loss(probs: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The objective by plain torch operations, whatever is installed."""
    events = PooledEvents().gather(probs, y)
    loss, grad = families_loss(events.q, events.marks, ObjectiveSettings(), True)
    return loss, PooledEvents().scatter(grad, probs, events)


def check() -> None:
    """CUDA against the CPU: value and gradient of the loss, of every map, and the k-means."""
    x, y = problem(3000, 50, "cpu")
    probs = x.exp()
    value, slope = plain_loss(probs, y)
    there = probs.cuda().requires_grad_()
    device_value = HCalibrationLoss()(there, y.cuda())
    device_value.backward()
    device_slope = there.grad
    compare("loss", value, device_value, 1e-6)
    cosine = torch.nn.functional.cosine_similarity(slope.reshape(1, -1), device_slope.cpu().reshape(1, -1))
    compare("gradient of the loss (cosine)", torch.ones(1), cosine, 1e-5)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    for name in (*MAPS, "temperature"):
        here, there = (build_map(name, x, init="published", random_state=1) for _ in range(2))
        there = there.cuda()
        outputs = []
        for new, d in ((here, "cpu"), (there, "cuda")):
            p = new(x.to(d).double() if d == "cpu" else x.to(d))
            (p * direction.to(d)).sum().backward()
            outputs.append(p.detach().cpu().double())
        compare(f"{name} probabilities", *outputs, 2e-6)
        for a, b in zip(here.parameters(), there.parameters(), strict=True):
            compare(f"{name} gradient", a.grad, b.grad, 2e-3)


def compare(what: str, a: torch.Tensor, b: torch.Tensor, tolerance: float) -> None:
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    off = float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
    print(f"check {what:36} relative difference {off:.1e}")
    if not off <= tolerance:
        raise SystemExit(f"{what}: {off} is above {tolerance}")


def steps(n: int, k: int) -> None:
    x, y = problem(n, k, "cuda")
    probs = x.exp().requires_grad_()
    objective = HCalibrationLoss(check=False)  # as in a training loop: nothing waits for the device
    sort = timed(lambda: torch.sort(probs.detach().reshape(-1)))
    print(f"{n}x{k:<5} torch.sort             {sort:8.3f} ms")

    def loss() -> None:
        probs.grad = None
        objective(probs, y).backward()

    ms = timed(loss)
    print(f"{n}x{k:<5} loss + gradient        {ms:8.3f} ms  {ms / sort:6.2f} x torch.sort")
    for name in MAPS:
        new = build_map(name, x).cuda()
        optimiser = torch.optim.Adam(new.parameters(), lr=0.005, fused=True)

        def step(new: torch.nn.Module = new, optimiser: torch.optim.Optimizer = optimiser) -> None:
            optimiser.zero_grad(set_to_none=True)
            objective(new(x), y).backward()
            optimiser.step()

        line = f"{n}x{k:<5} step of {name:14} {timed(step):8.3f} ms"
        if can_capture(x, objective):  # what a fit of this size runs
            recorded = CapturedEpoch(build_map(name, x).cuda(), x, y, objective, 0.005, [])
            scored = CapturedEpoch(build_map(name, x).cuda(), x, y, objective, 0.005, list(MONITORS))
            line += f"; recorded {timed(recorded):.3f} ms, with all four scores {timed(scored):.3f} ms"
        print(line, flush=True)
    for name, monitor in (("ece_ew", monitors.epoch_ece_ew), *monitors.SELECTORS.items()):
        ms = timed(lambda monitor=monitor: monitor(probs.detach(), y))
        print(f"{n}x{k:<5} monitor {name:14} {ms:8.3f} ms", flush=True)


def check_recorded() -> None:
    """Training by recorded epochs against training step by step."""
    x, y = problem(3000, 10, "cuda")
    for name in ("piecewise-100", "monotonic-10", "ensemble-16"):
        runs = []
        for objective in (HCalibrationLoss(), _Plain()):
            new = build_map(name, x, init="published", random_state=3).cuda()
            runs.append(train(new, x, y, objective, monitor=monitors.epoch_ece_ew, select=monitors.SELECTORS,
                              settings=AdamSettings(epochs=60)))  # fmt: skip
        one, two = (torch.tensor(r.losses) for r in runs)
        compare(f"{name} losses of 60 recorded epochs", two, one, 2e-3)


class _Plain(torch.nn.Module):
    """The same objective, of which the solver does not know that it can be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = HCalibrationLoss()

    def forward(self, probs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.inner(probs, y)


def protocols() -> None:
    from hcal.maps.presets import PAPER_MAPS

    for n, k in ((5000, 10), (25000, 1000)):
        x, y = problem(n, k, "cuda")
        start = time.perf_counter()
        epochs = 0
        for name in PAPER_MAPS:
            begun = time.perf_counter()
            done = train(
                build_map(name, x, init="published").cuda(), x, y, HCalibrationLoss(),
                monitor=monitors.epoch_ece_ew, select={"top-label": monitors.epoch_dece},
                settings=AdamSettings(),
            )  # fmt: skip
            epochs += done.epochs
            print(
                f"{n}x{k:<5} {name:14} {done.epochs:5} epochs {time.perf_counter() - begun:8.2f} s",
                flush=True,
            )
        print(
            f"{n}x{k:<5} 12-candidate protocol  {time.perf_counter() - start:8.2f} s, {epochs} epochs",
            flush=True,
        )


def compare_evaluations(n: int, k: int) -> None:
    """Every metric and interval of CUDA tensors against those of the same numbers in host memory."""
    import hcal

    x, y = problem(n, k, "cpu")
    options = {"ci": 0.95, "test": False}
    here, there = hcal.evaluate(x.exp(), y, **options), hcal.evaluate(x.exp().cuda(), y.cuda(), **options)
    worst = []
    for name, one in here.results.items():
        two = there.results[name]
        pairs = [(one.value, two.value)]
        if one.interval is not None and two.interval is not None:
            pairs += [(one.interval.low, two.interval.low), (one.interval.high, two.interval.high)]
        worst.append((max(abs(a - b) / max(abs(a), 1e-9) for a, b in pairs), name))
    for off, name in sorted(worst, reverse=True)[:5]:
        print(f"{n}x{k:<5} CUDA against CPU, {name:14} relative difference {off:.1e}")
    if worst and max(worst)[0] > 1e-6:
        raise SystemExit(f"{max(worst)[1]}: {max(worst)[0]} is above 1e-6")


def evaluations() -> None:
    """``hcal.evaluate`` of CUDA tensors: all of it, and what each metric and interval costs."""
    import hcal
    from hcal.certificates import certify
    from hcal.evaluation.assessment import vector_test
    from hcal.metrics.registry import METRICS
    from hcal.metrics.resampling import intervals
    from hcal.metrics.sample import Sample
    from hcal.metrics.testing import calibration_test

    n, k = SIZES[-1]
    x, y = problem(n, k, "cuda")
    probs = x.exp()

    def clock(what: str, call: Callable[[], object], width: int = 34) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        print(f"{n}x{k:<5} {what:{width}} {seconds:8.3f} s", flush=True)
        return seconds

    for when in ("first", "second", "third"):
        clock(f"evaluate, {when} time", lambda: hcal.evaluate(probs, y))
    for when in ("first", "second"):
        clock(f"evaluate(ci=0.95, test=False), {when}", lambda: hcal.evaluate(probs, y, ci=0.95, test=False))
    for when in ("first", "second"):
        clock(f"evaluate(ci=0.95), {when} time", lambda: hcal.evaluate(probs, y, ci=0.95))
    s = Sample(probs, y)
    clock("top labels and their sort", lambda: s.ranked)
    costs = {}
    for name, metric in METRICS.items():
        value = metric.function(s)
        costs[name] = clock(f"value of {name}", lambda metric=metric: metric.function(Sample(probs, y)))
        alone = {name: value}
        costs[f"{name}, interval"] = clock(
            f"interval of {name}", lambda alone=alone: intervals(s, alone, 0.95)
        )
    costs["certificate"] = clock("certificate", lambda: certify(s))
    costs["test of the top label"] = clock("test of the top label", lambda: calibration_test(s))
    costs["test of the vector"] = clock("test of the vector", lambda: vector_test(s))
    print("slowest: " + ", ".join(f"{c} {costs[c]:.2f} s" for c in sorted(costs, key=costs.get)[:-9:-1]))
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(f"copied N x K to the host: {'probs' in s.data.__dict__}; at most {memory:.1f} GB on the device")
    compare_evaluations(5000, 100)


def all_steps() -> None:
    for n, k in SIZES:
        steps(n, k)


def checks() -> None:
    check()
    check_recorded()


#: In the order in which they run.
SECTIONS = {
    "checks": checks,
    "steps": all_steps,
    "evaluate": evaluations,
    "protocols": protocols,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="all but the protocols")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton kernels: {fused()}", flush=True)
    for name in arguments.sections:
        if not (arguments.quick and name == "protocols"):
            SECTIONS[name]()


if __name__ == "__main__":
    main()
