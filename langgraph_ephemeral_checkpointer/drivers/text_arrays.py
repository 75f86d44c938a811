"""Arrays of text as Postgres reads them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import cached_property
from typing import Self


def text_array(items: Iterable[str]) -> str:
    """Write the literal of a ``text[]``, for a parameter with that cast.

    psycopg's own dumper of lists looks at each element anew every time.
    """
    quoted = [item.replace("\\", "\\\\").replace('"', '\\"') for item in items]
    return '{"' + '","'.join(quoted) + '"}' if quoted else "{}"


class Ids(tuple[str, ...]):
    """Thread ids of a batch, each once, with the array that its statements send.

    A batch sends the same ids many times: they are written out once.
    """

    def __new__(cls, ids: Iterable[str]) -> Self:
        """Keep the order, and the first of equal ids."""
        return super().__new__(cls, dict.fromkeys(ids))

    @cached_property
    def array(self) -> str:
        """The literal of a ``text[]``, for a parameter with that cast."""
        return text_array(self)

    def only(self, wanted: Container[str]) -> Ids:
        """Return those that are wanted, in this order; the same object where that is all."""
        some = [one for one in self if one in wanted]
        return self if len(some) == len(self) else Ids(some)
