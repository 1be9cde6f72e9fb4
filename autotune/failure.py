"""What kind of failure a log, an exit code or a signal tells of, and what to do about it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from autotune.trial import Failure, Status

_TAIL_BYTES = 64 * 1024
_TAIL_LINES = 30

# The first that matches wins: what names a memory before what merely crashed because of it.
_PATTERNS: tuple[tuple[re.Pattern[str], Status], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), status)
    for pattern, status in (
        (r"illegal memory access|misaligned address|ECC error|Xid \d+|device-side assert"
         r"|unspecified launch failure|CUDA error: uncorrectable", Status.GPU_FAULT),
        (r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION)"
         r"|CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"
         r"|HIP out of memory|OutOfMemoryError: CUDA|torch\.(?:cuda\.)?OutOfMemoryError"
         r"|NCCL[^\n]*out of memory|Failed to CUDA (?:malloc|calloc)"
         r"|No available memory for the cache blocks|KV cache[^\n]*(?:larger than|not enough|no room)"
         r"|not enough (?:GPU )?memory[^\n]*KV|CUDA driver error: out of memory", Status.OUT_OF_MEMORY),
        (r"MemoryError|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not enough)"
         r"|std::bad_alloc|oom-kill|OutOfMemory: host", Status.HOST_OUT_OF_MEMORY),
    )
)  # fmt: skip
_HINTS = {
    Status.OUT_OF_MEMORY: "a smaller micro-batch, checkpointing or a chunked loss needs less",
    Status.HOST_OUT_OF_MEMORY: "fewer workers or a smaller model slice needs less host memory",
    Status.GPU_FAULT: "check the device with `nvidia-smi -q`; a faulty one needs a reset",
    Status.TIMED_OUT: "raise --trial-timeout if such trials are worth it",
}
_SIGNAL_HINTS = {
    signal.SIGKILL: "nobody here sent it: maybe the kernel was out of host memory",
    signal.SIGSEGV: "a native library crashed; `autotune replay` shows where",
    signal.SIGABRT: "a native library gave up; the log's last lines say why",
}


def tail(log: Path) -> str:
    """The last lines of a log, however long it is; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def status_of(text: str) -> Status | None:
    """The kind of failure that a text speaks of, or None."""
    for pattern, status in _PATTERNS:
        if pattern.search(text):
            return status
    return None


def first_line_of(text: str) -> str:
    """The line that says most: the one that a pattern matches, else the last that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if any(pattern.search(line) for pattern, _ in _PATTERNS):
            return line[:300]
    return lines[-1][:300] if lines else ""


def of_exit(code: int, log: Path) -> tuple[Status, Failure]:
    """A program that ended without saying how, from its exit code and its log."""
    text = tail(log)
    found = status_of(text)
    if code < 0:
        return _of_signal(-code, text, found)
    status = found or Status.CRASHED
    said = first_line_of(text)
    reason = f"exit code {code}" + (f": {said}" if said else "")
    return status, Failure(reason=reason, hint=_HINTS.get(status, ""), detail=text)


def _of_signal(number: int, text: str, found: Status | None) -> tuple[Status, Failure]:
    try:
        sent = signal.Signals(number)
        name, hint = sent.name, _SIGNAL_HINTS.get(sent, "")
    except ValueError:
        name, hint = f"signal {number}", ""
    status = found or Status.CRASHED
    said = first_line_of(text)
    reason = f"ended by {name}" + (f": {said}" if found and said else "")
    failure = Failure(
        reason=reason, hint=_HINTS.get(status, hint) or hint, detail=text, signal=name
    )
    return status, failure


def completed(status: Status, failure: Failure, log: Path) -> tuple[Status, Failure]:
    """A failure that a trial reported itself, with the log's word on what CRASHED really was."""
    text = tail(log)
    if status is Status.CRASHED:
        status = status_of(failure.reason) or status_of(text) or status
    hint = failure.hint or _HINTS.get(status, "")
    return status, Failure(
        reason=failure.reason, hint=hint, detail=failure.detail or text, signal=failure.signal
    )


def timed_out(seconds: float, log: Path) -> tuple[Status, Failure]:
    """A trial that was ended at its deadline."""
    return Status.TIMED_OUT, Failure(
        reason=f"ended at its deadline of {seconds:g} s",
        hint=_HINTS[Status.TIMED_OUT],
        detail=tail(log),
    )
