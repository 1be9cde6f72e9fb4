"""``python -m trials FOLDER`` runs the trial whose spec.json lies in FOLDER."""

import os
import sys
from pathlib import Path

from trials.lifeline import die_with
from trials.run import main

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m trials FOLDER")
    if "AUTOTUNE_TRIAL" in os.environ:
        die_with(os.getppid())
    sys.exit(main(Path(sys.argv[1])))
