"""A driver that works on a study until no number is left; run as a program by race tests.

URL STUDY TOTAL [PAUSE]: prints every number that it claimed.
"""

from __future__ import annotations

import sys
import time

from autotune.store import Store
from tests.studies import a_record, a_spec


def main(url: str, study: str, total: int, pause: float) -> None:
    store = Store(url)
    store.create_study(a_spec(study, trials=total))
    store.abandon_dead(study)
    while (number := store.claim(study, "driver", below=total)) is not None:
        print(number, flush=True)
        time.sleep(pause)
        store.add(a_record(number, study=study))
    store.finish(study, None, "finished")
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
