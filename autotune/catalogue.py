"""Questions about the catalogue and about files of any kind, for people rather than for trials."""

from __future__ import annotations

from pathlib import Path

from autotune import hardware, plan, request_file, space_file, yaml_lines
from autotune.space import Knob, SpaceError


def listed(*, task: str | None, device: str | None, live: bool) -> list[Knob]:
    """The knobs of a task and device; ``live`` keeps those that act on this host.

    Raises SpaceError for a word that is no task or device.
    """
    if task not in (None, "train", "serve"):
        raise SpaceError(f"--task {task} should be train or serve")
    if device not in (None, "cpu", "cuda"):
        raise SpaceError(f"--device {device} should be cpu or cuda")
    found = [k for k in space_file.load_catalogue().knobs if "toy" not in k.scope]
    if task is not None:
        found = [k for k in found if task in k.scope]
    if device is not None:
        found = [k for k in found if space_file.suits_device(k, device)]
    if live:
        here = hardware.detect()
        contexts = [hardware.context(here, runner) for runner in ("torch", "vllm")]
        found = [k for k in found if any(space_file.is_live(k, c) for c in contexts)]
    return found


def validate(path: Path) -> str:
    """The kind of a file that is valid ("space", "model", "study", "configuration").

    Raises SpaceError with file and line when it is not.
    """
    if path.is_dir():
        space_file.load_model(str(path))
        return "model folder"
    document = yaml_lines.load(path)
    keys = set(document)
    if "configuration" in keys:
        from autotune import export

        export.load_best(path)
        return "configuration"
    if "hidden_size" in keys:
        space_file.load_model(str(path))
        return "model"
    if "model" in keys:
        request = request_file.load(path, overrides={})
        with request_file.locating(path, {}):
            plan.make(request, [])
        return "study"
    space_file.load_catalogue([path])
    return "space"
