"""The one error that a store raises, and the words for whatever the database said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

BUSY_SECONDS = 60.0


class StoreError(RuntimeError):
    """The store cannot do what was asked; one line with the cause and the next step."""


class NoStudyError(StoreError, LookupError):
    """The store holds no study of that name."""


class DamagedError(StoreError):
    """The database file cannot be read as it was written."""


@contextmanager
def in_words(where: str) -> Iterator[None]:
    """Turn anything that a database or a file system raises into one line."""
    try:
        yield
    except StoreError:
        raise
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _translated(error, where) from error
    except OSError as error:
        raise StoreError(f"cannot use the store {where}: {error.strerror or error}") from error


def _translated(error: Exception, where: str) -> StoreError:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    message = " ".join(str(cause).split())
    if "not a database" in message:
        return StoreError(f"{where} is not a database; give --store another file")
    if "malformed" in message:
        return DamagedError(message)
    if "locked" in message or "busy" in message:
        return StoreError(
            f"{where} has been locked by another process for {BUSY_SECONDS:.0f} s; "
            "try again when that one has ended"
        )
    if "readonly" in message or "unable to open" in message:
        return StoreError(
            f"cannot write to the store {where} ({message}); give --store a folder you may write to"
        )
    if "full" in message:
        return StoreError(f"no room left for the store {where} ({message}); free some, then resume")
    return StoreError(f"the store {where} failed: {message[:300]}")
