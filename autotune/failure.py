"""What kind of failure a log, an exit code or a signal tells of, and what to do about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path

from autotune.trial import EXIT_CODES, Failure, Status

_TAIL_BYTES = 64 * 1024
_TAIL_LINES = 30
_LONGEST_LINE = 300

# The first that matches wins: what names a memory before what merely crashed because of it.
_PATTERNS: tuple[tuple[re.Pattern[str], Status], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), status)
    for pattern, status in (
        # Compute libraries when the device is full, whatever they call it.
        (r"CU(?:BLAS|DNN|SOLVER|SPARSE|SPARSELT|RAND|FFT)_(?:STATUS_)?ALLOC(?:ATION)?_FAILED"
         r"|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION|CUFFT_ALLOC_FAILED"
         r"|CUBLAS_STATUS_NOT_INITIALIZED[^\n]*cublasCreate"
         r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory"
         r"|(?:CUDA|HIP|GPU|device|XPU)[^\n]{0,60}(?:out of memory|memory exhausted)"
         r"|torch\.(?:cuda\.)?OutOfMemoryError|OutOfMemoryError: (?:CUDA|HIP|XPU)"
         r"|NCCL[^\n]*out of memory|Failed to CUDA (?:host )?(?:malloc|calloc|alloc)"
         r"|Triton Error \[CUDA\]: out of memory"
         r"|RESOURCE_EXHAUSTED[^\n]*(?:out of memory|allocat)", Status.OUT_OF_MEMORY),
        # Serving engines with no room for a KV cache.
        (r"No available memory for the cache blocks|Insufficient memory for KV"
         r"|(?:larger|more|greater) than the (?:available|maximum)[^\n]*KV[ -]?cache"
         r"|KV[ -]?cache[^\n]*(?:larger than|not enough|no room|too small|does not fit|exceeds"
         r"|insufficient)"
         r"|(?:not enough|no|insufficient)[^\n]{0,30}(?:room|memory|space|blocks?)[^\n]{0,30}"
         r"KV[ -]?cache"
         r"|Not enough memory\. Please try to increase --mem-fraction-static"
         r"|Free memory on device[^\n]*is less than desired", Status.OUT_OF_MEMORY),
        (r"illegal memory access|misaligned address|illegal instruction was encountered"
         r"|(?:double[- ]bit|uncorrectable)[^\n]*(?:ECC|error)|CUDA error: uncorrectable"
         r"|\bXid\b[^\n]{0,40}\d|unspecified launch failure|GPU (?:has fallen off the bus|is lost)"
         r"|cudaErrorHardwareStackError|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE"
         r"|CUDA_ERROR_ILLEGAL_ADDRESS|the launch timed out", Status.GPU_FAULT),
        (r"out of resources?: shared memory|no kernel image is available for execution"
         r"|only supports? (?:Ampere|Hopper|Blackwell) GPUs", Status.UNSUPPORTED),
        (r"(?<!OutOf)MemoryError\b|ray\.exceptions\.OutOfMemoryError|Cannot allocate memory"
         r"|DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc|oom-kill|\bOOM[- ]killed"
         r"|Unable to allocate [\d.]+ [KMGT]iB for an array|ArrayMemoryError"
         r"|insufficient shared memory|unable to (?:allocate|open|mmap) shared memory"
         r"|out of (?:host )?memory", Status.HOST_OUT_OF_MEMORY),
    )
)  # fmt: skip
_HINTS = {
    Status.OUT_OF_MEMORY: "a smaller micro-batch, checkpointing or a chunked loss needs less",
    Status.HOST_OUT_OF_MEMORY: "fewer workers or a smaller model slice needs less host memory",
    Status.GPU_FAULT: "if other trials run well it is this configuration's kernels; else ask "
    "`nvidia-smi -q`, a faulty device needs a reset",
    Status.TIMED_OUT: "raise --trial-timeout if such trials are worth it",
}
_SIGNAL_HINTS = {
    signal.SIGKILL: "nobody here sent it: maybe the kernel was out of host memory (see `dmesg`)",
    signal.SIGSEGV: "a native library crashed; `autotune replay` shows where",
    signal.SIGBUS: "often a full /dev/shm or disk; give the container more shared memory",
    signal.SIGABRT: "a native library gave up; the log's last lines say why",
    signal.SIGILL: "a library was built for another CPU",
    signal.SIGTERM: "somebody else ended it",
}
_WORD_HINTS = (
    ("No space left on device", "the disk or /dev/shm is full"),
    ("Too many open files", "raise `ulimit -n`, or use fewer workers"),
    ("Address already in use", "another program holds the port; nothing about the configuration"),
    ("device-side assert", "an index was out of range: data and model do not match"),
)
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]|[\ud800-\udfff]")
_TORCH_ACCOUNT = re.compile(
    r"([\d.]+) ([KMGT]iB) is allocated by PyTorch.*?([\d.]+) ([KMGT]iB) is reserved by PyTorch but"
    r" unallocated",
    re.S,
)
_TRIED = re.compile(r"Tried to allocate ([\d.]+) ([KMGT]iB)")
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def tail(log: Path) -> str:
    """The last lines of a log, however long it is, fit for any screen; empty without one."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    lines = [plain(line.rpartition("\r")[2] or line) for line in text.split("\n")]
    return "\n".join(line[:2000] for line in lines[-_TAIL_LINES - 1 :]).strip("\n")


def plain(text: str) -> str:
    """Without control characters, which some stores refuse and some terminals obey."""
    return _CONTROL.sub("", text)


def status_of(text: str) -> Status | None:
    """The kind of failure that a text speaks of, or None."""
    for pattern, status in _PATTERNS:
        if pattern.search(text):
            return status
    return None


def first_line_of(text: str) -> str:
    """The line that says most: the one that a pattern matches, else the last that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern, _ in _PATTERNS:
        for line in lines:
            if pattern.search(line):
                return line[:_LONGEST_LINE]
    return lines[-1][:_LONGEST_LINE] if lines else ""


def of_exit(code: int, log: Path, environ: Mapping[str, str]) -> tuple[Status, Failure]:
    """A program that ended without saying how, from its exit code and its log."""
    text = tail(log)
    if code < 0:
        return _of_signal(-code, text, environ)
    by_code = {number: status for status, number in EXIT_CODES.items() if number}.get(code)
    status = by_code or status_of(text) or Status.CRASHED
    said = first_line_of(text)
    reason = f"exit code {code}" + (f": {said}" if said else " and an empty log")
    return status, Failure(reason=reason, hint=_hint(status, text, environ), detail=text)


def _of_signal(number: int, text: str, environ: Mapping[str, str]) -> tuple[Status, Failure]:
    try:
        sent = signal.Signals(number)
        name, hint = sent.name, _SIGNAL_HINTS.get(sent, "")
    except ValueError:
        name, hint = f"signal {number}", ""
    status = status_of(text) or Status.CRASHED
    said = first_line_of(text)
    reason = f"ended by {name}" + (f": {said}" if status is not Status.CRASHED else "")
    hint = _hint(status, text, environ) or hint
    return status, Failure(reason=reason, hint=hint, detail=text, signal=name)


def of_answer(
    status: Status, said: Failure, log: Path, environ: Mapping[str, str]
) -> tuple[Status, Failure]:
    """A failure that a trial reported itself, with the log's word on what CRASHED really was."""
    text = tail(log)
    if status is Status.CRASHED:
        status = status_of(said.reason) or status_of(text) or status
    return status, Failure(
        reason=plain(said.reason)[:2000],
        hint=plain(said.hint) or _hint(status, f"{said.reason}\n{text}", environ),
        detail=plain(said.detail) or text,
        signal=said.signal,
    )


def timed_out(seconds: float, log: Path) -> tuple[Status, Failure]:
    """A trial that was ended at its deadline."""
    return Status.TIMED_OUT, Failure(
        reason=f"ended at its deadline of {seconds:g} s",
        hint=_HINTS[Status.TIMED_OUT],
        detail=tail(log),
    )


def _hint(status: Status, text: str, environ: Mapping[str, str]) -> str:
    if status is Status.OUT_OF_MEMORY and (pieces := fragmentation(text, environ)):
        return pieces
    for words, hint in _WORD_HINTS:
        if words in text and status not in _HINTS:
            return hint
    return _HINTS.get(status, "")


def fragmentation(text: str, environ: Mapping[str, str]) -> str:
    """What to say when torch holds enough free memory in pieces; empty when it does not."""
    account, tried = _TORCH_ACCOUNT.search(text), _TRIED.search(text)
    if account is None:
        return ""
    unallocated = float(account[3]) * _UNITS[account[4]]
    wanted = float(tried[1]) * _UNITS[tried[2]] if tried else 2**30
    if unallocated < wanted:
        return ""
    found = (
        f"fragmentation likely: {account[1]} {account[2]} were allocated, "
        f"{account[3]} {account[4]} reserved and free in pieces"
    )
    options = ",".join(environ.get(f"PYTORCH_{kind}ALLOC_CONF", "") for kind in ("", "CUDA_"))
    if re.search(r"expandable_segments\s*:\s*true", options, re.I):
        return found
    return f"{found}; expandable_segments:True (knob alloc.expandable_segments) may cure it"
