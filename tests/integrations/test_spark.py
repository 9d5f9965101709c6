"""Spark in one JVM with two and four workers: the numbers of memory, whatever fails on the way."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.io import Request, batches
from helpers import synthetic

pyspark = pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as parquet  # noqa: E402
from pyspark.errors import PythonException  # noqa: E402

from hcal.integrations import spark as on_spark  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

#: More rows than a sample of an evaluation has, so that sums and the sample are both needed.
ROWS, CLASSES = 24_000, 3
LOGITS, LABELS = synthetic(ROWS, CLASSES)
CAL = hcal.make_calibrator("vs").fit(*synthetic(1000, CLASSES, seed=1))
COUNTRY = np.array(["DE", "FR"])[np.arange(ROWS) % 2]
#: The names of the columns, in another order than the classes.
TABLE = pa.table(
    {
        "country": COUNTRY,
        "logit_2": LOGITS[:, 2],
        "target": LABELS,
        "logit_0": LOGITS[:, 0],
        "logit_1": LOGITS[:, 1],
    }
)
REQUEST = Request(scores="logit_*", label="target", input="logits")
#: More than one task merges, so that the tree of answers has two levels.
PARTITIONS = 10


@pytest.fixture(scope="module", params=[2, 4])
def spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The workers do not find this file by its name.
    pyspark.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    # A task may fail twice before its job does.
    builder = SparkSession.builder.master(f"local[{request.param},3]").appName("hcal")
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        # Each file is a partition.
        "spark.sql.files.openCostInBytes": str(2**27),
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows in ten files, which Spark reads as ten partitions."""
    folder = tmp_path_factory.mktemp("rows")
    for part, rows in enumerate(np.array_split(np.arange(ROWS), PARTITIONS)):
        parquet.write_table(TABLE.take(rows), folder / f"part-{part}.parquet")
    return folder


class FailsOnce:
    """Batches as they come; but the first task that reads the last partition fails."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            raise RuntimeError("this task fails once")
        yield from batches


# -- the same numbers ----------------------------------------------------------------------------------------


def test_a_frame_is_what_its_files_and_arrays_are(spark: Any, folder: Path, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    stored = spark.read.parquet(str(folder))
    places = stored.select(f.spark_partition_id().alias("place"), f.input_file_name().alias("file"))
    in_order = sorted(places.distinct().collect(), key=lambda row: row.place)
    files = [folder / Path(row.file).name for row in in_order]
    assert len(files) == PARTITIONS
    frame = stored.mapInArrow(FailsOnce(tmp_path / "mark"), stored.schema)
    options: dict[str, Any] = {"confidence": 0.95, "resamples": 20}
    result = on_spark.evaluate(frame, CAL, REQUEST, **options)
    assert (tmp_path / "mark").exists()

    in_memory = hcal.evaluate(CAL, LOGITS, LABELS, metrics=["nll", "brier", "accuracy", "ece_ew"])
    assert result.n == ROWS
    for name, value in in_memory.values.items():
        assert result.values[name] == pytest.approx(value, abs=1e-12), name
        assert result.before.values[name] == pytest.approx(in_memory.before.values[name], abs=1e-12)
    # Rows are numbered as those of files are, so that the sample has the same rows.
    from_files = hcal.evaluate(CAL, batches(files, REQUEST), **options)
    for name, value in from_files.values.items():
        assert result.values[name] == pytest.approx(value, abs=1e-12, nan_ok=True), name
    for name in from_files.values:
        interval = from_files.interval(name)
        if interval is not None:
            assert result.interval(name) == pytest.approx(interval, abs=1e-12), name


def test_certificates_fits_and_predictions_are_those_of_memory(spark: Any, tmp_path: Path) -> None:
    stored = spark.createDataFrame(TABLE)
    frame = stored.mapInArrow(FailsOnce(tmp_path / "mark"), stored.schema)
    assert frame.rdd.getNumPartitions() in (2, 4)

    proof = on_spark.certify(frame, CAL, REQUEST)
    assert (tmp_path / "mark").exists()
    assert proof.sentences == hcal.certify(CAL, LOGITS, LABELS).sentences

    calibrator = on_spark.fit(frame, "vs", REQUEST)
    expected = hcal.make_calibrator("vs").fit(LOGITS, LABELS)
    np.testing.assert_allclose(
        calibrator.predict_proba(LOGITS), expected.predict_proba(LOGITS), rtol=0, atol=1e-12
    )
    # The fit remembers the columns, and a model file is as good as the calibrator.
    hcal.save(calibrator, tmp_path / "model.hcal")
    probs = on_spark.transform(frame.drop("target"), tmp_path / "model.hcal")
    table = probs.toArrow()
    assert table.schema.names == [
        *TABLE.drop("target").schema.names,
        "probs_0",
        "probs_1",
        "probs_2",
    ]
    scores = np.stack([table[f"logit_{k}"].to_numpy() for k in range(CLASSES)], axis=1)
    written = np.stack([table[f"probs_{k}"].to_numpy() for k in range(CLASSES)], axis=1)
    np.testing.assert_allclose(written, expected.predict_proba(scores), rtol=0, atol=1e-12)


def test_segments_names_and_vectors(spark: Any) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as f

    names = np.array(["ant", "bee", "cat"])
    labels = pa.array(names[LABELS[:1500]])
    titles = ["country", "logit_cat", "target", "logit_ant", "logit_bee"]
    table = TABLE.slice(0, 1500).set_column(2, "target", labels).rename_columns(titles)
    frame = spark.createDataFrame(table).coalesce(2)
    request = Request(scores="logit_*", label="target", by="country", input="logits")
    calibrator = on_spark.fit(frame, "ts", request)
    # The names of the columns are those of the classes, in the order of the frame.
    assert calibrator.classes_.tolist() == ["cat", "ant", "bee"]
    by = {"country": COUNTRY[:1500]}
    expected = hcal.SegmentedCalibrator("ts").fit(LOGITS[:1500], LABELS[:1500], by=by)
    # Another order of the columns, with an old column in the place of a new one.
    other = frame.select("country", "logit_ant", "logit_bee", "logit_cat")
    rows = on_spark.transform(other.withColumn("probs_bee", f.lit(7)), calibrator).toArrow()
    assert set(rows["probs_bee_before"].to_pylist()) == {7}
    written = np.stack([rows[f"probs_{name}"].to_numpy() for name in names], axis=1)
    scores = np.stack([rows[f"logit_{name}"].to_numpy() for name in names], axis=1)
    places = {"country": rows["country"].to_numpy(zero_copy_only=False)}
    np.testing.assert_allclose(
        written, expected.predict_proba(scores, by=places), rtol=0, atol=1e-12
    )
    # What Spark's own classifiers give is one vector a row.
    vector = array_to_vector(f.array("logit_cat", "logit_ant", "logit_bee")).alias("raw")
    of_vector = Request(scores="raw", label="target", input="logits", classes=("cat", "ant", "bee"))
    plain = on_spark.fit(frame.select(vector, "target"), "ts", of_vector)
    alone = hcal.make_calibrator("ts").fit(LOGITS[:1500], LABELS[:1500])
    expected = alone.predict_proba(LOGITS[:9])[:, [2, 0, 1]]
    turned = LOGITS[:9][:, [2, 0, 1]]
    np.testing.assert_allclose(plain.predict_proba(turned), expected)
    proof = on_spark.certify(frame, None, request)
    assert {group["group"] for group in proof.to_dict()["subgroups"]} == {"DE", "FR"}


# -- errors ------------------------------------------------------------------------------------------------


def test_faults_get_the_messages_of_files(spark: Any, tmp_path: Path) -> None:
    logits = LOGITS[:60, 0].tolist()
    faults = {
        "missing values": {"logit_0": [None, *logits[1:]]},
        "contains NaN": {"logit_0": [float("nan"), *logits[1:]]},
        "has no label in 'target'": {"target": [None, *LABELS[1:60].tolist()]},
    }
    sixty_rows = TABLE.slice(0, 60)
    for words, columns in faults.items():
        table = sixty_rows
        for name, values in columns.items():
            kind = table.schema.field(name).type
            place = table.schema.names.index(name)
            table = table.set_column(place, name, pa.array(values, kind, from_pandas=False))
        parquet.write_table(table, tmp_path / "rows.parquet")
        with pytest.raises(ValueError, match=words) as of_file:
            hcal.evaluate(CAL, batches(tmp_path / "rows.parquet", REQUEST))
        with pytest.raises(ValueError, match=words) as of_frame:
            on_spark.evaluate(spark.createDataFrame(table).coalesce(1), CAL, REQUEST)
        message = str(of_frame.value).replace("partition 0 of the frame", "rows.parquet")
        assert message == str(of_file.value)


def test_what_cannot_be_is_refused(spark: Any) -> None:
    frame = spark.createDataFrame(TABLE.slice(0, 60)).coalesce(2)
    with pytest.raises(ValueError, match="it has no 'country_code'; it holds: country, logit_2"):
        on_spark.evaluate(frame, CAL, Request(scores="logit_*", by="country_code"))
    with pytest.raises(TypeError, match="must be a pyspark DataFrame, got Table"):
        on_spark.transform(TABLE, CAL)
    with pytest.raises(ValueError, match="the frame has no rows"):
        on_spark.evaluate(frame.limit(0), CAL, REQUEST)
    with pytest.raises(ValueError, match=r"lazy frame of pyspark.*hcal.integrations.spark"):
        CAL.predict_proba(frame)
    bad = spark.createDataFrame(TABLE.slice(0, 60).drop("logit_0"))
    with pytest.raises(PythonException, match="2 classes"):
        on_spark.transform(bad, CAL, "logit_*").collect()


def test_a_frame_that_changes_between_its_passes_is_refused(spark: Any) -> None:
    stored = spark.createDataFrame(TABLE.slice(0, 3000)).coalesce(1)
    changing = stored.filter("rand() < 0.5")
    source = on_spark.rows(changing, REQUEST)
    source.table.counts[0] += 1  # as if the rows had been others
    with pytest.raises(ValueError, match="cache it, or write it to files first"):
        hcal.evaluate(source, metrics="nll")
