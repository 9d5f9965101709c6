"""The tasks of the studies: ``.npz`` files with two parts, and the paper's 15 tasks as it published them.

    python -m studies.tasks list               # the paper's tasks, and which of them are here
    python -m studies.tasks get resnet110_c10  # downloads one (huggingface_hub), prints its path and checksum

A paper task is read from the folder ``HCAL_PAPER_DATA``, else downloaded; its ``.p`` files go through hcal's reader,
which admits numpy arrays and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.extras import load_extra
from hcal.io.pickles import read_pickle
from hcal.numerics import IntArray

HUB_REPOSITORY: Final = "WJHuang/calibration"
_SHAPES: Final = {
    "CIFAR10": (10, 5000, 10000),
    "SVHN": (10, 6000, 26032),
    "CIFAR100": (100, 5000, 10000),
    "CARS": (196, 4020, 4020),
    "BIRDS": (200, 2897, 2897),
    "ImageNet": (1000, 25000, 25000),
}
#: The paper's tasks by the name that ``paper_tables.csv`` uses: data set and network; the file is
#: ``probs_{name}_logits.p``.
PAPER_TASKS: Final[dict[str, tuple[str, str]]] = {
    "resnet110_c10": ("CIFAR10", "ResNet110"),
    "resnet_wide32_c10": ("CIFAR10", "WideResNet32"),
    "densenet40_c10": ("CIFAR10", "DenseNet40"),
    "resnet152_SD_SVHN": ("SVHN", "ResNet152(SD)"),
    "resnet110_c100": ("CIFAR100", "ResNet110"),
    "resnet_wide32_c100": ("CIFAR100", "WideResNet32"),
    "densenet40_c100": ("CIFAR100", "DenseNet40"),
    "resnet50_cars": ("CARS", "ResNet50pre"),
    "resnet101_cars": ("CARS", "ResNet101pre"),
    "resnet101scratch_cars": ("CARS", "ResNet101"),
    "resnet50NTSNet_birds": ("BIRDS", "ResNet50(NTS)"),
    "resnet152_imgnet": ("ImageNet", "ResNet152"),
    "densenet161_imgnet": ("ImageNet", "DenseNet161"),
    "pnasnet5large_imgnet": ("ImageNet", "PNASNet5large"),
    "swintiny_imgnet": ("ImageNet", "SwinTransformer"),
}
#: The paper's tasks that come with hcal's shared data, by their names there.
SHARED: Final = {"resnet110_c10": "cifar10_resnet110", "densenet40_c10": "cifar10_densenet40"}


@dataclass(frozen=True)
class Task:
    """Logits (N, K) and labels (N,) of both parts."""

    name: str
    logits_cal: NDArray[np.float64]
    y_cal: IntArray
    logits_test: NDArray[np.float64]
    y_test: IntArray


def load_task(name: str, data: Path) -> Task:
    """Return a task: a name of the folder's ``.npz`` files, or one of the paper's.

    >>> load_task("no_such_task", Path("."))
    Traceback (most recent call last):
    ...
    ValueError: 'no_such_task' is neither a file of . nor one of the paper's tasks
    """
    path = data / f"{SHARED.get(name, name)}.npz"
    if path.exists():
        with np.load(path) as held:
            parts = {key: held[key] for key in held.files}
    elif name in PAPER_TASKS:
        parts = read_pickle(paper_file(name).read_bytes())
    else:
        raise ValueError(f"{name!r} is neither a file of {data} nor one of the paper's tasks")
    task = _checked(name, parts)
    if name in PAPER_TASKS:
        wanted, found = (
            _SHAPES[PAPER_TASKS[name][0]],
            (task.logits_cal.shape[1], len(task.y_cal), len(task.y_test)),
        )
        if found != wanted:
            raise ValueError(
                f"{name}: classes, calibration and test rows are {found}, the paper says {wanted}"
            )
    return task


def _checked(name: str, parts: dict[str, Any]) -> Task:
    kind: inputs.InputKind = "logits" if "logits_cal" in parts else "probs"
    if missing := {f"{kind}_cal", "y_cal", f"{kind}_test", "y_test"} - set(parts):
        raise ValueError(f"{name}: no {min(missing)} in the file")
    scores, labels = [], []
    for part in ("cal", "test"):
        x, _ = inputs.check_logits(parts[f"{kind}_{part}"], input=kind)
        scores.append(x.astype(np.float64))
        labels.append(inputs.check_labels(np.ravel(parts[f"y_{part}"]), *x.shape))
    return Task(name, scores[0], labels[0], scores[1], labels[1])


def paper_file(name: str) -> Path:
    """Return the local path of a paper task: from the folder ``HCAL_PAPER_DATA``, else downloaded."""
    wanted, folder = f"probs_{name}_logits.p", os.environ.get("HCAL_PAPER_DATA")
    if folder and (path := Path(folder) / wanted).exists():
        return path
    hub = load_extra("downloading the paper's tasks", "huggingface_hub", "hub")
    files = hub.HfApi().list_repo_files(HUB_REPOSITORY, repo_type="dataset")
    # the folder inside the data set is not part of the contract, the file name is
    match = [f for f in files if f.rsplit("/", 1)[-1] == wanted]
    if not match:
        raise ValueError(f"{HUB_REPOSITORY} has no file {wanted}; it has {len(files)} files")
    return Path(hub.hf_hub_download(HUB_REPOSITORY, match[0], repo_type="dataset"))


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["list", "get"])
    parser.add_argument("name", nargs="?", choices=PAPER_TASKS)
    given = parser.parse_args()
    if given.command == "get":
        path = paper_file(given.name)
        print(path, checksum(path))
        return
    for name, (dataset, model) in PAPER_TASKS.items():
        print(f"{name:24s} {dataset:10s} {model:16s} {SHARED.get(name, 'published by the paper')}")


if __name__ == "__main__":
    main()
