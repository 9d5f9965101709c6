"""Tasks: folders of .npz, the published pickles, the hub (a mirror on loopback), and synthetic truth."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hcal.bench.store import read_results
from hcal.bench.synthetic import KINDS, make_synthetic, parse_synthetic
from hcal.bench.tasks import (
    HUB_REPOSITORY,
    PAPER_TASKS,
    download_paper_task,
    find_tasks,
)
from hcal.cli.app import app
from hcal.numerics import softmax


def write_npz(path: Path, n: int = 30, k: int = 3, kind: str = "logits") -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2 * n, k)).astype(np.float32)
    x = softmax(z.astype(np.float64)) if kind == "probs" else z
    y = rng.integers(0, k, 2 * n).astype(np.int16)
    np.savez(path, **{f"{kind}_cal": x[:n], f"{kind}_test": x[n:], "y_cal": y[:n], "y_test": y[n:]})


def test_folder_of_npz_skips_top1_files_with_a_word(tmp_path: Path) -> None:
    write_npz(tmp_path / "b.npz")
    write_npz(tmp_path / "a.npz", kind="probs")
    np.savez(tmp_path / "top1.npz", conf_test=np.ones(3), pred_test=np.ones(3), y_test=np.ones(3))
    (tmp_path / "README.md").write_text("not a task")
    tasks, skipped = find_tasks(tmp_path)
    assert [t.name for t in tasks] == ["a", "b"]
    assert skipped == ["top1.npz: top-1 only: it has no logits and no calibration part"]
    task = tasks[0].load()
    assert task.n_classes == 3
    assert task.y_cal.dtype == np.int64
    with np.load(tmp_path / "a.npz") as f:
        np.testing.assert_allclose(softmax(task.logits_test), f["probs_test"], atol=1e-12)


def test_unknown_place_lists_the_valid_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="swintiny_imgnet"):
        find_tasks("nowhere")
    with pytest.raises(ValueError, match="no task found"):
        find_tasks(tmp_path)


def test_same_name_twice_is_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_npz(tmp_path / folder / "a.npz")
    with pytest.raises(ValueError, match="two tasks are called 'a'"):
        find_tasks(f"{tmp_path / 'one'},{tmp_path / 'two'}")


def test_the_paper_has_15_tasks_with_its_shapes() -> None:
    assert len(PAPER_TASKS) == 15
    birds = PAPER_TASKS["resnet50NTSNet_birds"]
    assert (birds.n_classes, birds.n_cal, birds.n_test) == (200, 2897, 2897)


def paper_pickle(path: Path, name: str = "resnet50NTSNet_birds") -> None:
    shape = PAPER_TASKS[name]
    rng = np.random.default_rng(1)
    parts = []
    for n in (shape.n_cal, shape.n_test):
        logits = rng.normal(size=(n, shape.n_classes)).astype(np.float32)
        parts.append((logits, rng.integers(0, shape.n_classes, size=(n, 1))))
    path.write_bytes(pickle.dumps(tuple(parts)))


def test_published_pickle_is_read_by_name_from_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper_pickle(tmp_path / "probs_resnet50NTSNet_birds_logits.p")
    by_folder, _ = find_tasks(tmp_path)
    monkeypatch.setenv("HCAL_PAPER_DATA", str(tmp_path))
    by_name, _ = find_tasks("resnet50NTSNet_birds")
    assert by_folder == by_name
    task = by_name[0].load()
    assert task.logits_cal.shape == (2897, 200)
    assert task.y_cal.shape == (2897,)


def test_pickle_of_another_shape_than_the_papers_is_refused(tmp_path: Path) -> None:
    part = (np.zeros((4, 10), np.float32), np.zeros(4, np.int64))
    (tmp_path / "probs_resnet110_c10_logits.p").write_bytes(pickle.dumps((part, part)))
    with pytest.raises(ValueError, match="the paper says"):
        find_tasks(tmp_path)[0][0].load()


# -- the hub, as a mirror on loopback ---------------------------------------------------------------


class Mirror(BaseHTTPRequestHandler):
    """The three answers of a Hugging Face server that a download needs: repository, file list, file."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    commit = "0" * 40

    def _send(self, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/datasets/{HUB_REPOSITORY}/tree/"):
            tree = [
                {"type": "file", "path": p, "size": len(b), "oid": f"{i:040x}"}
                for i, (p, b) in enumerate(self.files.items())
            ]
            self._send(json.dumps(tree).encode(), "application/json")
        elif path.startswith(f"/api/datasets/{HUB_REPOSITORY}"):
            info = {
                "id": HUB_REPOSITORY,
                "sha": self.commit,
                "siblings": [{"rfilename": p} for p in self.files],
            }
            self._send(json.dumps(info).encode(), "application/json")
        elif (name := path.partition("/resolve/")[2].partition("/")[2]) in self.files:
            body = self.files[name]
            self._send(body, "application/octet-stream", ETag='"tag"', X_Repo_Commit=self.commit)
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    paper_pickle(tmp_path / "birds.p")
    Mirror.files = {"logits/probs_resnet50NTSNet_birds_logits.p": (tmp_path / "birds.p").read_bytes()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.filterwarnings("ignore::UserWarning:huggingface_hub")
def test_download_from_a_mirror(mirror: str, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    path = download_paper_task("resnet50NTSNet_birds", endpoint=mirror, cache=str(tmp_path / "cache"))
    assert path.read_bytes() == (tmp_path / "birds.p").read_bytes()
    with pytest.raises(ValueError, match="has no file probs_resnet110_c10_logits"):
        download_paper_task("resnet110_c10", endpoint=mirror, cache=str(tmp_path / "cache"))


# -- synthetic --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [2, 10])
def test_labels_follow_the_true_probabilities(kind: str, k: int) -> None:
    task = make_synthetic(kind, n_classes=k, n_test=20_000, random_state=1)  # type: ignore[arg-type]
    hits = task.true_test[np.arange(len(task.y_test)), task.y_test]
    # E[true probability of the drawn label] = E[sum of squares]; compare within 5 standard errors.
    expected = (task.true_test**2).sum(1)
    gap = hits - expected
    assert abs(gap.mean()) < 5 * gap.std() / np.sqrt(len(gap))
    frequency = np.bincount(task.y_test, minlength=k) / len(task.y_test)
    np.testing.assert_allclose(frequency, task.true_test.mean(0), atol=0.02)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("calibrated",)])
def test_each_fault_is_a_fault(kind: str) -> None:
    task = make_synthetic(kind, n_classes=5, n_test=4000)  # type: ignore[arg-type]
    assert np.abs(softmax(task.logits_test) - task.true_test).sum(1).mean() > 0.02


def test_calibrated_is_calibrated_and_strength_zero_is_too() -> None:
    for task in (make_synthetic("calibrated"), make_synthetic("temperature", strength=0)):
        np.testing.assert_allclose(softmax(task.logits_test), task.true_test, atol=1e-12)


def test_non_monotone_keeps_every_argmax_and_is_not_monotone() -> None:
    task = make_synthetic("non_monotone", n_classes=3, n_test=20_000)
    shown = softmax(task.logits_test)
    assert (shown.argmax(1) == task.true_test.argmax(1)).all()
    order = np.argsort(shown.max(1))
    true = task.true_test.max(1)[order]
    means = true.reshape(40, -1).mean(1)
    assert (np.maximum.accumulate(means) - means).max() > 0.04


def test_a_thousand_classes_and_names() -> None:
    assert parse_synthetic("long_tail-k1000-n50-s2").logits_cal.shape == (50, 1000)
    with pytest.raises(ValueError, match="temperature-k10"):
        parse_synthetic("temperature-x3")
    with pytest.raises(ValueError, match="valid kinds"):
        parse_synthetic("colour-k3")


def test_the_how_to_lists_the_papers_tasks() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "paper-tasks.md").read_text()
    for name, t in PAPER_TASKS.items():
        assert f"| `{name}` | {t.dataset} | {t.model} | {t.n_classes} | {t.n_cal} / {t.n_test} |" in page


def test_the_papers_files_are_found_by_name_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Generated files of the published format and shape, under the published names.
    rng = np.random.default_rng(0)
    for name in ("resnet110_c10", "densenet40_c10"):
        parts = []
        for n in (PAPER_TASKS[name].n_cal, PAPER_TASKS[name].n_test):
            logits = rng.normal(size=(n, 10)).astype(np.float32) * 3
            parts.append((logits, (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)[:, None]))
        (tmp_path / f"probs_{name}_logits.p").write_bytes(pickle.dumps(tuple(parts)))
    monkeypatch.setenv("HCAL_PAPER_DATA", str(tmp_path))
    command = [
        "bench",
        "run",
        "--tasks",
        "resnet110_c10,densenet40_c10",
        "--methods",
        "uncal,ts",
        "--jobs",
        "1",
    ]
    out = tmp_path / "r.csv"
    result = CliRunner().invoke(app, [*command, "--metrics", "ece_ew,nll", "--out", str(out)])
    assert result.exit_code == 0, result.output
    found = read_results(out)
    assert sorted(found.tasks) == ["densenet40_c10", "resnet110_c10"]
    for task in found.tasks:
        assert found.value(task, "ts", "ece_ew") < found.before(task, "ece_ew") / 2
