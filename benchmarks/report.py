"""How long a large report takes to build and to show: ``python -m benchmarks.report``.

Prints a table: trials, knobs, seconds to build (the whole program), megabytes, and, where Chromium
is found, milliseconds to the first paint and seconds until every chart is drawn.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import report_studies as studies

_SIZES = ((200, 0), (5_000, 28), (20_000, 0))


def main() -> None:
    """One line per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-browser", action="store_true")
    browser = None if parser.parse_args().no_browser else shutil.which("chromium")
    print("| trials | knobs | build s | MB | first paint ms | all drawn s |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for trials, extra in _SIZES:
            study = studies.finished(trials, extra=extra)
            source = studies.write(study, Path(folder) / "study.json")
            target = Path(folder) / "report.html"
            begun = time.perf_counter()
            command = [sys.executable, "-m", "reports", str(source), "-o", str(target)]
            subprocess.run(command, check=True)
            took = time.perf_counter() - begun
            size = target.stat().st_size / 1e6
            paint, drawn = _shown(target, browser) if browser else ("-", "-")
            knobs = len(studies.KNOBS) + extra
            count = len(study.records)
            print(
                f"| {count} | {knobs} | {took:.1f} | {size:.1f} | {paint} | {drawn} |", flush=True
            )


def _shown(page: Path, browser: str) -> tuple[str, str]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        opened = started.new_page()
        begun = time.perf_counter()
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-charts=drawn]", timeout=120_000)
        drawn = time.perf_counter() - begun
        paint = opened.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        started.close()
    return f"{paint:.0f}", f"{drawn:.1f}"


if __name__ == "__main__":
    main()
