"""Triton's kernels, interpreted on the CPU: what they compute, not how fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_kernels_compute_what_plain_torch_does() -> None:
    pytest.importorskip("triton")
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/serve_kernels.py"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-6000:]
