"""Search spaces as files: the catalogue, models, presets and workloads, loaded strictly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import knob_yaml, yaml_lines
from autotune.rooms import rooms_root
from autotune.selection import is_live, parse_setting, select, suits_device
from autotune.space import Knob, Rule, SearchSpace, SpaceError, nearest
from autotune.trial import KnobValue

__all__ = [
    "dump",
    "is_live",
    "load_catalogue",
    "load_model",
    "load_presets",
    "load_workload",
    "model_names",
    "parse_setting",
    "restore",
    "select",
    "suits_device",
]

_MODEL_KEYS = {
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "vocab_size": int,
}
_ARCHITECTURES = ("llama", "mistral", "qwen2", "mixtral")


def folder() -> Path:
    """search_spaces/ of this installation."""
    return rooms_root() / "search_spaces"


def load_catalogue(extra: Sequence[Path] = ()) -> SearchSpace:
    """Every knob and rule, those of ``extra`` files last; a name may be defined once."""
    knobs: dict[str, Knob] = {}
    rules: list[Rule] = []
    home: dict[str, str] = {}
    for path in [*sorted(folder().glob("*.yaml")), *extra]:
        if path.name == "workloads.yaml" and path.parent == folder():
            continue
        found, more = knob_yaml.knobs_of(yaml_lines.load(path), str(path))
        for knob in found:
            if knob.name in knobs:
                raise SpaceError(f"{path}: knob {knob.name} is defined in {home[knob.name]} too")
            knobs[knob.name], home[knob.name] = knob, str(path)
        rules += more
    ordered = _parents_first(knobs)
    return SearchSpace(name="catalogue", knobs=tuple(ordered), rules=tuple(rules))


def _parents_first(knobs: Mapping[str, Knob]) -> list[Knob]:
    """File order, but every knob after those that its condition names."""
    done: dict[str, Knob] = {}

    def visit(knob: Knob, path: tuple[str, ...]) -> None:
        if knob.name in done:
            return
        if knob.name in path:
            raise SpaceError(f"conditions go in a circle: {' -> '.join([*path, knob.name])}")
        for name in sorted(knob.when.names if knob.when else ()):
            if name in knobs:
                visit(knobs[name], (*path, knob.name))
        done[knob.name] = knob

    for knob in knobs.values():
        visit(knob, ())
    return list(done.values())


def dump(space: SearchSpace) -> dict[str, Any]:
    """Plain data that ``restore`` turns back into an equal space."""
    return {
        "name": space.name,
        "knobs": [knob_yaml.dump_knob(k) for k in space.knobs],
        "rules": [{"require": r.requirement.text, "reason": r.reason} for r in space.rules],
        "context": dict(space.context),
        "fixed": dict(space.fixed),
    }


def restore(data: Mapping[str, Any]) -> SearchSpace:
    """The space of a stored study; SpaceError when the data is not one."""
    try:
        return SearchSpace(
            name=str(data["name"]),
            knobs=tuple(knob_yaml.restore_knob(k) for k in data["knobs"]),
            rules=tuple(knob_yaml.rule_of(r, "stored study") for r in data["rules"]),
            context=dict(data["context"]),
            fixed=dict(data["fixed"]),
        )
    except (KeyError, TypeError) as error:
        raise SpaceError(f"a stored search space is damaged: {error!r}") from None


def model_names() -> list[str]:
    """Models known by name."""
    return sorted(p.stem for p in (folder() / "models").glob("*.yaml"))


def load_model(name: str) -> dict[str, Any]:
    """Architecture facts by name, from a YAML file or from a folder with a config.json."""
    path = Path(name)
    if name in model_names():
        return _checked_model(yaml_lines.load(folder() / "models" / f"{name}.yaml"), name)
    if path.is_dir():
        return _from_hugging_face(path)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _checked_model(yaml_lines.load(path), str(path))
    raise SpaceError(
        f"unknown model {name}{nearest(name, model_names())} "
        "(or give a folder with a Hugging Face config.json)"
    )


def _from_hugging_face(path: Path) -> dict[str, Any]:
    config = path / "config.json"
    try:
        if config.stat().st_size > 4 << 20:
            raise SpaceError(f"{config}: larger than 4 MiB")
        data = json.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpaceError(f"cannot read {config}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpaceError(f"{config}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise SpaceError(f"{config}: should hold an object")
    kind = str(data.get("model_type", "llama"))
    if kind not in _ARCHITECTURES:
        raise SpaceError(f"{config}: model_type {kind} is not of the Llama family {_ARCHITECTURES}")
    model = {**data, "name": path.name, "architecture": "mixtral" if kind == "mixtral" else "llama"}
    weights = sorted(path.glob("*.safetensors"))
    if weights:
        model["weights"] = str(path.absolute())
    elif any(path.glob("*.bin")) or any(path.glob("*.pt")):
        raise SpaceError(f"{path}: weights are pickles; convert them to safetensors")
    return _checked_model(model, str(config))


_KEPT = (
    "name", "architecture", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "max_position_embeddings", "rope_theta", "rms_norm_eps", "tie_word_embeddings",
    "num_local_experts", "num_experts_per_tok", "attention_bias", "weights", "tokenizer",
)  # fmt: skip


def _checked_model(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key, kind in _MODEL_KEYS.items():
        value = data.get(key)
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 < value < 10**7:
            raise SpaceError(f"{where}: {key} should be a positive whole number, not {value!r}")
    model = {k: data[k] for k in _KEPT if data.get(k) is not None}
    heads = model["num_attention_heads"]
    model.setdefault("num_key_value_heads", heads)
    model.setdefault("head_dim", model["hidden_size"] // heads)
    model.setdefault("rope_theta", 10000.0)
    model.setdefault("rms_norm_eps", 1e-5)
    model.setdefault("tie_word_embeddings", False)
    model.setdefault("max_position_embeddings", 4096)
    model.setdefault("architecture", "llama")
    model.setdefault("name", Path(where).stem)
    if heads % model["num_key_value_heads"]:
        raise SpaceError(
            f"{where}: {heads} heads cannot share {model['num_key_value_heads']} KV heads"
        )
    return model


def load_workload(task: str, device: str) -> dict[str, Any]:
    """What the job is where the user says nothing: knob values (with a dot) and other facts."""
    found = yaml_lines.load(folder() / "workloads.yaml")
    return dict(found.get(task, {}).get(device, {}))


def load_presets(space: SearchSpace, task: str) -> list[dict[str, Any]]:
    """Presets of a task whose condition holds here: name, summary, configuration, dropped.

    Knobs that are not in the space are dropped and listed; a fixed knob keeps its value.
    """
    found = []
    known = {knob.name: knob for knob in space.knobs}
    for path in sorted((folder() / "presets").glob("*.yaml")):
        for entry in knob_yaml.presets_of(yaml_lines.load(path), str(path)):
            if entry["task"] != task or not entry["when"].holds(space.context):
                continue
            wanted = entry["configuration"]
            kept = {n: v for n, v in wanted.items() if n in known and n not in space.fixed}
            found.append(
                {
                    "name": entry["name"],
                    "summary": entry["summary"],
                    "configuration": kept,
                    "dropped": sorted(wanted.keys() - kept.keys()),
                }
            )
    return sorted(found, key=lambda p: p["name"] != "common_practice")


def defaults_of(knobs: Iterable[Knob]) -> dict[str, KnobValue]:
    """Name -> upstream default."""
    return {knob.name: knob.default for knob in knobs}
