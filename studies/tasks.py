"""The tasks of the studies: ``.npz`` files with two parts, and the paper's 15 tasks as it published them.

    python -m studies.tasks                    # the paper's tasks, and where each of them is
    python -m studies.tasks get resnet110_c10  # downloads one (huggingface_hub), checks it, prints its path
    python -m studies.tasks npz resnet110_c10  # and writes it to resnet110_c10.npz, which hcal reads

A paper task is read from the folder ``HCAL_PAPER_DATA``, as a file or from an archive in it, else downloaded. What is
downloaded must have the SHA-256 that its publisher states. Its ``.p`` file goes through ``pickles.py``, which admits
numpy arrays and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.numerics import IntArray
from studies.pickles import read_pickle
from studies.records import ROOT

#: The folder of the shared tasks.
DATA: Final = Path(os.environ.get("HCAL_DATA", ROOT.parent / "shared" / "data"))
HUB_REPOSITORY: Final = "WJHuang/calibration"
_LFS_POINTER: Final = b"version https://git-lfs"
ARCHIVES: Final = (".zip", ".tar", ".tar.gz", ".tgz")
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
        with np.load(path) as arrays:
            parts = {key: arrays[key] for key in arrays.files}
    elif name in PAPER_TASKS:
        parts = read_pickle(_content(paper_file(name)))
    else:
        raise ValueError(f"{name!r} is neither a file of {data} nor one of the paper's tasks")
    task = _checked(name, parts)
    if name in PAPER_TASKS:
        _check_shape(task)
    return task


def _check_shape(task: Task) -> None:
    """Refuse a paper task with other numbers of classes or rows than the paper's."""
    data_set, _ = PAPER_TASKS[task.name]
    shape = (task.logits_cal.shape[1], len(task.y_cal), len(task.y_test))
    if shape != _SHAPES[data_set]:
        raise ValueError(
            f"{task.name}: classes, calibration and test rows are {shape}, the paper says "
            f"{_SHAPES[data_set]}"
        )


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


def _content(path: Path) -> bytes:
    """Return the bytes of a file, which must not be the pointer that a clone without Git LFS leaves in its place."""
    content = path.read_bytes()
    if content.startswith(_LFS_POINTER):
        raise ValueError(f"{path} is a pointer of Git LFS and not the file: run git lfs pull")
    return content


def paper_file(name: str) -> Path:
    """Return the local path of a paper task: from the folder ``HCAL_PAPER_DATA``, else downloaded."""
    return local_file(name) or download(name)


def local_file(name: str) -> Path | None:
    """Return the path of a paper task in the folder ``HCAL_PAPER_DATA``; None where it is not there."""
    folder = os.environ.get("HCAL_PAPER_DATA")
    return find_in_folder(Path(folder), file_name(name)) if folder else None


def file_name(name: str) -> str:
    """Return the name under which the paper publishes a task.

    >>> file_name("resnet110_c10")
    'probs_resnet110_c10_logits.p'
    """
    return f"probs_{name}_logits.p"


def find_in_folder(folder: Path, target: str) -> Path | None:
    """Return a file of a folder or its subfolders by its name; unpack it where an archive holds it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        if path.name == target:
            return path
    for path in files:
        if path.name.endswith(ARCHIVES):
            unpacked = unpack(path, target)
            if unpacked is not None:
                return unpacked
    return None


def unpack(archive: Path, target: str) -> Path | None:
    """Write one file of an archive beside the archive; None where the archive has no file of this name.

    The folder inside the archive does not matter, and no path of the archive is used for writing.
    """
    content = (
        _zip_member(archive, target) if archive.suffix == ".zip" else _tar_member(archive, target)
    )
    if content is None:
        return None
    path = archive.with_name(target)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path


def _zip_member(archive: Path, target: str) -> bytes | None:
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            if PurePosixPath(name).name == target:
                return opened.read(name)
    return None


def _tar_member(archive: Path, target: str) -> bytes | None:
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.isfile() and PurePosixPath(member.name).name == target:
                extracted = opened.extractfile(member)
                return extracted.read() if extracted is not None else None
    return None


def download(name: str) -> Path:
    """Download a paper task, or the archive that holds it, and compare it with the stated SHA-256."""
    hub = _hub()
    target = file_name(name)
    files = hub.HfApi().list_repo_files(HUB_REPOSITORY, repo_type="dataset")
    # The folder inside the data set is not part of the contract, the file name is.
    direct = [file for file in files if PurePosixPath(file).name == target]
    if direct:
        return _verified(hub, direct[0])
    for file in files:
        if file.endswith(ARCHIVES):
            unpacked = unpack(_verified(hub, file), target)
            if unpacked is not None:
                return unpacked
    raise ValueError(
        f"{HUB_REPOSITORY} has neither a file {target} nor an archive that holds it; it has "
        f"{len(files)} files"
    )


def _hub() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise ImportError(
            "downloading the paper's tasks needs huggingface_hub: pip install huggingface_hub; or "
            "set HCAL_PAPER_DATA to a folder that has the files"
        ) from None


def _verified(hub: Any, file: str) -> Path:
    """Download one file and refuse it unless it has the SHA-256 of the published pointer."""
    (facts,) = hub.HfApi().get_paths_info(HUB_REPOSITORY, [file], repo_type="dataset")
    path = Path(hub.hf_hub_download(HUB_REPOSITORY, file, repo_type="dataset"))
    if facts.lfs is None:
        return path  # a small file, which is stored as it is and has no pointer
    sha256 = checksum(path)
    if sha256 != facts.lfs.sha256:
        raise ValueError(
            f"{path} has the SHA-256 {sha256}, but {facts.lfs.sha256} was published: delete it and "
            "download again"
        )
    return path


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def where(name: str, data: Path) -> str:
    """Say where a paper task is."""
    if name in SHARED and (data / f"{SHARED[name]}.npz").exists():
        return f"here: {SHARED[name]}.npz"
    path = local_file(name)
    if path is not None:
        return f"here: {path}"
    return f"not here: python -m studies.tasks get {name}"


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=["list", "get", "npz"], default="list")
    parser.add_argument("name", nargs="?", choices=PAPER_TASKS)
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    if arguments.command == "list":
        for name, (dataset, model) in PAPER_TASKS.items():
            print(f"{name:24s} {dataset:10s} {model:16s} {where(name, arguments.data)}")
        return
    if arguments.name is None:
        parser.error(f"which task? One of {', '.join(PAPER_TASKS)}")
    if arguments.command == "npz":
        print(write_npz(arguments.name, arguments.data))
        return
    path = paper_file(arguments.name)
    print(path, checksum(path))


def write_npz(name: str, data: Path) -> Path:
    """Write a paper task to ``name.npz`` in the present folder, as the commands of hcal read it."""
    task = load_task(name, data)
    path = Path(f"{name}.npz")
    np.savez(
        path,
        logits_cal=task.logits_cal,
        y_cal=task.y_cal,
        logits_test=task.logits_test,
        y_test=task.y_test,
    )
    return path


if __name__ == "__main__":
    main()
