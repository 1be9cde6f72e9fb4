"""A checksum beside every document: a disk that changes a digit makes valid JSON too."""

from __future__ import annotations

import zlib

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_KEYS = {"autotune_study": ("id",), "autotune_trial": ("study_id", "number")}


def upgrade() -> None:
    """Add the columns and fill them from what is stored."""
    for name, keys in _KEYS.items():
        op.add_column(name, sa.Column("checksum", sa.BigInteger))
        table = sa.table(name, *(sa.column(c) for c in (*keys, "document", "checksum")))
        _fill(op.get_bind(), table, keys)


def _fill(connection: sa.Connection, table: sa.TableClause, keys: tuple[str, ...]) -> None:
    """Row by row: the documents of a large store would not fit in memory together."""
    columns = [table.c[key] for key in keys]
    for row in connection.execute(sa.select(*columns)).all():
        here = sa.and_(*(c == value for c, value in zip(columns, row, strict=True)))
        document = connection.execute(sa.select(table.c.document).where(here)).scalar_one()
        checksum = zlib.crc32(document.encode())
        connection.execute(sa.update(table).where(here).values(checksum=checksum))
