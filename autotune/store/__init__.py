"""The store: the only package that imports sqlalchemy."""

from autotune.store.claims import Claim
from autotune.store.doctor import inspect
from autotune.store.fault import DamagedError, NoStudyError, StoreError
from autotune.store.salvage import salvage
from autotune.store.store import Store, StudyRow

__all__ = [
    "Claim",
    "DamagedError",
    "NoStudyError",
    "Store",
    "StoreError",
    "StudyRow",
    "inspect",
    "salvage",
]
