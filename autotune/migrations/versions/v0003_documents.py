"""What was asked and concluded in a table of their own, written once.

As a column of the study they moved to the end of the file whenever the study's state changed, so
that a file cut short had lost what every trial in it was for.
"""

from __future__ import annotations

import zlib

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Move the documents. SQLite before 3.35 cannot drop a column, and says so."""
    documents = op.create_table(
        "autotune_document",
        sa.Column(
            "study_id",
            sa.Integer,
            sa.ForeignKey("autotune_study.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("kind", sa.String(20), primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("checksum", sa.BigInteger, nullable=False),
    )
    studies = sa.table("autotune_study", *map(sa.column, ("id", "document", "outcome")))
    for study_id, spec, outcome in op.get_bind().execute(sa.select(studies)).all():
        for kind, text in (("spec", spec), ("outcome", outcome)):
            if text is not None:
                checksum = zlib.crc32(text.encode())
                row = {"study_id": study_id, "kind": kind, "document": text, "checksum": checksum}
                op.get_bind().execute(sa.insert(documents).values(row))
    for column in ("document", "outcome", "checksum"):
        op.drop_column("autotune_study", column)
