"""The curve of quality against rows: the table on the page is the kept results', and says what is said."""

from __future__ import annotations

from helpers import ROOT, synthetic
from studies import rows_curve

RESULTS = ROOT / "results" / "rows.csv"


def test_the_table_on_the_page_is_that_of_the_results() -> None:
    text = rows_curve.PAGE.read_text(encoding="utf-8")
    begin, end = rows_curve.MARKS
    assert text.split(begin)[1].split(end)[0].strip() == rows_curve.table(RESULTS)


def test_what_the_page_says_of_the_table() -> None:
    curves = rows_curve.read_curve(RESULTS)
    for (task, method), by_rows in curves.items():
        sizes = sorted(by_rows)
        assert by_rows[sizes[-1]][0] < by_rows[sizes[0]][0], (task, method)  # more rows are not worse
    made = {method: by_rows for (task, method), by_rows in curves.items() if task == "generated"}
    for method in ("vs", "svs"):  # 20 numbers: 20/2N above the truth
        for rows in (3000, 10_000, 30_000):
            assert 0 < made[method][rows][0] - made[method][rows][2] < 3 * 20 / (2 * rows), (method, rows)
    # A temperature shifts no class, and the default keeps every argmax, however many rows they see.
    assert made["ts"][1_000_000][0] - made["ts"][1_000_000][2] > 0.002
    assert made["h"][100_000][0] - made["h"][100_000][2] > 0.0005


def test_a_point_of_the_curve_is_a_fit_on_so_many_rows() -> None:
    x, y = synthetic(600, 3)
    few, all_rows = (rows_curve.measured("ts", (x, y), (x, y), rows, 0) for rows in (30, 600))
    assert few["nll"] > all_rows["nll"]
