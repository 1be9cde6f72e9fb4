"""Failures by kind: what logs, exit codes and signals mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune import environment, failure
from autotune.trial import EXIT_CODES, Failure, Status

S = Status

DEVICE_FULL = [
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cuFFT error: CUFFT_ALLOC_FAILED",
    "NCCL WARN Cuda failure 2 'out of memory'",
    "torch.distributed.DistBackendError: NCCL error in: x.cpp:3384, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\nncclUnhandledCudaError: Call to "
    "CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    "NCCL WARN Failed to CUDA host alloc 4 bytes",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; ...)",
    "RuntimeError: CUDA error: out of memory",
    "RuntimeError: Triton Error [CUDA]: out of memory",
    "CUDA driver error: out of memory",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
    "cudaErrorMemoryAllocation: out of memory",
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1234 bytes.",
    "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine.",
    "ValueError: To serve at least one request with the models's max seq len (32768), (16.00 GiB "
    "KV cache is needed, which is larger than the available KV cache memory (7.99 GiB).",
    "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that "
    "can be stored in KV cache (3664).",
    "ValueError: Free memory on device (20.1/139.8 GiB) on startup is less than desired GPU "
    "memory utilization (0.9, 125.8 GiB).",
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "server: no room for KV cache",
]
HOST_FULL = [
    "MemoryError",
    "MemoryError: Unable to allocate 8.00 GiB for an array with shape (1073741824,)",
    "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 8 bytes. Error code 12 (Cannot allocate memory)",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "OSError: [Errno 12] Cannot allocate memory",
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory.\ninsufficient shared memory (shm)",
]
DEVICE_BROKEN = [
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "torch.AcceleratorError: CUDA error: misaligned address",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', GPU has fallen off the bus.",
    "RuntimeError: CUDA error: unspecified launch failure",
]
OTHERS = [
    "RuntimeError: CUDA error: device-side assert triggered",
    "ValueError: memory layout is not supported",
    "KeyError: 'MEMORY'",
    "AssertionError: peak memory 3 bytes",
    "KV cache: 100 blocks, 3.2 GiB",
    "",
]


def log_of(tmp_path: Path, text: str) -> Path:
    log = tmp_path / "log.txt"
    log.write_text(f"a start\n{text}\n")
    return log


@pytest.mark.parametrize(
    ("text", "status"),
    [
        *((text, S.OUT_OF_MEMORY) for text in DEVICE_FULL),
        *((text, S.HOST_OUT_OF_MEMORY) for text in HOST_FULL),
        *((text, S.GPU_FAULT) for text in DEVICE_BROKEN),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory", S.UNSUPPORTED),
        *((text, S.CRASHED) for text in OTHERS),
    ],
)
def test_a_log_tells_the_kind_of_failure(tmp_path: Path, text: str, status: Status) -> None:
    found, why = failure.of_exit(1, log_of(tmp_path, text), {})
    assert found is status
    assert why.detail == f"a start\n{text}".strip()


@pytest.mark.parametrize("status", [s for s in EXIT_CODES if EXIT_CODES[s]])
def test_an_exit_code_of_ours_means_its_status(tmp_path: Path, status: Status) -> None:
    assert failure.of_exit(EXIT_CODES[status], log_of(tmp_path, ""), {})[0] is status


def test_a_crash_that_a_trial_reports_is_looked_at_again_in_the_light_of_its_log(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
    said = Failure(reason="RuntimeError: engine core died")
    status, why = failure.of_answer(S.CRASHED, said, log, {})
    assert status is S.OUT_OF_MEMORY
    assert why.reason == said.reason
    status, _ = failure.of_answer(S.BAD_OUTPUT, said, log, {})
    assert status is S.BAD_OUTPUT  # the trial knew what it said


def test_a_signal_is_named_and_explained(tmp_path: Path) -> None:
    status, why = failure.of_exit(-9, log_of(tmp_path, "step 3"), {})
    assert (status, why.signal) == (S.CRASHED, "SIGKILL")
    assert "host memory" in why.hint
    status, why = failure.of_exit(-6, log_of(tmp_path, HOST_FULL[4]), {})
    assert (status, why.signal) == (S.HOST_OUT_OF_MEMORY, "SIGABRT")
    assert failure.of_exit(-64, log_of(tmp_path, ""), {})[1].signal in ("SIGRTMAX", "signal 64")


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        file.writelines(f"line {n} {'x' * 100}\n" for n in range(50_000))
    lines = failure.tail(log).splitlines()
    assert lines[-1].startswith("line 49999")
    assert len(lines) <= 31


def test_a_log_fits_any_store_and_screen(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"\x1b[31mred\x1b[0m\x00\nbar 10%\rbar 100%\n\xff\xfe broken\n" + b"y" * 10_000)
    lines = failure.tail(log).splitlines()
    assert lines[:3] == ["red", "bar 100%", "\ufffd\ufffd broken"]
    assert len(lines[3]) == 2000
    assert failure.tail(tmp_path / "none") == ""


_FRAGMENTED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 139.80 GiB of which 1.00 GiB is free. Of the allocated memory 60.50 GiB is "
    "allocated by PyTorch, and 70.25 GiB is reserved by PyTorch but unallocated."
)


def test_pt03_fragmentation_is_said_and_the_option_named_only_where_it_is_not_set(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, _FRAGMENTED)
    _, why = failure.of_exit(1, log, {})
    assert "fragmentation likely: 60.50 GiB were allocated, 70.25 GiB reserved" in why.hint
    assert "expandable_segments:True" in why.hint
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        _, why = failure.of_exit(1, log, {name: "max_split_size_mb:64,expandable_segments:True"})
        assert "fragmentation likely" in why.hint
        assert "expandable_segments" not in why.hint
    whole = _FRAGMENTED.replace("70.25 GiB", "300.00 MiB")
    assert "fragment" not in failure.of_exit(1, log_of(tmp_path, whole), {})[1].hint


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "db_passwd", "GH_PAT",
     "WANDB_API_KEY", "KEY", "SSH_PRIVATE_KEY", "AZURE_CREDENTIALS", "SENTRY_DSN", "BASIC_AUTH"],
)  # fmt: skip
def test_secrets_are_masked_by_name(name: str) -> None:
    assert environment.mask({name: "value"}) == {name: "***"}


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "AUTHOR", "OMP_NUM_THREADS"]
)
def test_what_is_no_secret_is_shown(name: str) -> None:
    assert environment.mask({name: "value"}) == {name: "value"}


def test_secrets_are_masked_by_their_look_too() -> None:
    shown = environment.mask({"INDEX": "https://me:s3cret@host/x", "NOTE": "ghp_" + "a" * 36})
    assert shown == {"INDEX": "https://me:***@host/x", "NOTE": "***"}
