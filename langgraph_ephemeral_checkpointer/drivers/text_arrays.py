"""Arrays of text as Postgres reads them."""

from __future__ import annotations

from collections.abc import Iterable


def text_array(items: Iterable[str]) -> str:
    """Write the literal of a ``text[]``, for a parameter with that cast.

    A batch sends the same ids many times, and psycopg's own dumper of lists looks at each
    element anew every time.
    """
    quoted = [item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
    return '{"' + '","'.join(quoted) + '"}' if quoted else "{}"
