"""The loop: requests in, steps planned and run, tokens out, with the time of every message."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any, Protocol

from trials.serve.plan import Plan
from trials.serve.scheduler import Scheduler
from trials.serve.sequence import Sequence
from trials.serve.trace import Request

_NAP_SECONDS = 0.0005


class Runner(Protocol):
    """Runs plans on a device, in the order in which they are launched."""

    def launch(self, plan: Plan) -> Any:
        """Start a step; returns at once where the device works by itself."""

    def collect(self, ticket: Any) -> list[list[int]]:
        """Wait for a step; what it sampled, for each work that samples, decodes first."""


@dataclass(slots=True, kw_only=True)
class Timeline:
    """When a client sent a request and got its messages; seconds after the start."""

    request: Request
    sent: float
    messages: list[tuple[float, int]] = field(default_factory=list)  # time, tokens in it
    tokens: Items[int] = ()

    @property
    def received(self) -> int:
        """Tokens that arrived."""
        return sum(count for _, count in self.messages)


@dataclass(slots=True, kw_only=True)
class Served:
    """What a trace came to."""

    timelines: list[Timeline]
    wall_seconds: float = 0.0
    window: tuple[float, float] = (0.0, 0.0)  # epoch seconds
    steps: int = 0
    step_tokens: int = 0
    decode_steps: int = 0
    running_sum: float = 0.0  # of sequences over steps
    allocated_sum: float = 0.0  # of KV slots over steps
    live_sum: float = 0.0
    read_tokens: float = 0.0  # KV positions that decodes had to read
    weight_reads: int = 0


class Engine:
    """Serves traces; with ``overlap`` the next step is planned while the last one runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        overlap: bool = False,
        stream_interval: int = 1,
        eos: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.scheduler, self.runner = scheduler, runner
        self._overlap, self._interval, self._eos = overlap, stream_interval, eos
        self._clock = clock
        self._held: dict[int, int] = {}  # tokens that wait for their message
        self._after_step: Callable[[], None] = lambda: None

    def after_step(self, call: Callable[[], None]) -> None:
        """Call this after every step."""
        self._after_step = call

    def serve(
        self, requests: Items[Request], *, concurrency: int | None = None, speed: float = 1.0
    ) -> Served:
        """Serve all of them: as they arrive (``speed`` times as fast), or so many at a time."""
        todo = deque(sorted(requests, key=lambda r: r.arrival))
        lines = {r.number: Timeline(request=r, sent=0.0) for r in requests}
        served = Served(timelines=[lines[r.number] for r in requests])
        self._held = {}
        started, begun = time.time(), self._clock()
        last: tuple[Plan, Any] | None = None
        unfinished = 0
        while todo or last or self.scheduler.has_work:
            now = self._clock() - begun
            while todo and (
                unfinished < concurrency if concurrency else todo[0].arrival / speed <= now
            ):
                request = todo.popleft()
                lines[request.number].sent = now if concurrency else request.arrival / speed
                self._add(request, lines[request.number].sent)
                unfinished += 1
            plan = self.scheduler.plan(now)
            ticket = self.runner.launch(plan) if plan is not None else None
            if plan is not None:
                self._count(served, plan)
            if last is not None:
                unfinished -= self._deliver(*last, lines, begun)
                last = None
            if plan is None:
                if not self.scheduler.running:
                    self._wait(todo, speed, begun, bool(concurrency))
            elif self._overlap:
                last = (plan, ticket)
            else:
                unfinished -= self._deliver(plan, ticket, lines, begun)
            self._after_step()
        served.wall_seconds = self._clock() - begun
        served.window = (started, time.time())
        return served

    def _add(self, request: Request, arrival: float) -> None:
        self.scheduler.add(
            Sequence(
                number=request.number,
                prompt=request.prompt,
                max_new=request.output_tokens,
                priority=request.priority,
                arrival=arrival,
                eos=self._eos,
            )
        )

    def _deliver(self, plan: Plan, ticket: Any, lines: dict[int, Timeline], begun: float) -> int:
        """Hand out what a step sampled; how many requests are done."""
        tokens = self.runner.collect(ticket)
        news = self.scheduler.collect(plan, tokens)
        now = self._clock() - begun
        done = 0
        for sequence, fresh in news:
            line = lines[sequence.number]
            held = self._held.get(sequence.number, 0) + len(fresh)
            # The first token goes out at once, whatever the interval.
            if held >= self._interval or sequence.finished or not line.messages:
                line.messages.append((now, held))
                held = 0
            self._held[sequence.number] = held
            if sequence.finished:
                line.tokens = tuple(sequence.output)
                done += 1
        return done

    def _count(self, served: Served, plan: Plan) -> None:
        blocks = self.scheduler.blocks
        served.steps += plan.steps
        served.step_tokens += plan.tokens
        served.weight_reads += plan.steps if plan.decodes or plan.prefills else 0
        served.decode_steps += plan.steps if plan.decodes else 0
        served.running_sum += plan.steps * len(self.scheduler.running)
        served.allocated_sum += plan.steps * blocks.allocated_slots
        served.live_sum += plan.steps * blocks.live_tokens
        served.read_tokens += plan.steps * sum(w.first + w.count for w in plan.decodes)

    def _wait(self, todo: deque[Request], speed: float, begun: float, closed: bool) -> None:
        """Nothing can run: until the next request comes, or a wait for more of them is over."""
        times = [todo[0].arrival / speed] if todo and not closed else []
        wake = self.scheduler.wake_at()
        if wake is not None:
            times.append(wake)
        if not times:
            return
        pause = min(times) - (self._clock() - begun)
        if pause > 0:
            time.sleep(min(pause, 0.05) if pause > _NAP_SECONDS else 0)
