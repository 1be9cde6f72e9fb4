"""The store's schema, step by step; each step is a file in ``versions``."""

VERSION_TABLE = "autotune_version"  # not alembic's own name, which Optuna and others use too
