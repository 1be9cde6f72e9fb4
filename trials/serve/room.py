"""How many blocks of keys and values there is room for, and what a model weighs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trials.errors import OutOfMemory
from trials.serve import weights
from trials.serve.choices import Choices
from trials.serve.kv_cache import DTYPES, Layout
from trials.serve.model import Decoder, Shape
from trials.serve.trace import Trace
from trials.settings import Settings

_SWAP_BYTES = 4 << 30  # of host memory for sequences that are swapped out, unless a knob says more
_OWN_SHARE = 1 << 30  # of the device, for the library's own workspaces


def layout(choices: Choices, model: Mapping[str, Any], layers: int, blocks: int) -> Layout:
    """The cache of so many layers and blocks."""
    kept, shape = choices.cache, Shape.of(model)
    return Layout(
        layers=layers,
        blocks=blocks,
        size=kept.size,
        kv_heads=shape.kv_heads,
        dim=shape.dim,
        stored=choices.dtype if kept.dtype == "model" else DTYPES[kept.dtype],
        computed=choices.dtype,
        order=kept.layout,
    )


def outline(choices: Choices, model: Mapping[str, Any]) -> Decoder:
    """The whole model without its content, to be weighed."""
    return Decoder(model, choices.parts, weights.no_weights(model, choices.dtype))


def blocks_of(
    choices: Choices, model: Mapping[str, Any], trace: Trace, settings: Settings, *, sliced: bool
) -> int:
    """As many blocks as the memory allows, and no more than the requests can use.

    A slice gets the blocks that the whole model would have, so that it schedules alike.
    """
    shape = Shape.of(model)
    needed = blocks_needed(choices, trace)
    each = layout(choices, model, shape.layers, 1).block_bytes
    left = _left(choices, model, settings)
    blocks = min(needed, int(left // each))
    if blocks < -(-trace.longest // choices.cache.size):
        if not sliced:
            raise OutOfMemory(
                f"{left / 2**30:.1f} GiB are left for the KV cache; one request of "
                f"{trace.longest} tokens does not fit"
            )
        settings.notice("the whole model does not fit on this device: its slices do")
        blocks = needed
    settings.effective("kv_cache.dtype", choices.cache.dtype)
    settings.fact("kv_cache_blocks", blocks)
    settings.fact("kv_cache_bytes", blocks * each)
    return blocks


def blocks_needed(choices: Choices, trace: Trace) -> int:
    """What the requests can hold at once; with prefix caching, all that they ever make."""
    sizes = sorted((len(r.prompt) + r.output_tokens for r in trace.requests), reverse=True)
    slack = choices.policy.multi_step + choices.policy.draft_tokens
    if not choices.cache.prefix_caching:
        sizes = sizes[: choices.policy.max_num_seqs]
    blocks = sum(-(-(s + slack) // choices.cache.size) for s in sizes)
    blocks = max(blocks, -(-(alone_tokens(choices, trace) + slack) // choices.cache.size))
    return max(1, blocks) + int(choices.policy.watermark * blocks) + 1


def alone_tokens(choices: Choices, trace: Trace) -> int:
    """Of the request that is measured by itself, prompt and answer; 0 without one."""
    wanted = int(trace.workload["decode_batch_1"])
    if wanted < 2 or not trace.requests:
        return 0
    return min(len(trace.requests[0].prompt) + wanted, choices.longest)


def _left(choices: Choices, model: Mapping[str, Any], settings: Settings) -> float:
    """Bytes for the cache, beside the weights of the whole model and a step's activations."""
    asked = settings.spec.options.get("kv_cache_bytes")
    if asked is not None:
        return float(asked)
    shape = Shape.of(model)
    tokens, seqs = choices.policy.max_num_batched_tokens, choices.policy.max_num_seqs
    item = choices.dtype.itemsize
    working = tokens * (6 * shape.hidden + 4 * shape.inner) * item + seqs * shape.vocab * 12
    if choices.all_logits:
        working += tokens * shape.vocab * item
    taken = _bytes(outline(choices, model)) + working
    if choices.device.type == "cuda":
        total = torch.cuda.get_device_properties(choices.device).total_memory
        return choices.cache.fraction * total - taken - _OWN_SHARE
    return choices.cache.fraction * _available_bytes() - taken


def read_bytes(choices: Choices, model: Mapping[str, Any]) -> int:
    """What a decode step of the whole model reads: layers and head."""
    whole = outline(choices, model)
    return _bytes(whole.layers) + _bytes(whole.head)


def _bytes(module: torch.nn.Module) -> int:
    """Each tensor once: a tied head is the embedding."""
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}
    return sum(t.nbytes for t in tensors.values())


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 4 << 30


def host_blocks(choices: Choices, model: Mapping[str, Any], blocks: int) -> int:
    """Of the second tier in host memory."""
    each = layout(choices, model, Shape.of(model).layers, 1).block_bytes
    asked = choices.cache.host_bytes
    if choices.policy.preemption == "swap":
        asked = max(asked, min(_SWAP_BYTES, blocks * each))
    return asked // each
