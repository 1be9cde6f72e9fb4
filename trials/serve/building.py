"""From choices to an engine: the model, its cache on the device, and the graphs of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trials.errors import Unsupported
from trials.serve import drafting, room, weights
from trials.serve.block_manager import BlockManager
from trials.serve.choices import Choices
from trials.serve.compiling import compile_layers
from trials.serve.engine import Engine
from trials.serve.graphs import DecodeGraphs
from trials.serve.kv_cache import KVCache
from trials.serve.model import Decoder
from trials.serve.runner import Runner
from trials.serve.sampling import Wanted, make
from trials.serve.scheduler import Scheduler
from trials.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model with its cache on the device; ``engine`` starts with empty books every time."""

    choices: Choices
    model: Decoder
    cache: KVCache
    runner: Runner
    host_blocks: int

    def engine(self) -> Engine:
        """An engine that has served nothing yet."""
        choices, kept = self.choices, self.choices.cache
        blocks = BlockManager(
            blocks=self.cache.layout.blocks,
            size=self.cache.layout.size,
            prefix_caching=kept.prefix_caching,
            eviction=kept.eviction,
            host_blocks=self.host_blocks,
            offload=kept.prefix_caching and kept.host_bytes > 0,
        )
        draft = drafting.ngram(*choices.ngram) if choices.policy.draft_tokens else None
        self.runner.forget()
        return Engine(
            Scheduler(choices.policy, blocks, draft),
            self.runner,
            overlap=choices.overlap,
            stream_interval=choices.stream_interval,
        )


def build(
    choices: Choices, settings: Settings, model: Mapping[str, Any], wanted: Wanted, *,
    depth: int, blocks: int,
) -> Built:  # fmt: skip
    """The model at that depth, its cache, and the graphs that the knobs want recorded."""
    device = choices.device
    config = {**model, "num_hidden_layers": depth}
    found = weights.real_weights(config, choices.dtype, device)
    if found is None:
        found = weights.random_weights(config, choices.dtype, device, settings.spec.seed)
    decoder = Decoder(config, choices.parts, found)
    compile_layers(decoder, choices.compiler)
    layout = room.layout(choices, model, depth, blocks)
    settings.effective("kv_cache.block_size", layout.size)
    settings.effective("kv_cache.layout", layout.order)
    host_blocks = room.host_blocks(choices, model, blocks)
    cache = KVCache(layout, device, host_blocks)
    runner = Runner(
        decoder,
        cache,
        make(choices.sampler, wanted, device),
        rows=choices.policy.max_num_seqs,
        longest=choices.longest,
        step_tokens=choices.policy.max_num_batched_tokens,
        all_logits=choices.all_logits,
    )
    settings.effective("serve.sampler", choices.sampler)
    _record_graphs(choices, runner, settings)
    return Built(
        choices=choices, model=decoder, cache=cache, runner=runner, host_blocks=host_blocks
    )


def _record_graphs(choices: Choices, runner: Runner, settings: Settings) -> None:
    if choices.graphs == "none":
        settings.effective("serve.cudagraph_mode", "none")
        return
    if choices.device.type != "cuda":
        raise Unsupported(f"serve.cudagraph_mode={choices.graphs} needs a GPU")
    if choices.parts.kernels.decode != "triton":
        raise Unsupported("serve.cudagraph_mode needs the Triton decode kernel")
    runner.graphs = DecodeGraphs(runner, choices.graph_sizes)
    settings.effective("serve.cudagraph_mode", "decode_only")
    settings.effective("serve.cudagraph_max_batch", runner.graphs.largest)
    settings.effective("serve.cudagraph_size_step", settings.take("serve.cudagraph_size_step", 8))
    settings.fact("cudagraph_sizes", list(runner.graphs.sizes))
