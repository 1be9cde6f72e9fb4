"""The trial: build an engine, warm it up, serve the trace, judge the output, say what was seen."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autotune.trial import Measurement, TrialSpec
from trials import apply, variables
from trials.errors import Unsupported
from trials.serve import building, ceiling, choices, figures, quality, room, sampling, trace
from trials.serve.building import Built
from trials.serve.engine import Engine, Served
from trials.serve.plan import RequestTooLong
from trials.serve.slices import Seen, is_sound, whole
from trials.serve.trace import Request
from trials.settings import Settings
from trials.train import memory, process
from trials.train.clock import wait
from trials.train.compiling import counts, limit_was_hit

_WARM_REQUESTS = {"cpu": 2, "cuda": 1 << 30}
_WARM_TOKENS = {"cpu": 2, "cuda": 4}
_ALONE_REPEATS = 3
_LOSSY = ("quant.scheme", "kv_cache.dtype")


def run(spec: TrialSpec, folder: Path, settings: Settings) -> Measurement:
    """Measure one serving configuration."""
    try:
        return _Trial(spec, folder, settings).measured()
    except RequestTooLong as error:
        raise Unsupported(str(error)) from error
    except (RuntimeError, MemoryError, OSError) as error:
        if (failure := memory.explained(error)) is not None:
            raise failure from error
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Of the whole model: bytes that a decode step reads, and of one token's keys and values."""

    read_bytes: float
    token_bytes: float


class _Trial:
    """One configuration on one device; its phases in the order in which they run."""

    def __init__(self, spec: TrialSpec, folder: Path, settings: Settings) -> None:
        self.spec, self.folder, self.settings = spec, folder, settings
        self.device = torch.device("cuda" if spec.gpus and torch.cuda.is_available() else "cpu")
        self.layers = int(spec.model["num_hidden_layers"])
        self.phases: dict[str, float] = {}

    def measured(self) -> Measurement:
        """From nothing to a measurement."""
        apply.apply(self.spec, self.settings)
        process.prepare(self.settings, self.device)
        self.garbage = process.GarbageCollection(self.settings)
        self.trace = trace.make(self.spec.workload, int(self.spec.model["vocab_size"]))
        self.choices = choices.choose(self.settings, self.spec.model, self.device)
        if self.spec.fidelity.depths and self.choices.policy.draft_tokens:
            raise Unsupported("spec.method: what a slice of the model says tells nothing of drafts")
        if self.trace.longest > self.choices.longest:
            raise Unsupported(
                f"a request of {self.trace.longest} tokens is longer than the "
                f"{self.choices.longest} that serve.max_model_len or the model allows"
            )
        self.blocks = room.blocks_of(
            self.choices, self.spec.model, self.trace, self.settings,
            sliced=bool(self.spec.fidelity.depths),
        )  # fmt: skip
        self.facts = self._facts()
        self.wanted = sampling.wanted(self.trace.workload, self.spec.seed)
        mode = str(self.settings.take("serve.inference_mode", "inference_mode"))
        self.settings.effective("serve.inference_mode", mode)
        context: Callable[[], Any] = getattr(torch, mode)
        with context():
            depths = self.spec.fidelity.depths or (self.layers,)
            seen = [self._depth(depth) for depth in depths]
            if not is_sound(seen):
                text = "timing was repeated: the deeper slice had been the faster one"
                self.settings.notice(text)
                seen = [self._depth(depth) for depth in depths]
            judged = self._judge()
        apply.read_back(self.spec, self.settings)
        variables.read_back_by_torch(self.spec, self.settings)
        if limit_was_hit():
            self.settings.notice("dynamo hit its recompile limit and fell back to eager")
        return self._measurement(seen, judged)

    def _depth(self, depth: int) -> Seen:
        """Build, warm up and serve at one depth; leaves nothing on the device."""
        memory.reset(self.device)
        begun = time.perf_counter()
        built = building.build(
            self.choices, self.settings, self.spec.model, self.wanted, depth=depth,
            blocks=self.blocks,
        )  # fmt: skip
        wait(self.device)
        self._spent("build", begun)
        begun = time.perf_counter()
        built.engine().serve(self._warm_up_requests())
        wait(self.device)
        self._spent("warmup", begun)
        self.garbage.after_warm_up()
        engine, served = self._serve(built)
        alone_ms = self._alone(built)
        peak, reserved, source = memory.peak_bytes(self.device)
        self.settings.fact("memory_source", source)
        self._book(engine, served)
        self.served = served
        del built, engine
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return Seen(
            depth=depth,
            served=served,
            alone_ms=alone_ms,
            peak_bytes=float(peak),
            reserved_bytes=None if reserved is None else float(reserved),
        )

    def _serve(self, built: Built) -> tuple[Engine, Served]:
        engine = built.engine()
        engine.after_step(self.garbage.after_step)
        begun = time.perf_counter()
        requests, asked = self.trace.requests, self.trace
        sliced = bool(self.spec.fidelity.depths)
        if asked.mode == "concurrency":
            served = engine.serve(requests, concurrency=asked.concurrency)
        elif asked.mode == "rate" and sliced:
            raise Unsupported("a fixed rate needs the whole model: slices serve it too fast")
        else:
            served = engine.serve(requests)
        self._spent("measure", begun)
        return engine, served

    def _warm_up_requests(self) -> list[Request]:
        """The first requests, cut short: every prompt length and the largest batch come up."""
        kind = self.device.type
        count = min(_WARM_REQUESTS[kind], self.choices.policy.max_num_seqs)
        return [
            Request(
                number=r.number,
                arrival=0.0,
                prompt=r.prompt,
                output_tokens=min(r.output_tokens, _WARM_TOKENS[kind]),
            )
            for r in self.trace.requests[:count]
        ]

    def _alone(self, built: Built) -> float | None:
        """Milliseconds a token when one request has the device to itself."""
        prompt = self.trace.requests[0].prompt if self.trace.requests else ()
        tokens = room.alone_tokens(self.choices, self.trace) - len(prompt)
        if tokens < 2:
            return None
        request = Request(number=0, arrival=0.0, prompt=prompt, output_tokens=tokens)
        begun = time.perf_counter()
        found = []
        for _ in range(_ALONE_REPEATS):
            line = built.engine().serve([request]).timelines[0]
            (first, held), (last, _) = line.messages[0], line.messages[-1]
            found.append((last - first) * 1e3 / max(1, line.received - held))
        self._spent("measure", begun)
        return statistics.median(found)

    def _book(self, engine: Engine, served: Served) -> None:
        scheduler = engine.scheduler
        blocks = scheduler.blocks
        self.preemptions = scheduler.preemptions
        self.settings.fact("steps", served.steps)
        if self.choices.policy.draft_tokens:
            share = scheduler.accepted / scheduler.drafted if scheduler.drafted else None
            self.settings.fact("drafts_accepted_share", share)
        if self.choices.cache.prefix_caching:
            self.settings.fact("prefix_hit_share", blocks.hit_tokens / max(1, blocks.asked_tokens))

    def _facts(self) -> _Facts:
        one = room.layout(self.choices, self.spec.model, self.layers, 1)
        return _Facts(
            read_bytes=float(room.read_bytes(self.choices, self.spec.model)),
            token_bytes=one.block_bytes / one.size,
        )

    def _judge(self) -> dict[str, float | None]:
        """Where asked for, and wherever weights or keys and values are kept in fewer bits."""
        values = self.settings.values
        lossy = any(values.get(name, "none") not in ("none", "model") for name in _LOSSY)
        if not (self.spec.fidelity.quality or lossy):
            return {}
        begun = time.perf_counter()
        found = quality.gate(self.choices, self.settings, self.folder)
        self._spent("quality", begun)
        return found

    def _spent(self, phase: str, since: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - since

    def _measurement(self, seen: list[Seen], judged: dict[str, float | None]) -> Measurement:
        result = whole(seen, self.layers)
        found, undefined = figures.metrics(
            result.served,
            self.trace.workload,
            max_num_seqs=self.choices.policy.max_num_seqs,
            preemptions=self.preemptions,
        )
        for text in undefined:
            self.settings.notice(text)
        begun = time.perf_counter()
        limit = ceiling.copy_rate(self.device, self.folder.parent / "ceilings.json")
        self._spent("other", begun)
        served, facts = result.served, self.facts
        moved = served.weight_reads * facts.read_bytes + served.read_tokens * facts.token_bytes
        wall = served.wall_seconds
        found |= {
            "peak_memory_bytes": result.peak_bytes,
            "reserved_memory_bytes": result.reserved_bytes,
            "memory_bandwidth_utilization": moved / wall / limit if wall > 0 else None,
            "build_seconds": self.phases["build"],
            "compile_seconds": self.phases["warmup"] if self.choices.compiler.enabled else 0.0,
            **judged,
        }
        if result.alone_ms is not None:
            found["decode_ms_per_token_batch_1"] = result.alone_ms
            share = facts.read_bytes / (result.alone_ms / 1e3) / limit
            self.settings.fact("decode_batch_1_bandwidth_share", share)
        return Measurement(
            metrics=found,
            samples=figures.samples(result.served),
            effective=dict(self.settings.read_back),
            phases=self.phases,
            telemetry=self._told(result.extrapolated, found, limit),
            notices=tuple(self.settings.notices),
        )

    def _told(
        self, extrapolated: bool, found: dict[str, float | None], limit: float
    ) -> dict[str, Any]:
        window = self.served.window
        rate = found["output_tokens_per_second"] or 0.0
        received = sum(t.received for t in self.served.timelines)
        return {
            "device": self.device.type,
            "torch": torch.__version__,
            "extrapolated": extrapolated,
            "window": list(window),
            # What the device's time in the window is worth at full depth, for energy per token.
            "window_tokens": (window[1] - window[0]) * rate if extrapolated else received,
            "copy_ceiling_bytes_per_second": limit,
            "weight_bytes_read_per_step": self.facts.read_bytes,
            "graphs": counts(),
            **self.settings.facts,
        }
