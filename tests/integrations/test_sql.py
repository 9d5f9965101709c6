"""A query gives what ``predict_proba`` gives: in DuckDB, in SQLite, and in PostgreSQL where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hcal
from hcal.cli.app import app
from hcal.maps.base import LEAST_PROBABILITY
from helpers import synthetic
from studies import postgres, runtimes

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pandas")

#: With two classes, every method but those that sort has a query.
SORTING = {"gp", "lece", "spline", "h"}
METHODS = [name for name in hcal.list_calibrators() if name not in SORTING]
RUN = {"duckdb": runtimes.run_duckdb, "sqlite": runtimes.run_sqlite}
NAN = np.nan
INF = np.inf


def query(cal: hcal.Calibrator, dialect: str, folder: Path, columns: list[str]) -> str:
    path = folder / "model.sql"
    hcal.export(cal, path, dialect=dialect, table="the scores", columns=columns)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("runtime", ["duckdb", "sqlite"])
def test_every_kind_and_number_of_columns(runtime: str, tmp_path: Path) -> None:
    allowed = runtimes.RUNTIMES[runtime][1]
    for case in runtimes.cases(["ts", "platt", "vs", "pool", "smooth_spline"]):
        difference = runtimes.measure(runtime, case, tmp_path)
        assert difference is not None, case.method
        assert difference.difference <= allowed, difference


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["duckdb", "sqlite"])
def test_every_method_of_two_classes(runtime: str, tmp_path: Path) -> None:
    for case in runtimes.cases(METHODS):
        difference = runtimes.measure(runtime, case, tmp_path)
        if case.columns != "four":
            assert difference is not None, case.method
        assert difference is None or difference.difference <= 1e-14, difference


@pytest.mark.parametrize("method", ["ts", "platt", "pool"])
@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
def test_odd_scores(method: str, dialect: str, tmp_path: Path) -> None:
    """NaN and +inf give NaN, a single −inf the least probability, and a row that predict_proba refuses gives NaN."""
    logits = runtimes.fitted(method, "logits", 2)
    one = query(logits, dialect, tmp_path, ["s"])
    odd = np.array([[NAN], [INF], [-INF], [0.0], [1e308]])
    probs = RUN[dialect](one, ["s"], odd)
    assert np.isnan(probs[:2]).all()
    assert probs[2].tolist() == [1.0, LEAST_PROBABILITY]
    assert probs[3:].sum(axis=1).tolist() == [1.0, 1.0]

    two = query(logits, dialect, tmp_path, ["a", "b"])
    rows = np.array([[NAN, 0.0], [0.0, INF], [-INF, -INF], [0.0, -INF], [-INF, 2.0]])
    probs = RUN[dialect](two, ["a", "b"], rows)
    assert np.isnan(probs[:3]).all()
    assert probs[3:].tolist() == [[1.0, LEAST_PROBABILITY], [LEAST_PROBABILITY, 1.0]]

    shares = runtimes.fitted(method, "probs", 2)
    refused = np.array([[NAN, 0.5], [-0.1, 1.1], [0.5, 0.6], [50.0, 50.0], [0.0, 0.0]])
    of_two_columns = query(shares, dialect, tmp_path, ["a", "b"])
    probs = RUN[dialect](of_two_columns, ["a", "b"], refused)
    assert np.isnan(probs).all()
    of_one_column = query(shares, dialect, tmp_path, ["s"])
    probs = RUN[dialect](of_one_column, ["s"], np.array([[-0.1], [1.5]]))
    assert np.isnan(probs).all()
    ends = np.array([[0.0], [1.0]])
    probs = RUN[dialect](query(shares, dialect, tmp_path, ["s"]), ["s"], ends)
    expected = shares.predict_proba(ends[:, 0])
    np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
def test_log_odds_beyond_the_largest_power(dialect: str, tmp_path: Path) -> None:
    """e^750 is infinite, and a logarithm of it made NaN of `diag`, which raises the logarithm to a floor."""
    far = np.array([[750.0], [-750.0], [1e4], [-1e4], [1e98]])
    for method in ("diag", "dir", "ec", "ets"):
        cal = runtimes.fitted(method, "logits", 2)
        probs = RUN[dialect](query(cal, dialect, tmp_path, ["s"]), ["s"], far)
        expected = cal.predict_proba(far[:, 0])
        np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-14, err_msg=method)


@pytest.mark.parametrize("method", ["ts", "pool"])
def test_null_gives_null_and_text_is_no_number(method: str, tmp_path: Path) -> None:
    import sqlite3

    cal = runtimes.fitted(method, "logits", 2)
    database = duckdb.connect()
    database.execute(
        'CREATE TABLE "the scores" AS SELECT * FROM (VALUES (NULL, 1), (0.5, 2)) t(s, i)'
    )
    rows = database.execute(query(cal, "duckdb", tmp_path, ["s"])).fetchall()
    assert sorted(row[2] is None for row in rows) == [False, True]

    lite = sqlite3.connect(":memory:")
    lite.execute('CREATE TABLE "the scores" (s)')
    lite.executemany('INSERT INTO "the scores" VALUES (?)', [(None,), ("high",), (1,), (1.0,)])
    rows = lite.execute(query(cal, "sqlite", tmp_path, ["s"])).fetchall()
    assert [row[1] is None for row in rows] == [True, True, False, False]
    assert rows[2][1:] == rows[3][1:]


def test_other_columns_stay_and_names_are_quoted(tmp_path: Path) -> None:
    cal = hcal.make_calibrator("platt").fit(*synthetic(200, 2), classes=["it's", 'a "b"; --'])
    name = 'x"; DROP TABLE t; --'
    hcal.export(cal, tmp_path / "m.sql", table=name, columns=[name])
    database = duckdb.connect()
    database.execute("CREATE TABLE t AS SELECT 1")
    quoted = '"' + name.replace('"', '""') + '"'
    database.execute(f"CREATE TABLE {quoted} AS SELECT 0.5 AS {quoted}, 7 AS id")
    frame = database.execute((tmp_path / "m.sql").read_text(encoding="utf-8")).df()
    assert list(frame) == [name, "id", "probs_it's", 'probs_a "b"; --']
    probs = frame.iloc[:, 2:].to_numpy()
    np.testing.assert_allclose(probs, cal.predict_proba([0.5]), rtol=0, atol=1e-15)
    assert database.execute("SELECT * FROM t").fetchall() == [(1,)]


def test_names_with_line_breaks_stay_in_comments(tmp_path: Path) -> None:
    cal = hcal.make_calibrator("ts").fit(*synthetic(200, 2), classes=["a", "b\nDROP TABLE t;"])
    text = query(cal, "duckdb", tmp_path, ["s\n; SELECT 1; --"])
    database = duckdb.connect()
    database.execute("CREATE TABLE t AS SELECT 1")
    database.execute('CREATE TABLE "the scores" AS SELECT 0.5 AS "s\n; SELECT 1; --"')
    assert len(database.execute(text).fetchall()[0]) == 3
    assert database.execute("SELECT * FROM t").fetchall() == [(1,)]


@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
@pytest.mark.parametrize("method", ["pool", "platt"])
def test_segments_are_a_table_that_is_joined(dialect: str, method: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    country = rng.choice(["DE", "it's", " FR ", "7"], 4000)
    z = rng.normal(size=4000) * 2
    shift = np.where(country == "DE", 1.5, np.where(country == "7", -1.5, 0.0))
    rate = 1 / (1 + np.exp(-z - shift))
    y = (rng.random(4000) < rate).astype(int)
    for prior in (None, [0.9, 0.1]):
        cal = hcal.SegmentedCalibrator(method).fit(z, y, by={"country": country})
        if prior is not None:
            cal = cal.with_prior(prior)
        text = query(cal, dialect, tmp_path, ["s"])
        new = ["DE", "it's", "FR", "7", "XX"] * 4
        scores = np.linspace(-9, 9, 20)
        with pytest.warns(UserWarning, match="did not see"):
            expected = cal.predict_proba(scores, by={"country": new})
        pairs = zip(scores.tolist(), new, strict=True)
        rows = [(i, score, country) for i, (score, country) in enumerate(pairs)]
        result = run_rows(dialect, text, [*rows, (20, 0.5, None)])
        assert result[20][-1] is None
        probs = np.array([row[3:] for row in result[:20]])
        np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-14)


def run_rows(dialect: str, text: str, rows: list[tuple]) -> list[tuple]:
    if dialect == "duckdb":
        database = duckdb.connect()
        database.execute('CREATE TABLE "the scores" (row INTEGER, s DOUBLE, country VARCHAR)')
    else:
        import sqlite3

        database = sqlite3.connect(":memory:")
        database.execute('CREATE TABLE "the scores" (row INTEGER, s REAL, country TEXT)')
    database.executemany('INSERT INTO "the scores" VALUES (?, ?, ?)', rows)
    return sorted(database.execute(text).fetchall())


@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
def test_the_rows_in_the_comment(dialect: str, tmp_path: Path) -> None:
    """The comment says what to put in place of the table, and which probabilities come out."""
    import sqlite3

    for case in runtimes.cases(["ts", "pool"], ["logits", "probs"]):
        names = [f"s{k}" for k in range(case.scores.reshape(100, -1).shape[1])]
        text = query(case.calibrator, dialect, tmp_path, names)
        statement, comment = text.split("-- To test this query", 1)
        rows = "\n".join(line.removeprefix("-- ") for line in comment.splitlines()[1:])
        statement = statement.replace('"the scores" AS s', f"{rows} AS s")
        database = duckdb.connect() if dialect == "duckdb" else sqlite3.connect(":memory:")
        for row in database.execute(statement).fetchall():
            n_classes = case.calibrator.n_classes_
            expected = row[len(names) : len(names) + n_classes]
            np.testing.assert_allclose(row[-n_classes:], expected, rtol=0, atol=1e-14)


def test_what_has_no_sql_says_so(tmp_path: Path) -> None:
    gp = runtimes.fitted("gp", "logits", 2)
    with pytest.raises(ValueError, match=r"has no SQL, .* write \.onnx or \.json"):
        hcal.export(gp, tmp_path / "m.sql")
    ts = runtimes.fitted("ts", "logits", 4)
    with pytest.raises(ValueError, match="must name 4 columns, got 1"):
        hcal.export(ts, tmp_path / "m.sql", columns=["s"])
    with pytest.raises(ValueError, match="different names"):
        hcal.export(ts, tmp_path / "m.sql", columns=["s"] * 4)
    with pytest.raises(ValueError, match="dialect must be one of duckdb, postgres, sqlite"):
        hcal.export(ts, tmp_path / "m.sql", dialect="oracle")
    with pytest.raises(ValueError, match="at least one character"):
        hcal.export(ts, tmp_path / "m.sql", table="")
    by = ["a", "b"] * 150
    several = hcal.SegmentedCalibrator("ts").fit(*synthetic(300, 3), by=by)
    with pytest.raises(ValueError, match="more than two classes"):
        hcal.export(several, tmp_path / "m.sql")
    assert not list(tmp_path.iterdir())


def test_many_classes(tmp_path: Path) -> None:
    for method in ("ts", "platt", "vs"):
        scores, y = synthetic(2000, 30)
        cal = hcal.make_calibrator(method).fit(scores, y)
        names = [f"s{k}" for k in range(30)]
        for dialect, run in RUN.items():
            probs = run(query(cal, dialect, tmp_path, names), names, scores[:50])
            expected = cal.predict_proba(scores[:50])
            np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-14, err_msg=method)


def test_the_command(tmp_path: Path) -> None:
    hcal.save(runtimes.fitted("pool", "logits", 2), tmp_path / "m.hcal")
    options = ["--dialect", "sqlite", "--table", "t", "--columns", "score"]
    paths = [str(tmp_path / "m.hcal"), "-o", str(tmp_path / "m.sql")]
    result = CliRunner().invoke(app, ["export", *paths, *options])
    assert result.exit_code == 0, result.output
    assert 'FROM "t" AS s' in (tmp_path / "m.sql").read_text(encoding="utf-8")


# -- PostgreSQL ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def psql() -> Iterator[Callable[[str], str]]:
    """A server of its own in a temporary folder, and a function that runs statements in it."""
    program = postgres.missing()
    if program is not None:
        pytest.skip(f"PostgreSQL is not installed: no {program}")
    with postgres.server() as run:
        yield run


@pytest.mark.slow
def test_postgres(psql: Callable[[str], str], tmp_path: Path) -> None:
    for case in runtimes.cases(["ts", "platt", "pool", "iso", "vs"]):
        table = case.scores.reshape(100, -1)
        names = [f"s{k}" for k in range(table.shape[1])]
        probs = postgres.probs_in_postgres(
            psql, query(case.calibrator, "postgres", tmp_path, names), table
        )
        expected = case.calibrator.predict_proba(case.scores)
        np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-14, err_msg=case.method)


@pytest.mark.slow
def test_odd_scores_in_postgres(psql: Callable[[str], str], tmp_path: Path) -> None:
    """An exponential that underflows, or the logarithm of 0, is an error there, which would end the whole query."""
    odd = np.array([[NAN], [INF], [-INF], [1e308], [-5000.0], [0.0]])
    for method in ("ts", "platt", "pool", "iso"):
        cal = runtimes.fitted(method, "logits", 2)
        probs = postgres.probs_in_postgres(psql, query(cal, "postgres", tmp_path, ["s0"]), odd)
        assert np.isnan(probs[:2]).all()
        expected = cal.predict_proba(odd[3:, 0])
        np.testing.assert_allclose(probs[3:], expected, rtol=0, atol=1e-14)
        shares = runtimes.fitted(method, "log_probs", 2)
        ends = np.array([[0.0], [-INF], [-800.0], [NAN], [2.0]])
        probs = postgres.probs_in_postgres(psql, query(shares, "postgres", tmp_path, ["s0"]), ends)
        assert np.isnan(probs[3:]).all()
        np.testing.assert_allclose(probs[:3], shares.predict_proba(ends[:3, 0]), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_a_row_does_not_end_a_query_in_postgres(psql: Callable[[str], str], tmp_path: Path) -> None:
    """A division by 0 is an error there, and so is a product that underflows: one such row ended the query."""
    nothing = np.array([[0.0, 0.0], [0.5, 0.5], [NAN, 0.5]])
    small = np.array([[5e-324], [-1e-310], [0.5]])
    for method in ("ts", "platt", "pool", "quadratic", "diag"):
        shares = runtimes.fitted(method, "probs", 2)
        text = query(shares, "postgres", tmp_path, ["s0", "s1"])
        probs = postgres.probs_in_postgres(psql, text, nothing)
        assert np.isnan(probs[[0, 2]]).all()
        np.testing.assert_allclose(probs[1], shares.predict_proba(nothing[1:2])[0], atol=1e-14)

        cal = runtimes.fitted(method, "logits", 2)
        probs = postgres.probs_in_postgres(psql, query(cal, "postgres", tmp_path, ["s0"]), small)
        np.testing.assert_allclose(probs, cal.predict_proba(small[:, 0]), rtol=0, atol=1e-14)
