"""What ``autotune doctor`` says about the store, without making or changing one."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.store.fault import StoreError, in_words
from autotune.store.place import network_file_system, place_of
from autotune.store.store import Store

Check = tuple[str, str, str, str]  # name, ok | note | fail, what was found, what to do


def inspect(url: str) -> list[Check]:
    """Whether the store can be used, and how its file is written."""
    try:
        place = place_of(url)
        if place.path is not None and not place.path.exists():
            return [_would_be(place.path)]
        store = Store(url)
    except StoreError as error:
        return [("store", "fail", str(error), "")]
    try:
        with in_words(url):
            studies = len(store.studies())
    except StoreError as error:
        return [("store", "fail", str(error), "")]
    finally:
        store.close()
    mode = f", journal {store.journal}" if store.journal else ""
    checks: list[Check] = [("store", "ok", f"{place.name}: {studies} studies{mode}", "")]
    return checks + [("store", "note", text, "") for text in store.notices]


def _would_be(path: Path) -> Check:
    folder = next(p for p in path.parents if p.exists())
    if not os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return ("store", "fail", f"{folder} is not writable", "give --store or --out another place")
    kind = network_file_system(path)
    journal = f"rollback journal, since it lies on {kind}" if kind else "journal wal"
    return ("store", "ok", f"{path} will be made ({journal})", "")
