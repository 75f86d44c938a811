"""The table of benchmarks says what was missed, by how much and why, and its data are alike."""

from __future__ import annotations

import psycopg

from benchmarks.__main__ import table
from benchmarks.data import _document, _rows, _version, fill_postgres
from benchmarks.harness import Goal, Row, ratio, show


def row(figure, why="the disk"):
    return Row("sweep", "100 threads", [Goal("plain DELETEs", figure, 2)], ["note"], why)


def test_a_missed_goal_says_by_how_much_and_why():
    for text in ("\n".join(table({"sweep": row(3.0)})), show(row(3.0))):
        assert "missed by 50%" in text
        assert "the disk" in text
    assert "not known" in show(row(3.0, why=""))


def test_a_goal_that_is_met_needs_no_excuse():
    for text in ("\n".join(table({"sweep": row(2.0)})), show(row(2.0))):
        assert "met" in text
        assert "the disk" not in text


def test_the_fastest_of_as_many_turns_are_compared():
    assert ratio([4.0, 3.0, 1.0], [2.0]) == 2
    assert ratio([6.0], [2.0, 3.0, 1.0]) == 3
    assert ratio([6.0, 4.0], [2.0, 3.0]) == 2


def test_a_row_that_failed_stands_in_the_table():
    assert table({"sweep": None})[-1] == "| sweep | | | | **failed** |"


def test_a_row_survives_its_way_through_a_file():
    assert Row.from_json(row(3.0).to_json()) == row(3.0)


def test_the_server_makes_the_rows_that_python_would(pg_dsn):
    now = 1_800_000_000.0
    fill_postgres(pg_dsn, 10, 3, 0.5, now)
    wanted = list(_rows(10, 3, 0.5, now))
    with psycopg.connect(pg_dsn) as conn:
        found = conn.execute(
            "SELECT thread_id, checkpoint_id, parent_checkpoint_id, checkpoint FROM checkpoints "
            "ORDER BY thread_id, checkpoint_id"
        ).fetchall()
        assert [one[:3] for one in found] == [one[:3] for one in wanted]
        assert [one[3] for one in found] == [
            _document(id_, step, inline=False) for _, id_, _, step in wanted
        ]
        blobs = conn.execute("SELECT thread_id, version FROM checkpoint_blobs ORDER BY 1, 2")
        assert blobs.fetchall() == [(one[0], _version(one[3])) for one in wanted]
        writes = conn.execute(
            "SELECT thread_id, checkpoint_id FROM checkpoint_writes ORDER BY thread_id, 2"
        )
        assert writes.fetchall() == [one[:2] for one in wanted]
