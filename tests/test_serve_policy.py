"""Scheduler, block manager, drafts and traces by themselves, against a runner made of lists that
samples from what the blocks really hold: any block mixed up changes the answer."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trials.errors import Unsupported
from trials.serve import drafting, eviction, figures, trace
from trials.serve.block_manager import BlockManager
from trials.serve.engine import Engine, Served
from trials.serve.plan import Plan, Policy, RequestTooLong
from trials.serve.scheduler import Scheduler
from trials.serve.sequence import Sequence as Seq
from trials.serve.trace import Request

VOCABULARY = 13


def following(tokens: Sequence[int]) -> int:
    """The one token that comes after these."""
    return int(hashlib.md5(bytes(tokens)).hexdigest(), 16) % VOCABULARY


def expected(request: Request, eos: int | None = None) -> tuple[int, ...]:
    """What a decoder without any cache says."""
    tokens = list(request.prompt)
    for _ in range(request.output_tokens):
        tokens.append(following(tokens))
        if tokens[-1] == eos:
            break
    return tuple(tokens[len(request.prompt) :])


class ListRunner:
    """A device whose KV is the tokens themselves."""

    def __init__(self, blocks: int, size: int, host: int = 0) -> None:
        self.size = size
        self.device = [[-1] * size for _ in range(blocks)]
        self.host = [[-1] * size for _ in range(host)]
        self.last: dict[int, int] = {}
        self.computed = 0

    def launch(self, plan: Plan) -> list[list[int]]:
        for copy in plan.copies:
            if copy.to_host:
                self.host[copy.target] = list(self.device[copy.source])
            else:
                self.device[copy.target] = list(self.host[copy.source])
        found = []
        for work in plan.decodes:
            row, table = work.sequence.row, work.sequence.blocks
            if work.first < work.sequence.known:
                self.last[row] = work.sequence.token(work.first)
            if work.drafts:
                tokens = [self.last[row], *work.drafts]
                found.append([self._step(table, work.first + i, t) for i, t in enumerate(tokens)])
                right = 0
                while right < len(work.drafts) and work.drafts[right] == found[-1][right]:
                    right += 1
                self.last[row] = found[-1][right]
                continue
            said = []
            for step in range(plan.steps):
                self.last[row] = self._step(table, work.first + step, self.last[row])
                said.append(self.last[row])
            found.append(said)
        for work in plan.prefills:
            tokens = work.sequence.tokens(work.first, work.count)
            answers = [
                self._step(work.sequence.blocks, work.first + i, t) for i, t in enumerate(tokens)
            ]
            if work.samples:
                self.last[work.sequence.row] = answers[-1]
                found.append(answers[-1:])
        return found

    def collect(self, ticket: list[list[int]]) -> list[list[int]]:
        return ticket

    def _step(self, table: list[int], position: int, token: int) -> int:
        self.computed += 1
        self.device[table[position // self.size]][position % self.size] = token
        held = [self.device[table[p // self.size]][p % self.size] for p in range(position + 1)]
        assert -1 not in held, "KV that nobody wrote"
        return following(held)


def requests(count: int, seed: int, shared: int = 0, repeat: bool = False) -> list[Request]:
    rng = random.Random(seed)
    prefix = [rng.randrange(VOCABULARY) for _ in range(shared)]
    made = []
    for number in range(count):
        own = [rng.randrange(2 if repeat else VOCABULARY) for _ in range(rng.randint(1, 20))]
        made.append(
            Request(
                number=number,
                arrival=0.0,
                prompt=tuple(prefix + own),
                output_tokens=rng.randint(1, 15),
                priority=rng.randrange(3),
            )
        )
    return made


def serve(
    asked: list[Request],
    policy: Policy,
    *,
    blocks: int = 200,
    size: int = 4,
    overlap: bool = False,
    eos: int | None = None,
    interval: int = 1,
    **manager: Any,
) -> tuple[Served, Engine, ListRunner]:
    drafter = drafting.ngram(1, 3) if policy.draft_tokens else None
    kept = BlockManager(blocks=blocks, size=size, **manager)
    scheduler = Scheduler(policy, kept, drafter)
    runner = ListRunner(blocks, size, manager.get("host_blocks", 0))
    engine = Engine(scheduler, runner, overlap=overlap, eos=eos, stream_interval=interval)
    served = engine.serve(asked)
    kept.clear_cache()
    assert kept.free == blocks, "blocks leaked"
    assert (kept.allocated_slots, kept.live_tokens) == (0, 0)
    return served, engine, runner


def assert_right(served: Served, eos: int | None = None) -> None:
    for line in served.timelines:
        assert line.tokens == expected(line.request, eos), f"request {line.request.number}"
        assert line.received == len(line.tokens)


POLICIES = {
    "plain": Policy(max_num_seqs=4, max_num_batched_tokens=16, prefill_chunk_tokens=16),
    "one at a time": Policy(max_num_seqs=1, max_num_batched_tokens=8, prefill_chunk_tokens=8),
    "small chunks": Policy(max_num_seqs=4, max_num_batched_tokens=8, prefill_chunk_tokens=3),
    "whole prompts": Policy(max_num_seqs=4, max_num_batched_tokens=40, chunked_prefill=False),
    "phases apart": Policy(max_num_seqs=4, max_num_batched_tokens=16, mix_prefill_decode=False),
    "rare prefills": Policy(max_num_seqs=4, max_num_batched_tokens=16, prefill_interval=5),
    "shortest": Policy(max_num_seqs=3, max_num_batched_tokens=16, order="shortest_prompt"),
    "prefix": Policy(max_num_seqs=3, max_num_batched_tokens=16, order="longest_prefix"),
    "priority": Policy(max_num_seqs=3, max_num_batched_tokens=16, order="priority"),
    "static": Policy(max_num_seqs=4, max_num_batched_tokens=16, batching="static"),
    "many steps": Policy(max_num_seqs=4, max_num_batched_tokens=16, multi_step=5),
    "optimist": Policy(max_num_seqs=8, max_num_batched_tokens=16, new_token_ratio=0.0, watermark=0),
    "swap": Policy(
        max_num_seqs=8, max_num_batched_tokens=16, new_token_ratio=0, watermark=0, preemption="swap"
    ),
    "drafts": Policy(max_num_seqs=4, max_num_batched_tokens=16, draft_tokens=3),
    "waits": Policy(max_num_seqs=4, max_num_batched_tokens=16, batch_wait_ms=5),
}


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])
@pytest.mark.parametrize("blocks", [200, 14], ids=["roomy", "tight"])
@pytest.mark.parametrize("prefix_caching", [False, True], ids=["no cache", "cached"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_policy_says_what_a_plain_decoder_says(
    policy: Policy, prefix_caching: bool, blocks: int, overlap: bool
) -> None:
    for seed in range(4):
        asked = requests(12, seed, shared=6 if seed % 2 else 0, repeat=seed > 1)
        served, _, _ = serve(
            asked,
            policy,
            blocks=blocks,
            overlap=overlap,
            prefix_caching=prefix_caching,
            host_blocks=16,
            offload=seed == 3,
        )
        assert_right(served)


@pytest.mark.parametrize("kind", eviction.POLICIES)
@pytest.mark.parametrize("offload", [False, True])
def test_every_eviction_policy_keeps_answers_right_when_the_cache_overflows(
    kind: str, offload: bool
) -> None:
    asked = [r for seed in range(5) for r in requests(8, seed % 2, shared=8)]
    asked = [Request(number=i, arrival=0, prompt=r.prompt, output_tokens=r.output_tokens)
             for i, r in enumerate(asked)]  # fmt: skip
    served, engine, _ = serve(
        asked,
        Policy(max_num_seqs=2, max_num_batched_tokens=16),
        blocks=24,
        prefix_caching=True,
        eviction=kind,
        host_blocks=12,
        offload=offload,
    )
    assert_right(served)
    assert engine.scheduler.blocks.hit_tokens > 0


def test_a_tight_cache_preempts_and_a_roomy_one_does_not() -> None:
    asked = requests(12, 0)
    policy = POLICIES["optimist"]
    tight = serve(asked, policy, blocks=14)[1].scheduler.preemptions
    roomy = serve(asked, policy, blocks=200)[1].scheduler.preemptions
    assert tight > 0
    assert roomy == 0


def test_reserving_for_tokens_to_come_avoids_preemption() -> None:
    asked = requests(12, 0)
    careful = Policy(max_num_seqs=8, max_num_batched_tokens=16, new_token_ratio=1.0)
    assert serve(asked, careful, blocks=14)[1].scheduler.preemptions == 0


def test_swapping_computes_nothing_twice_and_recomputing_does() -> None:
    asked = requests(12, 0)
    once = sum(len(r.prompt) + r.output_tokens - 1 for r in asked)
    swapped = serve(asked, POLICIES["swap"], blocks=14, host_blocks=99)[2].computed
    recomputed = serve(asked, POLICIES["optimist"], blocks=14)[2].computed
    assert swapped == once < recomputed


def test_a_shared_prefix_is_computed_once() -> None:
    asked = requests(6, 1, shared=40)
    policy = Policy(max_num_seqs=1, max_num_batched_tokens=64)
    plain = serve(asked, policy)[2].computed
    cached = serve(asked, policy, prefix_caching=True)[2].computed
    assert plain - cached == 5 * 40


def test_drafts_that_come_true_save_steps_and_wrong_ones_cost_no_answer() -> None:
    class Foreseen:
        def __call__(self, sequence: Seq, most: int) -> tuple[int, ...]:
            tokens = list(sequence.tokens(0, sequence.known))
            for _ in range(most):
                tokens.append(following(tokens))
            tokens[-1] = (tokens[-1] + 1) % VOCABULARY  # the last guess is wrong
            return tuple(tokens[sequence.known :])

    asked = [Request(number=0, arrival=0, prompt=(1, 2, 3), output_tokens=12)]
    policy = Policy(max_num_seqs=2, max_num_batched_tokens=16, draft_tokens=4)
    scheduler = Scheduler(policy, BlockManager(blocks=20, size=4), Foreseen())
    served = Engine(scheduler, ListRunner(20, 4)).serve(asked)
    assert_right(served)
    # After the first token 4 + 4 (three of four guesses, and the one after them), then 2, then 1.
    assert served.steps == 1 + 4
    assert 0 < scheduler.accepted < scheduler.drafted


def test_an_end_token_ends_the_answer_in_every_mode() -> None:
    asked = requests(12, 3)
    for overlap, name in itertools.product((False, True), ("plain", "many steps", "drafts")):
        served, _, _ = serve(asked, POLICIES[name], overlap=overlap, eos=5)
        assert_right(served, eos=5)
        assert any(len(t.tokens) < t.request.output_tokens for t in served.timelines)


def test_static_batches_take_more_steps_than_continuous_ones() -> None:
    asked = requests(20, 2)
    static = serve(asked, POLICIES["static"])[0].steps
    continuous = serve(asked, POLICIES["plain"])[0].steps
    assert static > 1.2 * continuous


def test_a_contiguous_cache_wastes_more_than_a_paged_one() -> None:
    asked = requests(20, 2)
    policy = Policy(max_num_seqs=8, max_num_batched_tokens=16)
    paged = serve(asked, policy, blocks=36, size=4)[0]
    whole = serve(asked, policy, blocks=4, size=36)[0]
    assert_right(whole)
    waste = [
        figures.metrics(s, {}, max_num_seqs=8, preemptions=0)[0]["kv_cache_waste_fraction"]
        for s in (paged, whole)
    ]
    assert waste[0] is not None
    assert waste[1] is not None
    assert waste[0] < 0.2 < waste[1]
    assert paged.steps < whole.steps  # in the same memory more sequences run at a time


def test_chunks_bound_what_a_step_computes() -> None:
    class Watched(ListRunner):
        most = 0

        def launch(self, plan: Plan) -> list[list[int]]:
            self.most = max(self.most, plan.tokens)
            return super().launch(plan)

    asked = [Request(number=i, arrival=0, prompt=(1,) * 50, output_tokens=4) for i in range(6)]
    for budget in (8, 64):
        policy = Policy(max_num_seqs=4, max_num_batched_tokens=budget, prefill_chunk_tokens=budget)
        runner = Watched(200, 4)
        Engine(Scheduler(policy, BlockManager(blocks=200, size=4)), runner).serve(asked)
        assert runner.most == budget


def test_messages_hold_as_many_tokens_as_the_interval_but_the_first_goes_out_at_once() -> None:
    asked = [Request(number=0, arrival=0, prompt=(1, 2), output_tokens=9)]
    served, _, _ = serve(asked, POLICIES["plain"], interval=4)
    assert [count for _, count in served.timelines[0].messages] == [1, 4, 4]


def test_a_request_that_can_never_fit_is_refused_by_name() -> None:
    scheduler = Scheduler(POLICIES["plain"], BlockManager(blocks=4, size=4))
    with pytest.raises(RequestTooLong, match=r"10 \+ 7 tokens needs 5 blocks of 4"):
        scheduler.add(Seq(number=0, prompt=(1,) * 10, max_new=7))
    whole = Scheduler(POLICIES["whole prompts"], BlockManager(blocks=40, size=4))
    with pytest.raises(RequestTooLong, match=r"chunked_prefill"):
        whole.add(Seq(number=0, prompt=(1,) * 50, max_new=1))


def test_urgent_requests_come_first() -> None:
    asked = [
        Request(number=n, arrival=0, prompt=(n,), output_tokens=5, priority=3 - n) for n in range(4)
    ]
    policy = Policy(max_num_seqs=1, max_num_batched_tokens=8, order="priority")
    served, _, _ = serve(asked, policy)
    firsts = [t.messages[0][0] for t in served.timelines]
    assert firsts == sorted(firsts, reverse=True)


class Ticks:
    """A clock that moves a millisecond each time it is read."""

    def __init__(self) -> None:
        self._ticks: Iterator[int] = itertools.count()

    def __call__(self) -> float:
        return next(self._ticks) / 1000


def test_closed_loops_keep_so_many_requests_in_flight() -> None:
    asked = requests(9, 1)
    scheduler = Scheduler(POLICIES["plain"], BlockManager(blocks=200, size=4))
    served = Engine(scheduler, ListRunner(200, 4), clock=Ticks()).serve(asked, concurrency=2)
    assert_right(served)
    spans = [(t.sent, t.messages[-1][0]) for t in served.timelines]
    for at in (span[0] for span in spans):
        assert sum(sent <= at < end for sent, end in spans) <= 2


def test_arrivals_are_awaited_and_latency_counts_from_them() -> None:
    asked = [Request(number=n, arrival=n * 0.05, prompt=(1, 2), output_tokens=2) for n in range(3)]
    scheduler = Scheduler(POLICIES["plain"], BlockManager(blocks=20, size=4))
    served = Engine(scheduler, ListRunner(20, 4)).serve(asked)
    assert served.wall_seconds >= 0.1
    assert all(t.messages[0][0] >= t.request.arrival for t in served.timelines)


def test_traces_repeat_by_seed_and_differ_between_seeds() -> None:
    job = {"requests": 20, "distribution": "lognormal", "mode": "rate", "trace_seed": 1}
    assert trace.make(job, 50) == trace.make(job, 50)
    other = trace.make({**job, "trace_seed": 2}, 50)
    assert [len(r.prompt) for r in trace.make(job, 50).requests] != [
        len(r.prompt) for r in other.requests
    ]
    assert trace.make(job, 50).requests[0].prompt != other.requests[0].prompt


@pytest.mark.parametrize("distribution", ["lognormal", "uniform", "fixed"])
def test_lengths_have_the_mean_that_was_asked_for(distribution: str) -> None:
    job = {"requests": 4000, "prompt_tokens": 100, "output_tokens": 7, "distribution": distribution}
    made = trace.make(job, 9).requests
    assert sum(len(r.prompt) for r in made) / 4000 == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("arrival", trace.ARRIVALS)
def test_arrivals_have_the_rate_that_was_asked_for(arrival: str) -> None:
    job = {"requests": 8000, "prompt_tokens": 1, "mode": "rate", "rate": 10.0, "arrival": arrival}
    times = [r.arrival for r in trace.make(job, 9).requests]
    assert times == sorted(times)
    assert len(times) / times[-1] == pytest.approx(10.0, rel=0.1)


def test_a_trace_file_says_everything(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows: list[dict[str, Any]] = [
        {"prompt_ids": [3, 4, 5], "output_tokens": 2, "arrival_seconds": 0.5, "priority": 1},
        {"prompt_tokens": 6, "output_tokens": 1},
    ]
    file.write_text("\n".join(json.dumps(r) for r in rows))
    first, second = trace.make({"trace_file": str(file)}, 50).requests
    assert (first.prompt, first.arrival, first.priority) == ((3, 4, 5), 0.5, 1)
    assert len(second.prompt) == 6
    file.write_text('{"prompt_tokens": 6}')
    with pytest.raises(Unsupported, match=r"trace\.jsonl:1: not a request"):
        trace.make({"trace_file": str(file)}, 50)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"request": 3}, "workload has no request"),
        ({"mode": "often"}, "offline, concurrency, rate"),
        ({"mode": "rate", "rate": 0}, "above 0"),
        ({"trace_file": "/nowhere/x"}, "No such file"),
    ],
)
def test_a_workload_that_means_nothing_is_refused(job: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        trace.make(job, 50)


def test_nothing_served_gives_undefined_figures_with_reasons_and_no_crash() -> None:
    scheduler = Scheduler(POLICIES["plain"], BlockManager(blocks=20, size=4))
    empty = Engine(scheduler, ListRunner(20, 4)).serve([])
    found, why = figures.metrics(empty, {}, max_num_seqs=4, preemptions=0)
    assert found["output_tokens_per_second"] is None
    assert found["request_latency_ms_p99"] is None
    assert "no request" in why[0]
    no_time = Engine(scheduler, ListRunner(20, 4), clock=lambda: 0.0).serve(requests(2, 1))
    found, why = figures.metrics(no_time, {}, max_num_seqs=4, preemptions=0)
    assert found["requests_per_second"] is None
    assert "no time passed" in why[0]


def test_one_token_has_no_gap_but_a_latency() -> None:
    asked = [Request(number=0, arrival=0, prompt=(1, 2), output_tokens=1)]
    scheduler = Scheduler(POLICIES["plain"], BlockManager(blocks=20, size=4))
    served = Engine(scheduler, ListRunner(20, 4), clock=Ticks()).serve(asked)
    found, why = figures.metrics(served, {}, max_num_seqs=4, preemptions=0)
    assert found["inter_token_latency_ms_p50"] is None
    assert found["request_latency_ms_p50"] == found["time_to_first_token_ms_p50"]
    assert "inter-token latency is undefined" in why[0]


def test_goodput_counts_requests_within_every_limit() -> None:
    asked = [Request(number=n, arrival=0, prompt=(1,), output_tokens=5) for n in range(8)]
    policy = Policy(max_num_seqs=1, max_num_batched_tokens=8)
    scheduler = Scheduler(policy, BlockManager(blocks=20, size=4))
    served = Engine(scheduler, ListRunner(20, 4), clock=Ticks()).serve(asked)
    times = [figures.first_token_ms(t) or 0.0 for t in served.timelines]
    limit = {"goodput_time_to_first_token_ms": sorted(times)[3]}
    found, _ = figures.metrics(served, limit, max_num_seqs=1, preemptions=0)
    assert found["goodput_requests_per_second"] == pytest.approx(4 / served.wall_seconds)


def test_percentiles_interpolate() -> None:
    assert figures.percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert figures.percentile([], 99) is None


def test_policy_imports_no_torch() -> None:
    modules = "sequence, block_manager, eviction, plan, scheduler, drafting, trace, engine, figures"
    code = f"import sys; from trials.serve import {modules}; print('torch' in sys.modules)"
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
