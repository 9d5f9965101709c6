"""What users of a GPU wait for, each call waited for: predict, fit, the h loss, evaluate, the paper's training.

python benchmarks/gpu.py                    # prints one JSON object a line; needs CUDA
python benchmarks/gpu.py steps training     # only some of: of_size, one_launch, steps, training
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable

import torch
from deploy import task, torch_ratios

import hcal
from hcal.h_calibration.captured import CapturedLoop
from hcal.h_calibration.loss import HCalibrationLoss
from hcal.h_calibration.trainable_maps import build_trainable
from hcal.h_calibration.training import MONITOR, AdamSettings, Loop, epoch_dece, epoch_ece_ew
from hcal.integrations.torch import CalibrationHead

SIZES = ((5000, 10), (5000, 100), (25_000, 1000))
TWO_CLASSES = (5000, 2)


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
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in facts.items()}
    print(json.dumps(rounded), flush=True)


def of_size(n: int, k: int) -> None:
    """Measure one size."""
    z, y = task(n, k)
    size = f"{n}x{k}"
    x = torch.from_numpy(z).cuda()
    labels = torch.from_numpy(y).cuda()
    cal = hcal.PooledCalibrator().fit(z, y)
    loss = hcal.HCalibrationLoss()
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


def one_launch(n: int, k: int) -> None:
    """Measure the default's kernel: all rows, one row, and the formula that it stands beside."""
    z, y = task(n, k)
    cal = hcal.PooledCalibrator().fit(z, y)
    x = torch.from_numpy(z).cuda().float()
    one = x[:1].contiguous()
    head = CalibrationHead(cal).eval().cuda()
    with torch.inference_mode():
        softmax = device_seconds(lambda: torch.softmax(x, dim=1))
        say(
            size=f"{n}x{k}",
            what="one launch",
            softmaxes=device_seconds(lambda: head(x)) / softmax,
            softmax_us=softmax * 1e6,
            formula_softmaxes=device_seconds(lambda: head.float32(x)) / softmax,
            module_one_row_us=seconds(lambda: head(one), 200) * 1e6,
            predict_proba_one_row_us=seconds(lambda: cal.predict_proba(one), 200) * 1e6,
            difference_to_formula=f"{float((head(x) - head.float64(x.double())).abs().max()):.1e}",
            argmax_changed=int((head(x).argmax(1) != x.argmax(1)).sum()),
        )


def device_seconds(work: Callable[[], object], repeats: int = 50) -> float:
    """Return the seconds of a call in a queue of many, so that the time of the host is hidden."""
    work()
    torch.cuda.synchronize()
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    start.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats / 1e3


def steps(n: int, k: int, epochs: int = 100) -> None:
    """Measure an epoch of the paper's training, eager and replayed; the capture counts."""
    z, y = task(n, k)
    x = torch.log_softmax(torch.from_numpy(z).cuda().float(), dim=1)
    labels = torch.from_numpy(y).cuda()
    loss = HCalibrationLoss(check=False)
    scores = {MONITOR: epoch_ece_ew, "top_label": epoch_dece}
    for name in ("piecewise-100", "monotonic-20", "ensemble-32"):
        for loop_type in (Loop, CapturedLoop):
            module = build_trainable(name, x).cuda()
            torch.cuda.synchronize()
            start = time.perf_counter()
            loop = loop_type(module, x, labels, loss, scores, AdamSettings())
            for _ in range(epochs):
                loop.step()
            torch.cuda.synchronize()
            milliseconds = (time.perf_counter() - start) / epochs * 1e3
            say(size=f"{n}x{k}", what=name, loop=loop_type.__name__, ms_an_epoch=milliseconds)


def training(n: int, k: int) -> None:
    """Measure the paper's training of twelve maps."""
    z, y = task(n, k)
    x = torch.from_numpy(z).cuda()
    labels = torch.from_numpy(y).cuda()
    start = time.perf_counter()
    hcal.HCalibrator(device="cuda").fit(x, labels)
    say(size=f"{n}x{k}", what="HCalibrator, twelve maps", seconds=time.perf_counter() - start)


def main() -> None:
    """Measure everything; what fails is said and does not stop the rest."""
    warnings.simplefilter("ignore")
    say(device=torch.cuda.get_device_name(), torch=torch.__version__, hcal=hcal.__version__)
    chosen = sys.argv[1:] or [work.__name__ for work in (of_size, one_launch, steps, training)]
    for work in (of_size, one_launch, steps, training):
        sizes = (TWO_CLASSES, *SIZES) if work is one_launch else SIZES
        for size in sizes if work.__name__ in chosen else ():
            try:
                work(*size)
            except Exception as error:
                say(failed=work.__name__, size=str(size), error=repr(error)[:500])


if __name__ == "__main__":
    main()
