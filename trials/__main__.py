"""``python -m trials FOLDER`` runs the trial whose spec.json lies in FOLDER."""

import sys
from pathlib import Path

from trials.run import main

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m trials FOLDER")
    sys.exit(main(Path(sys.argv[1])))
