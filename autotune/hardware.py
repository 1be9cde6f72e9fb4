"""What this host has, found without importing torch; and what identifies it in a record."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from autotune import host_files

_LIBRARIES = (
    "torch", "triton", "torchao", "liger-kernel", "ray", "optuna", "numpy", "vllm",
    "transformers", "sqlalchemy", "plotly", "nvidia-nccl-cu13", "nvidia-cudnn-cu13",
)  # fmt: skip
# A need in the catalogue -> the module that meets it.
_OPTIONAL = {
    "torchao": "torchao",
    "liger_kernel": "liger_kernel",
    "bitsandbytes": "bitsandbytes",
    "flash_attn3": "flash_attn_interface",
}


_UNKNOWN_BYTES = 1 << 50  # no device has so much: the trial itself will find out


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One visible device."""

    index: int  # as NVML counts
    uuid: str
    name: str
    memory_bytes: int  # 0: not allowed to ask, as in some containers
    sm: int  # compute capability, 90 for 9.0
    has_power: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A host as trials see it."""

    device: str  # cpu | cuda
    gpus: tuple[Gpu, ...]
    cores: int
    memory_bytes: int  # of the host
    host: str
    exclusive: bool
    trouble: str = ""  # why GPUs could not be asked, with the cure

    @property
    def device_memory_bytes(self) -> int:
        """Memory of the smallest GPU, or of the host; without bound where nobody would say."""
        known = [g.memory_bytes for g in self.gpus if g.memory_bytes]
        return min(known, default=_UNKNOWN_BYTES if self.gpus else self.memory_bytes)


def detect() -> Hardware:
    """Look at this host; never raises. ``AUTOTUNE_DEVICE=cpu`` hides the GPUs."""
    gpus: tuple[Gpu, ...] = ()
    trouble = ""
    if os.environ.get("AUTOTUNE_DEVICE", "") != "cpu":
        gpus, trouble = _gpus()
    return Hardware(
        device="cuda" if gpus else "cpu",
        gpus=gpus,
        cores=_cores(),
        memory_bytes=_memory_bytes(),
        host=socket.gethostname(),
        exclusive=os.environ.get("AUTOTUNE_EXCLUSIVE_HOST", "") == "1",
        trouble=trouble,
    )


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """The NVML binding, initialised; raises what ``why_not`` explains."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def why_not(error: BaseException) -> str:
    """An NVML failure in words, with the cure."""
    text = f"{type(error).__name__}: {error}"
    if "LibraryNotFound" in text or isinstance(error, ModuleNotFoundError):
        return "no NVIDIA driver library (libnvidia-ml) here"
    if "Mismatch" in text or "mismatch" in text:
        return "driver and library versions differ: a driver update needs a reboot"
    if "DriverNotLoaded" in text or "Driver Not Loaded" in text:
        return "the NVIDIA driver is not loaded: run nvidia-smi as root, or reboot"
    if "NoPermission" in text or "Insufficient Permissions" in text:
        return "no permission to ask the driver: run with access to /dev/nvidiactl"
    return text


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    try:
        with nvml() as lib:
            found = [_gpu(lib, i) for i in range(lib.nvmlDeviceGetCount())]
    except Exception as error:
        return (), why_not(error)
    return _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES")), ""


def _gpu(lib: Any, index: int) -> Gpu:
    handle = lib.nvmlDeviceGetHandleByIndex(index)
    major, minor = lib.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        lib.nvmlDeviceGetPowerUsage(handle)
        has_power = True
    except lib.NVMLError:
        has_power = False
    return Gpu(
        index=index,
        uuid=_text(lib.nvmlDeviceGetUUID(handle)),
        name=_text(lib.nvmlDeviceGetName(handle)),
        memory_bytes=_total_bytes(lib, handle),
        sm=major * 10 + minor,
        has_power=has_power,
    )


def _total_bytes(lib: Any, handle: Any) -> int:
    try:
        return int(lib.nvmlDeviceGetMemoryInfo(handle).total)
    except lib.NVMLError:
        return 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _visible(gpus: list[Gpu], shown: str | None) -> tuple[Gpu, ...]:
    """As CUDA reads its variable: indices, or (beginnings of) UUIDs; an unknown one ends it."""
    if shown is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for word in (w.strip() for w in shown.split(",")):
        if word.isdigit():
            matching = [g for g in gpus if g.index == int(word)]
        elif word.startswith("MIG-"):
            matching = gpus[:1]  # NVML counts whole devices: the slice's own size is unknown here
        else:
            matching = [g for g in gpus if word and g.uuid.startswith(word)]
        if len(matching) != 1:
            break
        found += matching
    return tuple(found)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores or 1, max(1, int(int(quota) / int(period))))
    return cores or 1


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def context(hardware: Hardware, runner: str) -> dict[str, Any]:
    """Facts that ``when:``, ``require:`` and ``needs`` may name."""
    present = {f"has.{need}": _is_there(module) for need, module in _OPTIONAL.items()}
    present |= {
        f"has.{word}": host_files.library(word) is not None for word in host_files.LIBRARIES
    }
    return {
        "device": hardware.device,
        "sm": min((g.sm for g in hardware.gpus), default=0),
        "torch": _short_version("torch"),
        "world_size": 1,
        "nodes": 1,
        "engine": "vllm" if runner == "vllm" else "own",
        "export": "",
        "host.exclusive": hardware.exclusive,
        "cores": hardware.cores,
        "memory_bytes": hardware.device_memory_bytes,
        **present,
    }


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _short_version(library: str) -> float:
    """2.13.0+cpu as 2.13; 0 when it is not installed."""
    match = re.match(r"(\d+\.\d+)", versions().get(library, "0.0"))
    return float(match[1]) if match else 0.0


def versions() -> dict[str, str]:
    """Installed libraries that a result depends on."""
    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def fingerprint(command: list[str]) -> dict[str, Any]:
    """What a record must carry to be believed elsewhere: device, versions, code, command."""
    hardware = detect()
    return {
        "host": hardware.host,
        "device": hardware.device,
        "gpus": [
            {"name": g.name, "uuid": g.uuid, "memory_bytes": g.memory_bytes, "sm": g.sm}
            for g in hardware.gpus
        ],
        **_driver(),
        "cores": hardware.cores,
        "cpu": _cpu_name(),
        "memory_bytes": hardware.memory_bytes,
        "os": platform.platform(),
        "versions": versions(),
        "torch": versions().get("torch"),
        "git_revision": _git_revision(),
        "command": command,
    }


def _driver() -> dict[str, Any]:
    try:
        with nvml() as lib:
            cuda = lib.nvmlSystemGetCudaDriverVersion()
            return {
                "driver": _text(lib.nvmlSystemGetDriverVersion()),
                "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
            }
    except Exception:
        return {"driver": None, "cuda_driver": None}


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _git_revision() -> str | None:
    """Of the checkout that autotune runs from; None for an installed wheel."""
    here = Path(__file__).parents[1]
    if not (here / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def no_power(hardware: Hardware) -> str | None:
    """Why power cannot be measured here, or None when it can."""
    if not hardware.gpus:
        return hardware.trouble or "there is no GPU here whose power could be read"
    silent = [g.name for g in hardware.gpus if not g.has_power]
    return f"{silent[0]} does not report power" if silent else None


Check = tuple[str, str, str, str]  # name, ok | warn | fail, what was found, cure


def doctor(out: Path) -> list[Check]:
    """What a user should know of this host before a study."""
    hardware = detect()
    return [
        ("python", "ok", platform.python_version(), ""),
        _torch_check(hardware),
        _gpu_check(hardware),
        ("cpu", "ok", f"{hardware.cores} cores, {hardware.memory_bytes / 2**30:.0f} GiB", ""),
        _folder_check(out),
        *_package_checks(),
    ]


def _torch_check(hardware: Hardware) -> Check:
    have = versions().get("torch")
    if have is None:
        return ("torch", "fail", "not installed", "pip install torch")
    if hardware.gpus and have.endswith("+cpu"):
        return ("torch", "warn", f"{have}, but there is a GPU", "install the CUDA build of torch")
    return ("torch", "ok", have, "")


def _gpu_check(hardware: Hardware) -> Check:
    if hardware.gpus:
        names = ", ".join(
            f"{g.name} {g.memory_bytes / 2**30:.0f} GiB"
            if g.memory_bytes
            else f"{g.name}, whose memory may not be asked for"
            for g in hardware.gpus
        )
        return ("gpu", "ok", names, "")
    return ("gpu", "warn", hardware.trouble or "none visible", "trials will run on the CPU")


def _folder_check(out: Path) -> Check:
    probe = out if out.exists() else out.absolute().parent
    if not os.access(probe, os.W_OK):
        return ("output", "fail", f"cannot write to {out}", "choose another --out")
    free = os.statvfs(probe)
    gigabytes = free.f_bavail * free.f_frsize / 1e9
    state = "ok" if gigabytes > 5 else "warn"
    cure = "" if state == "ok" else "free some space"
    return ("output", state, f"{out}: {gigabytes:.0f} GB free", cure)


def _package_checks() -> list[Check]:
    have: Mapping[str, str] = versions()
    return [
        (name, "ok" if name in have else "warn", have.get(name, "not installed"), "")
        for name in ("ray", "optuna", "torchao", "liger-kernel", "transformers")
    ]
