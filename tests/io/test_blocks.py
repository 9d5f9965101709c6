"""Blocks: streamed rows are the rows, whatever the format, the size of a block and the reader."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from command_line import run
from hcal.integrations import dense
from hcal.io import Request, batches, read, read_piece
from hcal.rows import Rows

N, K = 1234, 5
NAMES = ["ant", "bee", "cat", "dog", "eel"]
REQUEST = Request(scores="logits_*", label="target", id="key")


def assert_starts_follow(blocks: list[Rows]) -> None:
    """A block starts where the blocks before it end."""
    ends = np.cumsum([len(block) for block in blocks])
    assert [block.start for block in blocks] == [0, *ends[:-1].tolist()]


def made_up_rows(seed: int = 0, n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, K)).astype(np.float32)
    ids = np.array([f"r{i:05d}" for i in range(n)])
    return logits, rng.integers(0, K, n), ids


def frame(logits: Any, y: Any, ids: Any) -> Any:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(logits, columns=[f"logits_{name}" for name in NAMES])
    return table.assign(target=np.array(NAMES)[y], key=ids)


def write(path: Path, name: str, rows: tuple[np.ndarray, ...]) -> Request:
    logits, y, ids = rows
    if name == "npy":
        np.save(path / "a.npy", logits)
        np.save(path.parent / "y.npy", y)
        return Request(input="logits", labels=path.parent / "y.npy")
    if name.startswith("npz"):
        save = np.savez_compressed if "packed" in name else np.savez
        stored = np.asfortranarray(logits) if "columns" in name else logits
        save(path / "a.npz", logits=stored, y=y, id=ids)
        return Request(id="id")
    table = frame(*rows)
    if name == "csv":
        table.to_csv(path / "a.csv", index=False)
    elif name == "parquet":
        table.to_parquet(path / "a.parquet", row_group_size=100)
    elif name == "feather":
        table.to_feather(path / "a.feather", chunksize=90)
    else:
        table.to_json(path / "a.jsonl", orient="records", lines=True, double_precision=15)
    return REQUEST


def test_blocks_are_the_rows_in_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hcal.io.formats._MARK_BYTES", 4000)  # small files of text have cuts too
    arrays = ("npy", "npz", "npz, columns", "npz, packed", "npz, packed, columns")
    formats = (*arrays, "csv", "parquet", "feather", "jsonl")
    for name in formats:
        for n, rows in ((N, 100), (N, 1234), (7, 3)):
            folder = tmp_path / f"{name}-{n}-{rows}"
            folder.mkdir()
            request = write(folder, name, made_up_rows(n=n))
            in_memory = read(folder, request)
            source = batches(folder, request, rows=rows)
            blocks = list(source)
            assert source.n_rows == n
            assert source.n_classes == K
            assert source.kind == "logits"
            assert source.classes == in_memory.classes
            assert max(map(len, blocks)) <= rows
            assert_starts_follow(blocks)
            np.testing.assert_array_equal(
                np.concatenate([b.scores for b in blocks]), in_memory.values
            )
            assert blocks[0].scores.dtype == in_memory.values.dtype
            np.testing.assert_array_equal(np.concatenate([b.y for b in blocks]), in_memory.labels())
            if in_memory.ids is not None:
                np.testing.assert_array_equal(
                    np.concatenate([b.ids for b in blocks]), in_memory.ids
                )
            # Read in another order by others, the pieces are the same rows.
            pieces = pickle.loads(pickle.dumps(source.pieces()))
            apart = {b.start: b for piece in reversed(pieces) for b in read_piece(piece)}
            for batch in blocks:
                np.testing.assert_array_equal(apart[batch.start].scores, batch.scores)


def test_a_folder_is_one_set_of_rows(tmp_path: Path) -> None:
    """Files in sorted order, columns found by the names of the first file, rows counted through."""
    rows = made_up_rows()
    table = frame(*rows)
    table.iloc[:500].to_csv(tmp_path / "a.csv", index=False)
    table.iloc[500:, ::-1].to_csv(tmp_path / "b.csv", index=False)
    (tmp_path / "README.md").touch()
    source = batches(tmp_path, REQUEST, rows=300)
    data = read(tmp_path, REQUEST)
    np.testing.assert_allclose(
        data.values, rows[0], rtol=1e-6
    )  # CSV has the digits that pandas writes
    np.testing.assert_array_equal(data.labels(), rows[1])
    assert source.classes == tuple(NAMES)
    assert data.name == "a.csv and 1 more"
    table.loc[307, "target"] = "cow"
    table.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ValueError, match="counting from row 300: y: row 7 is 'cow'"):
        list(batches(tmp_path / "a*", REQUEST, rows=300))
    table[[*table][:3]].to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(ValueError, match=r"b.csv.* has 3 classes, the rows before 5"):
        list(batches(tmp_path, Request(scores="logits_*"), rows=900))
    np.save(tmp_path / "c.npy", rows[0])
    with pytest.raises(ValueError, match=r"several types, .csv, .npy"):
        batches(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file of a known type matches"):
        batches(tmp_path / "*.parquet")


def test_rows_without_a_label_are_dropped_and_counted_through(tmp_path: Path) -> None:
    rows = made_up_rows(n=900)
    table = frame(*rows)
    table.loc[::7, "target"] = None
    parts = {"a": table.iloc[:400], "b": table.iloc[400:]}
    for name, part in parts.items():
        part.to_parquet(tmp_path / f"{name}.parquet", row_group_size=100)
    with pytest.raises(ValueError, match="--unlabelled drop"):
        list(batches(tmp_path, REQUEST, rows=50))
    request = Request(scores="logits_*", label="target", unlabelled="drop")
    source = batches(tmp_path, request, rows=50)
    kept = np.arange(900) % 7 != 0
    assert source.n_rows == kept.sum()
    blocks = list(source)
    assert_starts_follow(blocks)
    scores = np.concatenate([block.scores for block in blocks])
    np.testing.assert_array_equal(scores, rows[0][kept])
    labels = np.concatenate([block.y for block in blocks])
    np.testing.assert_array_equal(labels, rows[1][kept])
    in_memory = read(tmp_path, request)
    assert in_memory.dropped == 129
    assert len(in_memory.values) == 771
    one_column = np.where(kept, rows[1], -100)[:, None]
    np.savez(tmp_path / "column.npz", logits=rows[0], y=one_column)
    source = batches(tmp_path / "column.npz", Request(ignore_index=-100), rows=50)
    assert source.n_rows == kept.sum()


def test_a_block_is_read_as_the_whole_whatever_its_cells_look_like(tmp_path: Path) -> None:
    """Cells of a text file are text: 007 is no 7, and a class named 3 is no position."""
    path = tmp_path / "a.csv"
    lines = ["probs_0,probs_1,y,key", *(f"0.25,0.75,1,{i:03}" for i in range(2000))]
    path.write_text("\n".join([*lines, "0.5,0.5,cat,x7"]))
    with pytest.raises(ValueError, match="counting from row 2,000: y holds text"):
        list(batches(path, Request(id="key"), rows=500))
    path.write_text("\n".join(lines))
    blocks = list(batches(path, Request(id="key"), rows=500))
    assert blocks[0].ids[7] == "007"
    assert blocks[-1].ids[-1] == "1999"
    assert blocks[0].y[0] == 1
    path.write_text(
        "p_7,p_3,p_x\ty\n".replace("\t", ",") + "0.2,0.3,0.5,3\n" * 4 + "0.2,0.3,0.5,x\n"
    )
    labels = [block.y.tolist() for block in batches(path, Request("p_*"), rows=4)]
    assert labels == [[1, 1, 1, 1], [2]]
    path.write_text("logits_0,logits_1,y\n0,1,7\n1,0,3\n")
    for names in (("3", "7"), (3, 7)):  # of a model
        assert read(path, order=names).labels().tolist() == [1, 0]


def test_dense_files_are_read_pixel_by_pixel(tmp_path: Path) -> None:
    """Segmentation (issue 27, item 11): scores (N, K, H, W), masks (N, H, W) or (N, 1, H, W), 255 for nothing."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(7, 3, 4, 5))
    masks = rng.integers(0, 3, (7, 4, 5))
    masks[:, 0] = 255
    expected, labels = dense.rows(logits, masks, ignore_index=255)
    np.save(tmp_path / "z.npy", logits)
    for shape in (masks.shape, (7, 1, 4, 5)):
        y = masks.reshape(shape)
        np.save(tmp_path / "y.npy", y)
        np.savez(tmp_path / "a.npz", logits=logits, y=y, site=np.arange(7))
        stored = np.asfortranarray(logits)
        np.savez_compressed(tmp_path / "b.npz", logits=stored, y=y, site=np.arange(7))
        two = Request(input="logits", labels=tmp_path / "y.npy", ignore_index=255)
        one = Request(groups="site", ignore_index=255)
        for name, request in (("z.npy", two), ("a.npz", one), ("b.npz", one)):
            data = read(tmp_path / name, request)
            np.testing.assert_array_equal(data.values, expected)
            np.testing.assert_array_equal(data.labels(), labels)
            if data.groups is not None:
                assert data.groups.tolist() == np.repeat(np.arange(7), 15).tolist()
            source = batches(tmp_path / name, request, rows=30)
            np.testing.assert_array_equal(np.concatenate([b.scores for b in source]), expected)
            assert source.n_rows == len(labels)
    for bad in (masks[:, :, :4], masks.reshape(7, 20)):
        np.savez(tmp_path / "a.npz", logits=logits, y=bad)
        with pytest.raises(
            ValueError, match=r"a.npz has dense scores, which need labels of shape \(N, 4, 5\)"
        ):
            read(tmp_path / "a.npz")


def test_dense_files_are_evaluated(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    logits = 3 * rng.normal(size=(20, 3, 8, 8))
    masks = rng.integers(0, 3, (20, 1, 8, 8))
    masks[:5] = -100
    np.savez(tmp_path / "a.npz", logits=logits, y=masks)
    file = str(tmp_path / "a.npz")
    model = str(tmp_path / "m.hcal")
    run("fit", file, "--ignore-index", "-100", "--method", "ts", "-o", model)
    for options in ([], ["--batch-rows", "100"]):
        evaluation = json.loads(run("evaluate", file, "--model", model, "--json", *options).stdout)
        flat, y = dense.rows(logits, masks, ignore_index=-100)
        assert evaluation["n"] == 15 * 64
        nll = hcal.metrics.nll(hcal.softmax(flat), y)
        assert evaluation["metrics"]["nll"]["baseline"] == pytest.approx(nll)
    refused = run("evaluate", file, "--metrics", "nll", code=1)
    assert "y must lie in 0..2; row 0 is -100: if that marks rows without a label" in refused.stderr
    assert "--ignore-index -100" in refused.stderr
