"""Architecture facts of a model: by name, from a YAML file, or from a Hugging Face folder."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune import yaml_lines
from autotune.conditions import MODEL_KEYS
from autotune.knob_yaml import only, place_of
from autotune.rooms import rooms_root
from autotune.space import SpaceError, nearest

_LARGEST_CONFIG_BYTES = 4 << 20
_LARGEST_NUMBER = 10**7
_NEEDED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
)  # fmt: skip
_WHOLE = (
    *_NEEDED, "num_key_value_heads", "head_dim", "max_position_embeddings", "num_local_experts",
    "num_experts_per_tok",
)  # fmt: skip
_REAL = ("rope_theta", "rms_norm_eps")
_FLAGS = ("tie_word_embeddings", "attention_bias")
_TEXTS = ("name", "architecture", "weights", "tokenizer")
# model_type of a config.json -> architecture, and what the type implies without saying so.
_TYPES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "mistral": {"architecture": "llama"},
    "qwen2": {"architecture": "llama", "attention_bias": True},
    "mixtral": {"architecture": "mixtral"},
}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def folder() -> Path:
    """Where the models known by name lie."""
    return rooms_root() / "search_spaces" / "models"


def model_names() -> list[str]:
    """Models known by name."""
    return sorted(p.stem for p in folder().glob("*.yaml"))


def load_model(name: str) -> dict[str, Any]:
    """Architecture facts by name, from a YAML file or from a folder with a config.json."""
    if name in model_names():
        return _from_yaml(folder() / f"{name}.yaml")
    path = Path(name)
    if path.is_dir():
        return _from_hugging_face(path)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _from_yaml(path)
    raise SpaceError(
        f"unknown model {name}{nearest(name, model_names())} "
        "(or give a folder with a Hugging Face config.json)"
    )


def _from_yaml(path: Path) -> dict[str, Any]:
    data = yaml_lines.load(path)
    only(data, MODEL_KEYS, str(path))
    for key, value in data.items():
        if wrong := _fault(key, value):
            raise SpaceError(
                f"{place_of(data, key, str(path))}: {key} should be {wrong}, not {value!r}"
            )
    return _checked({"name": path.stem, **data}, str(path))


def _from_hugging_face(path: Path) -> dict[str, Any]:
    config = path / "config.json"
    data = _read_json(config)
    kind = str(data.get("model_type", "llama"))
    if kind not in _TYPES:
        known = ", ".join(_TYPES)
        raise SpaceError(f"{config}: model_type {kind} is not of the Llama family ({known})")
    if "quantization_config" in data:
        raise SpaceError(f"{config}: quantised weights are not read; give the original model")
    activation = data.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise SpaceError(f"{config}: hidden_act {activation} is not supported, only silu")
    model = {key: value for key, value in data.items() if key in MODEL_KEYS and value is not None}
    rope = data.get("rope_parameters")
    if isinstance(rope, Mapping) and "rope_theta" in rope:
        model["rope_theta"] = rope["rope_theta"]
    # Never taken from the file, which could point anywhere.
    model |= {"name": _name_of(path), **_TYPES[kind]}
    model.pop("weights", None)
    model.pop("tokenizer", None)
    return _checked(model | _weights(path), str(config))


def _read_json(config: Path) -> dict[str, Any]:
    try:
        if config.exists() and not config.is_file():
            raise SpaceError(f"cannot read {config}: not a regular file")
        if config.stat().st_size > _LARGEST_CONFIG_BYTES:
            raise SpaceError(f"{config}: larger than {_LARGEST_CONFIG_BYTES >> 20} MiB")
        data = json.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpaceError(f"cannot read {config}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpaceError(f"{config}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise SpaceError(f"{config}: should hold an object")
    return data


def _name_of(path: Path) -> str:
    return (
        re.sub(r"[^\w.-]+", "-", path.absolute().name, flags=re.ASCII).strip("-.")[:60] or "model"
    )


def _weights(path: Path) -> dict[str, str]:
    """Real weights of the folder, if it has them; pickles can run code and are refused."""
    found: dict[str, str] = {}
    ggufs = sorted(path.glob("*.gguf"))
    if any(path.glob("*.safetensors")):
        found["weights"] = str(path.absolute())
    elif len(ggufs) == 1:
        found["weights"] = str(ggufs[0].absolute())
    elif any(any(path.glob(pattern)) for pattern in _PICKLES):
        raise SpaceError(f"{path}: weights are pickles, which can run code; use safetensors")
    if (path / "tokenizer.json").is_file():
        found["tokenizer"] = str((path / "tokenizer.json").absolute())
    return found


def _checked(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key in _NEEDED:
        if key not in data:
            raise SpaceError(f"{where}: lacks {key}")
    for key, value in data.items():
        if wrong := _fault(key, value):
            raise SpaceError(f"{where}: {key} should be {wrong}, not {value!r}")
    heads = data["num_attention_heads"]
    model = {
        "architecture": "llama",
        "num_key_value_heads": heads,
        "head_dim": max(1, data["hidden_size"] // heads),
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **data,
    }
    if heads % model["num_key_value_heads"]:
        raise SpaceError(
            f"{where}: {heads} heads cannot share {model['num_key_value_heads']} KV heads"
        )
    if model["head_dim"] % 2:
        raise SpaceError(f"{where}: head_dim {model['head_dim']} should be even (rotary halves)")
    if model["architecture"] == "mixtral" and not _experts_fit(model):
        raise SpaceError(
            f"{where}: needs num_local_experts and at most as many num_experts_per_tok"
        )
    return {key: model[key] for key in MODEL_KEYS if key in model}


def _experts_fit(model: Mapping[str, Any]) -> bool:
    chosen: int = model.get("num_experts_per_tok", 0)
    return 1 <= chosen <= int(model.get("num_local_experts", 0))


def _fault(key: str, value: Any) -> str | None:
    """What a value should be, when it is not that."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key in _WHOLE and not (number and isinstance(value, int) and 0 < value < _LARGEST_NUMBER):
        return "a positive whole number"
    if key in _REAL and not (number and math.isfinite(value) and value > 0):
        return "a number above 0"
    if key in _FLAGS and not isinstance(value, bool):
        return "true or false"
    if key in _TEXTS and not isinstance(value, str):
        return "text"
    if key == "architecture" and value not in ("llama", "mixtral"):
        return "llama or mixtral"
    return None
