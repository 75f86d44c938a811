"""Ids reach Postgres as they are, also those that an array would take for its own signs."""

from __future__ import annotations

import psycopg
import pytest

from langgraph_ephemeral_checkpointer.drivers.text_arrays import text_array

ODD = [
    "",
    "a",
    "NULL",
    "null",
    '"',
    "\\",
    '\\"',
    "a\\\\",
    "{}",
    "{a,b}",
    ",",
    " a ",
    "\n",
    "%s",
    "ä",
    "😀",
]


@pytest.mark.parametrize("items", [[], ODD, *([one] for one in ODD)], ids=repr)
def test_an_array_arrives_as_it_was_sent(pg_dsn, items):
    with psycopg.connect(pg_dsn) as conn:
        assert conn.execute("SELECT %s::text[]", (text_array(items),)).fetchone() == (items,)


def test_an_array_arrives_in_the_encoding_that_the_client_speaks(pg_dsn):
    items = ["a\\b", 'c"d', "ä"]
    with psycopg.connect(pg_dsn, client_encoding="LATIN1") as conn:
        assert conn.execute("SELECT %s::text[]", (text_array(items),)).fetchone() == (items,)
