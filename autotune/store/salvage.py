"""A new store from what can be read of a damaged one."""

from __future__ import annotations

from pathlib import Path

from autotune.store.fault import StoreError, in_words
from autotune.store.place import holds_something
from autotune.store.remains import remains
from autotune.store.schema import unused
from autotune.store.store import Store


def salvage(path: Path) -> tuple[Path, int]:
    """Copy every readable trial into a new store beside the old one: (copy, number of trials).

    The original is never touched. Raises StoreError when nothing can be saved.
    """
    with in_words(str(path)):
        if not holds_something(path):
            raise StoreError(f"{path} is empty: there is nothing to save")
        found = remains(path)
    count = sum(len(study.records) for study in found)
    if count == 0:
        raise StoreError(f"no trial of {path} can be read; what is left are the logs of its trials")
    copy = unused(path.absolute().with_name(f"{path.stem}.salvaged{path.suffix}"))
    store = Store(str(copy))
    try:
        for study in found:
            store.create_study(study.spec)
            for record in study.records:
                store.add(record)
            store.finish(study.spec.name, study.outcome, study.state)
    finally:
        store.close()
    return copy, count
