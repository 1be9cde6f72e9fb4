"""Run by alembic: migrate over the connection that the store hands in, in its transaction."""

from __future__ import annotations

from alembic import context

from autotune.migrations import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
