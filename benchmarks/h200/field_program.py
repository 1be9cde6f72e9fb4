"""What the trials of field_cases.py run: ``field_program.py OUT DEVICE WHAT [SHARE] [leave]``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

_CPU_BYTES = 1 << 30  # what stands for the card's memory where there is none


def main() -> None:
    """Do one thing, write one metric."""
    out, device, what, *more = sys.argv[1:]
    total = torch.cuda.mem_get_info()[1] if device == "cuda" else _CPU_BYTES
    metrics: dict[str, float] = {"tokens_per_second": 1.0}
    if what == "hold":
        held = torch.zeros(int(float(more[0]) * total), dtype=torch.uint8, device=device)
        if "leave" not in more:
            time.sleep(600)
        metrics["held"] = float(held.numel())
    elif what == "oom":
        torch.zeros(1 << 48, dtype=torch.uint8, device=device)
    elif what == "pieces":
        _pieces(total, device)
    elif what == "clock":
        metrics |= _clock(torch.device(device))
    Path(out).write_text(json.dumps(metrics))


def _pieces(total: int, device: str) -> None:
    """Fill the card with blocks, free every other one, ask for more than any hole holds."""
    block = total // 100
    blocks = [torch.zeros(block, dtype=torch.uint8, device=device) for _ in range(88)]
    del blocks[::2]
    torch.zeros(total // 4, dtype=torch.uint8, device=device)
    print(len(blocks))


def _clock(device: torch.device) -> dict[str, float]:
    """Fifty matmuls by the clock of the trials and by a stopwatch around a synchronised run."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from trials.train.clock import Clock, wait

    size, kind = (8192, torch.bfloat16) if device.type == "cuda" else (256, torch.float32)
    one = torch.randn(size, size, dtype=kind, device=device)
    for _ in range(5):
        one @ one
    wait(device)
    clock, begun = Clock(device), time.perf_counter()
    clock.mark()
    for _ in range(50):
        one @ one
    clock.mark()
    ours = clock.gaps_ms()[0]
    wait(device)
    outside = (time.perf_counter() - begun) * 1e3
    return {"ratio": ours / outside, "tera": 50 * 2 * size**3 / (ours / 1e3) / 1e12}


if __name__ == "__main__":
    main()
