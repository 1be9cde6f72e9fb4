"""Field cases of training trials that need nothing but torch on a CPU."""

from __future__ import annotations

import subprocess
import sys

from tests.test_cli import ROOT, environ

_SHAPES = """\
import logging, torch
from trials.train import compiling
logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
double = torch.compile(lambda x: x * 2 + 1, dynamic=False, backend="eager")
for size in range(2, 2 + {count}):
    double(torch.ones(size))
print(compiling.limit_was_hit(), compiling.counts()["graphs"])
"""


def test_pt_05_a_recompile_limit_that_is_hit_is_seen() -> None:
    """Twelve shapes where the compiler takes eight: from there on it would silently run eagerly."""
    said = []
    for count in (3, 12):
        done = subprocess.run(
            [sys.executable, "-c", _SHAPES.format(count=count)],
            cwd=ROOT,
            env=environ(OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        said.append(done.stdout.split())
    assert said == [["False", "3"], ["True", "8"]]
