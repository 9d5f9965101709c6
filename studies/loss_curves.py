"""The loss while a map is trained, on the rows that train it and on test rows.

``python -m studies.loss_curves --data FOLDER`` trains one map on the h objective with a constant learning
rate and writes ``results/loss_curves.csv``; the reproduction page draws it. ``part`` is ``calibration``,
``test``, or ``chance``: the test loss of the last epoch if labels were drawn from its predictions.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from hcal.bench.style import PALETTE, SUBJECT, styled
from hcal.bench.tables import ResultTable, Row
from hcal.io.atomic import atomic_path
from hcal.objective.loss import HCalibrationLoss
from hcal.solvers.monitors import epoch_ece_ew, epoch_nll
from studies.central_experiment import Task, load_task
from studies.central_training import Schedule, Start, build_members

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASKS: Final = ("cifar10_resnet110", "cifar10_wideresnet", "agnews_gpt2", "cifar100_resnet50")
COLUMNS: Final = ("task", "map", "epoch", "part", "h", "nll", "ece_ew")
MAP: Final = "monotonic-10"
#: Epochs between two looks, and draws of labels for ``chance``.
STEP: Final = 20
DRAWS: Final = 20
Losses = Mapping[str, Mapping[str, list[tuple[int, float]]]]


def curves_of(task: Task, epochs: int) -> Iterator[dict[str, Any]]:
    """Train one map and yield its losses, every :data:`STEP` epochs."""
    x, y, x_test, y_test = (torch.from_numpy(a) for a in (task.x_cal, task.y_cal, task.x_test, task.y_test))
    loss = HCalibrationLoss(scale=1.0)
    start = [Start(MAP, "identity", 0)]
    (member,) = build_members(start, x, y, HCalibrationLoss(), Schedule(epochs, plateau=0, patience=0))

    def row(epoch: int, part: str, probs: Tensor, labels: Tensor) -> dict[str, Any]:
        values = {"h": loss(probs, labels), "nll": epoch_nll(probs, labels)}
        values["ece_ew"] = epoch_ece_ew(probs, labels)
        return {"task": task.name, "map": MAP, "epoch": epoch, "part": part} | {
            name: f"{float(v):.6g}" for name, v in values.items()
        }

    for epoch in range(epochs + 1):
        if epoch:
            member.epoch()
        if epoch % STEP == 0:
            with torch.no_grad():
                probs = member.map(x_test)
                yield row(epoch, "calibration", member.map(x), y)
                yield row(epoch, "test", probs, y_test)
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        yield row(epochs, "chance", probs, torch.multinomial(probs, 1, generator=generator)[:, 0])


def read_losses(path: Path) -> Losses:
    """Return task -> part -> (epoch, h loss), in the order of the file."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    with path.open(newline="") as file:
        for r in csv.DictReader(file):
            found[r["task"]][r["part"]].append((int(r["epoch"]), float(r["h"])))
    return found


def chance_of(parts: Mapping[str, Sequence[tuple[int, float]]]) -> float:
    """Return the mean loss of labels drawn from the predictions."""
    values = [loss for _, loss in parts["chance"]]
    return sum(values) / len(values)


def loss_table(losses: Losses) -> ResultTable:
    """Return the loss at the start, at its least and at the end, by part."""
    rows = []
    for task, parts in losses.items():
        values: list[float | str | None] = []
        for part in ("calibration", "test"):
            curve = [loss for _, loss in parts[part]]
            values += [curve[0], min(curve), curve[-1]]
        rows.append(Row(task, [*values, chance_of(parts)], digits=4))
    columns = [f"{part}, {when}" for part in ("calibration", "test") for when in ("start", "least", "end")]
    return ResultTable("The h loss on both parts, divided by r", "task", [*columns, "by chance"], rows)


def figure(losses: Losses) -> Figure:
    """Draw a panel a task: both parts against the epoch, and the loss by chance."""
    with styled() as plt:
        out, panels = plt.subplots(1, len(losses), figsize=(2.5 * len(losses), 2.6), squeeze=False)
        for axes, (task, parts) in zip(panels[0], losses.items(), strict=True):
            for part, colour in (("calibration", PALETTE[0]), ("test", SUBJECT)):
                axes.plot(*zip(*parts[part], strict=True), color=colour, label=part)
            axes.axhline(chance_of(parts), color="black", linestyle=":", linewidth=1, label="by chance")
            axes.set_title(task, loc="left", fontsize=8)
            axes.set(xlabel="epoch", ylim=(0, None))
        panels[0][0].set_ylabel("h loss / r")
        panels[0][-1].legend(loc="upper right", fontsize=7)
        out.tight_layout()
    return out  # type: ignore[no-any-return]


def main() -> None:
    """Read the arguments, train and write the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the .npz files")
    parser.add_argument("--out", type=Path, default=Path("results/loss_curves.csv"))
    parser.add_argument("--tasks", default=",".join(TASKS), help="by commas")
    parser.add_argument("--epochs", type=int, default=600)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with atomic_path(asked.out) as new, new.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for name in asked.tasks.split(","):
            writer.writerows(curves_of(load_task(asked.data, name), asked.epochs))
            print(name, flush=True)


if __name__ == "__main__":
    main()
