"""Studies, trials and claims."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the three tables."""
    op.create_table(
        "autotune_study",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("next_number", sa.Integer, nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text),
    )
    op.create_table(
        "autotune_trial",
        _study_id(),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("status", sa.String(30), nullable=False),
        sa.Column("stage", sa.String(30), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("autotune_trial_by_status", "autotune_trial", ["study_id", "status"])
    op.create_table(
        "autotune_claim",
        _study_id(),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("machine", sa.String(200), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("process_start", sa.BigInteger, nullable=False),
        sa.Column("claimed_at", sa.Float, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )


def _study_id() -> sa.Column[int]:
    return sa.Column(
        "study_id",
        sa.Integer,
        sa.ForeignKey("autotune_study.id", ondelete="CASCADE"),
        primary_key=True,
    )
