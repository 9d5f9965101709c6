"""Tasks: a name and a way to load calibration and test logits with labels.

A task comes from a folder of ``.npz`` files, from the paper's published ``.p`` files, from the Hugging Face
data set they are published in, or from a synthetic generator.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.bench.synthetic import KINDS, parse_synthetic
from hcal.io import Part, Request, read, read_arrays, read_names
from hcal.extras import load_extra
from hcal.numerics import IntArray

HUB_REPOSITORY: Final = "WJHuang/calibration"
#: Prefix of a synthetic task in ``--tasks``.
SYNTHETIC: Final = "synthetic:"
#: The parts of a task.
PARTS: Final[tuple[Part, Part]] = ("cal", "test")


@dataclass(frozen=True)
class PaperTask:
    """One of the paper's 15 tasks: what it is, and the shapes of its appendix."""

    dataset: str
    model: str
    n_classes: int
    n_cal: int
    n_test: int


def _paper_tasks() -> dict[str, PaperTask]:
    shapes = {
        "CIFAR10": (10, 5000, 10000),
        "SVHN": (10, 6000, 26032),
        "CIFAR100": (100, 5000, 10000),
        "CARS": (196, 4020, 4020),
        "BIRDS": (200, 2897, 2897),
        "ImageNet": (1000, 25000, 25000),
    }
    rows = [
        ("resnet110_c10", "CIFAR10", "ResNet110"),
        ("resnet_wide32_c10", "CIFAR10", "WideResNet32"),
        ("densenet40_c10", "CIFAR10", "DenseNet40"),
        ("resnet152_SD_SVHN", "SVHN", "ResNet152(SD)"),
        ("resnet110_c100", "CIFAR100", "ResNet110"),
        ("resnet_wide32_c100", "CIFAR100", "WideResNet32"),
        ("densenet40_c100", "CIFAR100", "DenseNet40"),
        ("resnet50_cars", "CARS", "ResNet50pre"),
        ("resnet101_cars", "CARS", "ResNet101pre"),
        ("resnet101scratch_cars", "CARS", "ResNet101"),
        ("resnet50NTSNet_birds", "BIRDS", "ResNet50(NTS)"),
        ("resnet152_imgnet", "ImageNet", "ResNet152"),
        ("densenet161_imgnet", "ImageNet", "DenseNet161"),
        ("pnasnet5large_imgnet", "ImageNet", "PNASNet5large"),
        ("swintiny_imgnet", "ImageNet", "SwinTransformer"),
    ]
    return {name: PaperTask(dataset, model, *shapes[dataset]) for name, dataset, model in rows}


#: The paper's tasks by the name ``paper_tables.csv`` uses; the file is ``probs_{name}_logits.p``.
PAPER_TASKS: Final[dict[str, PaperTask]] = _paper_tasks()


@dataclass(frozen=True)
class Task:
    """Logits and labels of both parts."""

    name: str
    logits_cal: NDArray[Any]  # (N, K)
    y_cal: IntArray  # (N,)
    logits_test: NDArray[Any]
    y_test: IntArray
    #: (N, K), or None: the true probabilities, where they are known.
    true_test: NDArray[np.float64] | None = None

    @property
    def n_classes(self) -> int:
        """The number of classes K."""
        return int(self.logits_cal.shape[1])


@dataclass(frozen=True)
class TaskRef:
    """A task not yet in memory: cheap to list and to send to a worker process."""

    name: str
    kind: Literal["npz", "pickle", "synthetic"]
    location: str

    def load(self) -> Task:
        """Read or generate the arrays, checked.

        >>> TaskRef("a", "synthetic", "temperature-k4-n60").load().n_classes
        4
        """
        readers = {"npz": _load_npz, "pickle": _load_pickle, "synthetic": _load_synthetic}
        return readers[self.kind](self.name, self.location)


def find_tasks(where: str | os.PathLike[str] | Iterable[str]) -> tuple[list[TaskRef], list[str]]:
    """List tasks without loading them.

    ``where`` names, with commas or one by one, folders of ``.npz`` and ``.p`` files, such files, paper tasks
    (found in the folder ``HCAL_PAPER_DATA`` or downloaded), or ``synthetic:NAME``. The second list has a
    sentence for each file that was left out.

    >>> find_tasks("synthetic:temperature-k4")[0][0].name
    'temperature-k4'
    """
    items = str(where).split(",") if isinstance(where, str | os.PathLike) else list(where)
    tasks: dict[str, TaskRef] = {}
    skipped: list[str] = []
    for item in (i.strip() for i in items):
        for ref in _resolve(item, skipped):
            if ref.name in tasks and tasks[ref.name].location != ref.location:
                raise ValueError(
                    f"two tasks are called {ref.name!r}: {tasks[ref.name].location} and {ref.location}"
                )
            tasks[ref.name] = ref
    if not tasks:
        raise ValueError(f"no task found in {where!s}" + "".join(f"; {s}" for s in skipped))
    return list(tasks.values()), skipped


def _resolve(item: str, skipped: list[str]) -> list[TaskRef]:
    if item.startswith(SYNTHETIC):
        return _synthetic_refs(item.removeprefix(SYNTHETIC))
    path = Path(item)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".p"))
        return [ref for p in files for ref in _file_ref(p, skipped)]
    if path.is_file():
        return _file_ref(path, skipped)
    if item in PAPER_TASKS:
        return [TaskRef(item, "pickle", str(paper_file(item)))]
    raise ValueError(
        f"{item!r} is neither a folder, a task file, nor a known name; names of the paper's tasks: "
        f"{', '.join(PAPER_TASKS)}; synthetic: {SYNTHETIC}{{{','.join(KINDS)}}}"
    )


def _synthetic_refs(text: str) -> list[TaskRef]:
    names = [f"{kind}-k10" for kind in KINDS] if text == "all" else [text]
    return [TaskRef(name, "synthetic", name) for name in names]


def _file_ref(path: Path, skipped: list[str]) -> list[TaskRef]:
    if path.suffix == ".p":
        name = path.name.removesuffix(".p").removesuffix("_logits").removeprefix("probs_")
        return [TaskRef(name, "pickle", str(path))]
    if path.suffix != ".npz":
        skipped.append(f"{path.name}: not a .npz or .p file")
        return []
    keys = set(read_names(path))
    if {"y_cal", "y_test"} <= keys and _kind(keys) is not None:
        return [TaskRef(path.stem, "npz", str(path))]
    why = (
        "top-1 only: it has no logits and no calibration part"
        if "conf_test" in keys
        else f"keys {sorted(keys)}"
    )
    skipped.append(f"{path.name}: {why}")
    return []


def _kind(keys: set[str]) -> inputs.InputKind | None:
    """Return what both parts of a file hold, if they hold the same."""
    kinds: tuple[inputs.InputKind, ...] = ("logits", "log_probs", "probs")
    return next((kind for kind in kinds if {f"{kind}_cal", f"{kind}_test"} <= keys), None)


def _load_npz(name: str, location: str) -> Task:
    path = Path(location)
    kind = _kind(set(read_names(path)))
    if kind is None:
        raise ValueError(f"{location} holds no logits_*, log_probs_* or probs_* for both parts")
    cal, test = (read(path, Request(input=kind), part=part) for part in PARTS)
    parts = [inputs.check_logits(data.values, input=kind)[0] for data in (cal, test)]
    return _task(name, parts[0], cal.labels(), parts[1], test.labels())


def _load_pickle(name: str, location: str) -> Task:
    path = Path(location)
    if missing := {"logits_cal", "y_cal", "logits_test", "y_test"} - set(held := read_arrays(path)):
        raise ValueError(f"{location} is not ((logits, labels), (logits, labels)): no {min(missing)}")
    task = _task(
        name, held["logits_cal"], np.ravel(held["y_cal"]), held["logits_test"], np.ravel(held["y_test"])
    )
    expected = PAPER_TASKS.get(name)
    found = (task.n_classes, len(task.y_cal), len(task.y_test))
    if expected and found != (expected.n_classes, expected.n_cal, expected.n_test):
        raise ValueError(f"{location}: K, calibration and test rows are {found}, the paper says {expected}")
    return task


def _load_synthetic(name: str, location: str) -> Task:
    s = parse_synthetic(location)
    return Task(name, s.logits_cal, s.y_cal, s.logits_test, s.y_test, s.true_test)


def _task(name: str, logits_cal: Any, y_cal: Any, logits_test: Any, y_test: Any) -> Task:
    cal, _ = inputs.check_logits(logits_cal, input="logits")
    test, _ = inputs.check_logits(logits_test, input="logits", n_classes=cal.shape[1])
    return Task(
        name, cal, inputs.check_labels(y_cal, *cal.shape), test, inputs.check_labels(y_test, *test.shape)
    )


def paper_file(name: str) -> Path:
    """Return the local path of a paper task: from the folder ``HCAL_PAPER_DATA``, else downloaded.

    >>> paper_file("no_such_task")
    Traceback (most recent call last):
    ...
    ValueError: 'no_such_task' is not one of the paper's tasks
    """
    if name not in PAPER_TASKS:
        raise ValueError(f"{name!r} is not one of the paper's tasks")
    folder = os.environ.get("HCAL_PAPER_DATA")
    if folder and (path := Path(folder) / f"probs_{name}_logits.p").exists():
        return path
    return download_paper_task(name)


def download_paper_task(name: str, *, endpoint: str | None = None, cache: str | None = None) -> Path:
    """Download one of :data:`PAPER_TASKS` into the Hugging Face cache and return its path.

    ``endpoint`` is another server than huggingface.co (also: the variable ``HF_ENDPOINT``).
    """
    hub = load_extra("downloading the paper's tasks", "huggingface_hub", "hub")
    wanted = f"probs_{name}_logits.p"
    files = hub.HfApi(endpoint=endpoint).list_repo_files(HUB_REPOSITORY, repo_type="dataset")
    # The folder inside the data set is not part of the contract, the file name is.
    match = [f for f in files if f.rsplit("/", 1)[-1] == wanted]
    if not match:
        raise ValueError(f"{HUB_REPOSITORY} has no file {wanted}; it has {len(files)} files")
    return Path(
        hub.hf_hub_download(HUB_REPOSITORY, match[0], repo_type="dataset", endpoint=endpoint, cache_dir=cache)
    )
