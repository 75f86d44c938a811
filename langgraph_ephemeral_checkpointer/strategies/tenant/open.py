"""Opening the tables of a tenant saver on the Postgres server that a connection string names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langgraph_ephemeral_checkpointer.errors import SchemaMissingError, StorageError
from langgraph_ephemeral_checkpointer.strategies.opening import Address, AddressError, Saver
from langgraph_ephemeral_checkpointer.strategies.postgres.open import connected
from langgraph_ephemeral_checkpointer.tenancy.saver import TenantPostgresSaver


@contextmanager
def open_tenants(address: Address) -> Iterator[Saver]:
    """Open a ``TenantPostgresSaver``.

    Raises:
        AddressError: A name that cannot be one.
        StorageError: The server cannot be used, or has no tables of that saver.
    """
    place = address.place
    with connected(address) as connection:
        try:
            saver = TenantPostgresSaver(
                connection,
                table=place.table,
                schema=place.schema,
                tenant=place.tenant,
                create_schema=address.create,
            )
        except ValueError as error:
            raise AddressError(str(error)) from error
        try:
            saver.setup()
        except SchemaMissingError as error:
            raise StorageError(
                f"the database {connection.info.dbname!r} has not all tables of a tenant saver "
                f"named {place.table!r} in the schema {place.schema!r}; nothing was created ('ddl' "
                "writes the statements that do)"
            ) from error
        yield saver
