"""What users of a GPU wait for, each call waited for: predict, fit, the h loss, evaluate, the paper's training.

python benchmarks/gpu.py            # prints one JSON object a line; needs CUDA
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable

import torch
from deploy import task, torch_ratios

import hcal

SIZES = ((5000, 10), (5000, 100), (25_000, 1000))


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the least seconds of a call, the device waited for, after one that is not counted."""
    best = float("inf")
    for i in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = best if i == 0 else min(best, time.perf_counter() - start)
    return best


def say(**facts: object) -> None:
    shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in facts.items()}
    print(json.dumps(shown), flush=True)


def of_size(n: int, k: int) -> None:
    """Measure one size."""
    z, y = task(n, k)
    size, x, labels = f"{n}x{k}", torch.from_numpy(z).cuda(), torch.from_numpy(y).cuda()
    cal, loss = hcal.PooledCalibrator().fit(z, y), hcal.HCalibrationLoss()
    softmax = seconds(lambda: torch.softmax(x, dim=1))
    host = torch.from_numpy(cal.predict_proba(z)).cuda()
    difference = float((cal.predict_proba(x) - host).abs().max())
    predict = seconds(lambda: cal.predict_proba(x)) / softmax
    say(size=size, what="predict_proba", softmaxes=predict, difference_to_numpy=difference)
    say(size=size, what="fit", seconds=seconds(lambda: hcal.PooledCalibrator().fit(x, labels), 2))
    probs = torch.softmax(x, dim=1).requires_grad_()
    sort = seconds(lambda: torch.sort(probs.detach().flatten()))
    say(
        size=size,
        what="h loss + gradient",
        sorts=seconds(lambda: loss(probs, labels).backward()) / sort,
    )
    say(
        size=size,
        what="evaluate",
        seconds=seconds(lambda: hcal.evaluate(probs.detach(), labels), 1),
    )
    say(size=size, what="module", **torch_ratios(n, k, "cuda"))


def training() -> None:
    """Measure the paper's training."""
    z, y = task(5000, 10)
    x, labels = torch.from_numpy(z).cuda(), torch.from_numpy(y).cuda()
    for maps in ("piecewise-10", "all"):
        start = time.perf_counter()
        hcal.HCalibrator(maps=maps, device="cuda").fit(x, labels)
        say(size="5000x10", what=f"HCalibrator(maps={maps!r})", seconds=time.perf_counter() - start)


def main() -> None:
    """Measure everything; what fails is said and does not stop the rest."""
    warnings.simplefilter("ignore")
    say(device=torch.cuda.get_device_name(), torch=torch.__version__, hcal=hcal.__version__)
    for work in (*((of_size, size) for size in SIZES), (training, ())):
        try:
            work[0](*work[1])
        except Exception as error:
            say(failed=work[0].__name__, arguments=str(work[1]), error=repr(error)[:500])


if __name__ == "__main__":
    main()
