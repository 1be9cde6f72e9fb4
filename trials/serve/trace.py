"""The requests of a trial: how long prompts and answers are, when they arrive, what they share."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trials.errors import Unsupported

MODES = ("offline", "concurrency", "rate")
DISTRIBUTIONS = ("fixed", "lognormal", "uniform")
ARRIVALS = ("poisson", "constant", "gamma")
_DEFAULTS: dict[str, Any] = {
    "mode": "offline",
    "requests": 512,
    "prompt_tokens": 128,
    "output_tokens": 128,
    "distribution": "fixed",
    "spread": 0.6,  # of a lognormal's logarithm; of a uniform: +- that share
    "trace_seed": 1,
    "trace_file": "",
    "rate": 4.0,  # requests a second
    "arrival": "poisson",
    "burstiness": 4.0,  # variance over that of a Poisson process, arrival gamma
    "concurrency": 16,
    "shared_prefix_tokens": 0,
    "prefix_groups": 1,
    "repetition": 0.0,  # chance that a piece of a prompt repeats an earlier one
    "priorities": 1,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "decode_batch_1": 0,  # output tokens of one request alone, for decode_ms_per_token_batch_1
    "goodput_time_to_first_token_ms": 0.0,
    "goodput_inter_token_latency_ms": 0.0,
    "goodput_request_latency_ms": 0.0,
}
_PIECE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as a client sends it."""

    number: int
    arrival: float  # seconds after the start
    prompt: tuple[int, ...]
    output_tokens: int
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All requests of a trial, and how they are sent."""

    requests: tuple[Request, ...]
    mode: str
    concurrency: int
    rate: float
    workload: Mapping[str, Any]

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its answer included."""
        return max((len(r.prompt) + r.output_tokens for r in self.requests), default=1)


def make(workload: Mapping[str, Any], vocabulary: int) -> Trace:
    """The trace that a workload describes; the same for the same ``trace_seed``.

    Raises Unsupported for a key or value that means nothing here.
    """
    if unknown := workload.keys() - _DEFAULTS.keys():
        raise Unsupported(f"workload has no {', '.join(sorted(unknown))}; see docs/serving.md")
    asked = {**_DEFAULTS, **workload}
    for key, known in (("mode", MODES), ("distribution", DISTRIBUTIONS), ("arrival", ARRIVALS)):
        if asked[key] not in known:
            raise Unsupported(f"workload {key}={asked[key]!r} should be one of {', '.join(known)}")
    made = _from_file(asked, vocabulary) if asked["trace_file"] else _drawn(asked, vocabulary)
    return Trace(
        requests=tuple(made),
        mode=str(asked["mode"]),
        concurrency=max(1, int(asked["concurrency"])),
        rate=float(asked["rate"]),
        workload=asked,
    )


def _drawn(asked: Mapping[str, Any], vocabulary: int) -> list[Request]:
    sizes = random.Random(f"sizes:{asked['trace_seed']}")
    words = random.Random(f"words:{asked['trace_seed']}")
    times = _arrivals(asked)
    prefixes = [
        _words(words, int(asked["shared_prefix_tokens"]), vocabulary)
        for _ in range(int(asked["prefix_groups"]))
    ]
    made = []
    for number, arrival in enumerate(times):
        prompt_size = _size(sizes, int(asked["prompt_tokens"]), asked)
        output_size = _size(sizes, int(asked["output_tokens"]), asked)
        shared = prefixes[sizes.randrange(len(prefixes))] if prefixes else []
        own = _words(words, max(1, prompt_size - len(shared)), vocabulary, asked["repetition"])
        made.append(
            Request(
                number=number,
                arrival=arrival,
                prompt=tuple((shared + own)[:prompt_size] if shared else own),
                output_tokens=output_size,
                priority=sizes.randrange(int(asked["priorities"])),
            )
        )
    return made


def _size(rng: random.Random, mean: int, asked: Mapping[str, Any]) -> int:
    spread = float(asked["spread"])
    if asked["distribution"] == "lognormal":
        drawn = rng.lognormvariate(math.log(mean) - spread**2 / 2, spread)
        return max(1, min(round(drawn), 8 * mean))
    if asked["distribution"] == "uniform":
        return max(1, round(mean * rng.uniform(1 - spread, 1 + spread)))
    return max(1, mean)


def _words(rng: random.Random, count: int, vocabulary: int, repetition: float = 0.0) -> list[int]:
    """Random tokens; some pieces are copies of earlier ones, as in code and quoted text."""
    found: list[int] = []
    while len(found) < count:
        if len(found) > _PIECE and rng.random() < repetition:
            start = rng.randrange(len(found) - _PIECE)
            found.extend(found[start : start + _PIECE])
        else:
            found.extend(rng.randrange(vocabulary) for _ in range(_PIECE))
    return found[:count]


def _arrivals(asked: Mapping[str, Any]) -> list[float]:
    count = int(asked["requests"])
    if asked["mode"] != "rate":
        return [0.0] * count
    rate = float(asked["rate"])
    if not (rate > 0 and math.isfinite(rate)):
        raise Unsupported(f"workload rate={rate} should be requests a second, above 0")
    rng = random.Random(f"times:{asked['trace_seed']}")
    shape = 1 / max(float(asked["burstiness"]), 1e-6)
    now, times = 0.0, []
    for _ in range(count):
        times.append(now)
        if asked["arrival"] == "constant":
            now += 1 / rate
        elif asked["arrival"] == "poisson":
            now += rng.expovariate(rate)
        else:
            now += rng.gammavariate(shape, 1 / (rate * shape))
    return times


def _from_file(asked: Mapping[str, Any], vocabulary: int) -> list[Request]:
    """A JSON object a line: ``prompt_tokens`` or ``prompt_ids``, ``output_tokens``, and if wanted
    ``arrival_seconds`` and ``priority``."""
    path = Path(str(asked["trace_file"]))
    words = random.Random(f"words:{asked['trace_seed']}")
    made = []
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise Unsupported(f"trace file {path}: {error.strerror}") from error
    for number, line in enumerate(line for line in lines if line.strip()):
        try:
            data = json.loads(line)
            ids = data.get("prompt_ids")
            prompt = ids or _words(words, int(data["prompt_tokens"]), vocabulary)
            made.append(
                Request(
                    number=number,
                    arrival=float(data.get("arrival_seconds", 0.0)),
                    prompt=tuple(int(token) % vocabulary for token in prompt),
                    output_tokens=int(data["output_tokens"]),
                    priority=int(data.get("priority", 0)),
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unsupported(f"{path}:{number + 1}: not a request: {error!r}") from error
    return made[: int(asked["requests"])]
