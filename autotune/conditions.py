"""What conditions may name: knobs, and facts of the host, the model and the study."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from autotune.requirement import Requirement, equalities
from autotune.space import Knob, Rule, SpaceError, nearest

# Facts with a small set of values, which a misspelt condition could never meet.
_WORDS: dict[str, tuple[str, ...]] = {
    "device": ("cpu", "cuda"),
    "engine": ("own", "vllm", "sglang"),
    "export": ("", "trtllm", "deepspeed", "megatron"),
    "task": ("train", "serve"),
}
# Kept of a model's config.json; those that are plain values are facts with ``model.`` before them.
MODEL_KEYS = (
    "name", "architecture", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "max_position_embeddings", "rope_theta", "rms_norm_eps", "tie_word_embeddings",
    "num_local_experts", "num_experts_per_tok", "attention_bias", "weights", "tokenizer",
)  # fmt: skip
# What a knob can need; a version reads ``torch>=2.13`` and a device class ``sm>=89``.
NEEDS = (
    "cpu", "cuda", "multi_rank", "multi_gpu", "multi_node", "nvswitch", "vllm", "sglang",
    "trtllm", "deepspeed", "megatron", "torchao", "liger_kernel", "bitsandbytes", "te",
    "flash_attn3", "jemalloc", "tcmalloc", "libiomp5", "numactl", "pending",
)  # fmt: skip
FACTS = (
    *_WORDS, "sm", "torch", "world_size", "nodes", "host.exclusive", "cores", "memory_bytes",
    *(f"model.{key}" for key in MODEL_KEYS), *(f"has.{need}" for need in NEEDS),
)  # fmt: skip
VERSION = re.compile(r"^(torch|sm|vllm)(>=|==|<)(\d+(?:\.\d+)?)$")


def check(knobs: Mapping[str, Knob], rules: Iterable[Rule], places: Mapping[str, str]) -> None:
    """Raise SpaceError for a condition that names nothing known or compares with no legal value.

    ``places`` gives file and line of a knob by its name and of a rule by its text.
    """
    for knob in knobs.values():
        if knob.when is not None:
            _check(knob.when, knobs, f"{places[knob.name]}: when of {knob.name}")
    for rule in rules:
        _check(rule.requirement, knobs, f"{places[rule.requirement.text]}: require")


def check_need(need: str, where: str) -> None:
    """Raise SpaceError for a need that nothing could ever meet."""
    if need not in NEEDS and not VERSION.match(need):
        raise SpaceError(f"{where}: unknown need {need}{nearest(need, NEEDS)}")


def _check(requirement: Requirement, knobs: Mapping[str, Knob], where: str) -> None:
    for name in sorted(requirement.names):
        if name not in knobs and name not in FACTS:
            known = [*knobs, *FACTS]
            raise SpaceError(f"{where} names {name}, which is unknown{nearest(name, known)}")
    for name, value in equalities(requirement):
        if name in _WORDS and value not in _WORDS[name]:
            close = nearest(str(value), _WORDS[name])
            raise SpaceError(f"{where}: {name} is never {value!r}{close}")
        if name in knobs and not knobs[name].accepts(value):
            domain = knobs[name].domain
            close = nearest(str(value), str(domain).split(" | "))
            raise SpaceError(f"{where}: {name} is never {value!r} ({domain}){close}")
