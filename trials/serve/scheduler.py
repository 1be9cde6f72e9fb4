"""What the next step computes: admission, chunks of prompts, decodes, drafts, preemption."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items

from trials.serve.block_manager import BlockManager
from trials.serve.plan import Plan, Policy, RequestTooLong, Work
from trials.serve.sequence import Sequence

_MOST_RANKED = 256  # waiting requests whose cached prefix is looked up before each step

Drafter = Callable[[Sequence, int], tuple[int, ...]]


class Scheduler:
    """Every unfinished request; ``plan`` and ``collect`` take turns, or overlap by one step."""

    def __init__(self, policy: Policy, blocks: BlockManager, draft: Drafter | None = None) -> None:
        self.policy, self.blocks = policy, blocks
        self._draft = draft
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.swapped: deque[Sequence] = deque()
        self._rows = list(range(policy.max_num_seqs))[::-1]
        self._admissions = 0
        self._since_prefill = policy.prefill_interval
        self.must_collect = False  # nothing can be planned before running steps are collected
        self.preemptions = 0
        self.drafted = self.accepted = 0

    def add(self, sequence: Sequence) -> None:
        """A request has arrived; RequestTooLong when it can never run."""
        most = self.blocks.needed(len(sequence.prompt) + sequence.max_new)
        if most > self.blocks.total:
            raise RequestTooLong(
                f"a request of {len(sequence.prompt)} + {sequence.max_new} tokens needs {most} "
                f"blocks of {self.blocks.size}, the KV cache has {self.blocks.total}"
            )
        room = self.policy.max_num_batched_tokens
        if not self.policy.chunked_prefill and len(sequence.prompt) > room:
            raise RequestTooLong(
                f"a prompt of {len(sequence.prompt)} tokens does not fit into a step of {room}; "
                "serve.chunked_prefill splits it"
            )
        self.waiting.append(sequence)

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.waiting or self.running or self.swapped)

    def wake_at(self) -> float | None:
        """When a wait for more requests is over, if that is all that holds the waiting back."""
        if not self.waiting or not self.policy.batch_wait_ms:
            return None
        return min(s.arrival for s in self.waiting) + self.policy.batch_wait_ms / 1e3

    def plan(self, now: float) -> Plan | None:
        """The next step, or None when there is nothing to do before something else happens."""
        self.must_collect = False
        decodes = self._decodes_with_room()
        if self.must_collect:
            return None
        prefills = self._prefills(decodes, now)
        if prefills and not self.policy.mix_prefill_decode:
            decodes = []
        self._since_prefill = 0 if prefills else self._since_prefill + 1
        copies = self.blocks.take_copies()
        if not decodes and not prefills:
            return Plan((), (), copies) if copies else None
        steps = self._steps(decodes) if not prefills else 1
        done = tuple(self._decode(s, drafts, steps) for s, drafts in decodes)
        return Plan(done, tuple(prefills), copies, steps)

    def collect(self, plan: Plan, tokens: Items[Items[int]]) -> list[tuple[Sequence, list[int]]]:
        """Take in what a step sampled, a list for each work that samples, decodes first.

        Returns each sequence with its new tokens; finished ones have left.
        """
        sampled = [w for w in (*plan.decodes, *plan.prefills) if w.samples]
        news = []
        for work, found in zip(sampled, tokens, strict=True):
            sequence = work.sequence
            sequence.inflight -= 1 if work.drafts else len(found)
            if sequence.finished:
                continue  # it met its end in the step before, which was still running
            fresh = self._verified(work, found) if work.drafts else list(found)
            fresh = fresh[: sequence.max_new - len(sequence.output)]
            if sequence.eos is not None and sequence.eos in fresh:
                fresh = fresh[: fresh.index(sequence.eos) + 1]
                sequence.finished = True
            sequence.output.extend(fresh)
            if len(sequence.output) >= sequence.max_new:
                sequence.finished = True
            self.blocks.commit(sequence)
            if sequence.finished:
                self._leave(sequence)
            news.append((sequence, fresh))
        return news

    # Decodes

    def _decodes_with_room(self) -> list[tuple[Sequence, tuple[int, ...]]]:
        """Sequences that can decode, each with its drafts, after preempting where room is short."""
        ready = [s for s in self.running if s.is_decoding and s.remaining > 0]
        ready = ready[: self.policy.max_num_batched_tokens]
        drafting = self._draft is not None and 0 < len(ready) <= self.policy.draft_max_batch
        found: list[tuple[Sequence, tuple[int, ...]]] = []
        budget = self.policy.max_num_batched_tokens - len(ready)
        steps = self._steps([(s, ()) for s in ready])
        for sequence in ready:
            if sequence.row < 0:
                continue  # preempted for one before it
            drafts = self._drafts(sequence, budget) if drafting else ()
            wanted = sequence.computed + max(1 + len(drafts), steps)
            while not self.blocks.grow(sequence, wanted):
                if drafts:
                    drafts, wanted = (), sequence.computed + 1
                    continue
                victim = self._victim()
                if victim.inflight or sequence.inflight:
                    self.must_collect = True
                    return []
                self._preempt(victim)
                if victim is sequence:
                    break
            if sequence.row >= 0:
                budget -= len(drafts)
                found.append((sequence, drafts))
        return [(s, d) for s, d in found if s.row >= 0]

    def _drafts(self, sequence: Sequence, budget: int) -> tuple[int, ...]:
        if sequence.inflight or self._draft is None:
            return ()
        most = min(self.policy.draft_tokens, sequence.remaining - 1, budget)
        return self._draft(sequence, most) if most > 0 else ()

    def _steps(self, decodes: Items[tuple[Sequence, tuple[int, ...]]]) -> int:
        """How often to decode before looking again; no further than any sequence has to go."""
        if self.policy.multi_step == 1 or not decodes or any(d for _, d in decodes):
            return 1
        return max(1, min(self.policy.multi_step, *(s.remaining for s, _ in decodes)))

    def _decode(self, sequence: Sequence, drafts: tuple[int, ...], steps: int) -> Work:
        work = Work(sequence, sequence.computed, 1 + len(drafts), drafts)
        self.blocks.advance(sequence, steps + len(drafts))
        sequence.inflight += steps
        self.drafted += len(drafts)
        return work

    def _verified(self, work: Work, found: Items[int]) -> list[int]:
        """The tokens that would have come one by one: up to the first that was guessed wrong."""
        right = 0
        while right < len(work.drafts) and work.drafts[right] == found[right]:
            right += 1
        self.accepted += right
        self.blocks.advance(work.sequence, right - len(work.drafts))
        return list(found[: right + 1])

    # Prompts

    def _prefills(self, decodes: list[tuple[Sequence, tuple[int, ...]]], now: float) -> list[Work]:
        policy = self.policy
        if decodes and self._since_prefill + 1 < policy.prefill_interval:
            return []
        budget = policy.max_num_batched_tokens
        if policy.chunked_prefill:
            if policy.mix_prefill_decode:
                budget -= sum(1 + len(drafts) for _, drafts in decodes)
            budget = min(budget, policy.prefill_chunk_tokens)
        works: list[Work] = []
        for sequence in self.running:
            if budget > 0 and sequence.known - sequence.computed > 0 and not sequence.is_decoding:
                budget -= self._chunk(sequence, budget, works)
        self._resume()
        to_come = sum(s.remaining for s in self.running)
        for sequence in self._candidates(now):
            to_come += sequence.remaining
            if not self._may_start(sequence, budget, to_come, bool(works)):
                break
            self._admit(sequence)
            if budget > 0:
                budget -= self._chunk(sequence, budget, works)
        return works

    def _chunk(self, sequence: Sequence, budget: int, works: list[Work]) -> int:
        """Plan its next tokens; how many there are."""
        left = sequence.known - sequence.computed
        count = min(left, budget)
        if count < left and not self.policy.chunked_prefill:
            if works:
                return 0
            count = left  # a preempted one has grown beyond a step: alone it may exceed it
        samples = count == left
        works.append(Work(sequence, sequence.computed, count, (), samples))
        self.blocks.advance(sequence, count)
        sequence.inflight += samples
        return count

    def _candidates(self, now: float) -> list[Sequence]:
        """Waiting requests in the order in which they may start."""
        policy = self.policy
        places = policy.max_num_seqs - len(self.running)
        if not self.waiting or self.swapped or places <= 0:
            return []
        if policy.batching == "static" and self.running:
            return []
        if policy.batch_wait_ms and len(self.waiting) < places:
            oldest = min(s.arrival for s in self.waiting)
            if (now - oldest) * 1e3 < policy.batch_wait_ms:
                return []
        ranked = list(self.waiting)
        if policy.order == "shortest_prompt":
            ranked.sort(key=lambda s: len(s.prompt))
        elif policy.order == "priority":
            ranked.sort(key=lambda s: s.priority)
        elif policy.order == "longest_prefix" and len(ranked) <= _MOST_RANKED:
            ranked.sort(key=lambda s: -self.blocks.match(s))
        return ranked[:places]

    def _may_start(self, sequence: Sequence, budget: int, to_come: int, busy: bool) -> bool:
        policy = self.policy
        if policy.batching == "continuous":
            if budget <= 0:
                return False
            uncached = sequence.known - self.blocks.match(sequence)
            if not policy.chunked_prefill and uncached > budget and busy:
                return False
        reserve = policy.new_token_ratio * to_come
        cost = self.blocks.cost(sequence, sequence.known + 1)
        if not self.running:
            return cost <= self.blocks.free  # alone it must be let in, or nothing ever is
        keep = policy.watermark * self.blocks.total + reserve / self.blocks.size
        if self.blocks.size >= sequence.known + sequence.max_new:
            keep = 0  # a whole sequence has one block, which it cannot outgrow
        return cost + keep <= self.blocks.free

    def _admit(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self.blocks.admit(sequence)
        self.blocks.grow(sequence, sequence.known)
        self._enter(sequence)

    def _enter(self, sequence: Sequence) -> None:
        sequence.row = self._rows.pop()
        self._admissions += 1
        sequence.admitted = self._admissions
        self.running.append(sequence)

    # Preemption

    def _resume(self) -> None:
        """Bring back swapped sequences, oldest first, while there is room to go on a little."""
        while self.swapped and len(self.running) < self.policy.max_num_seqs:
            sequence = self.swapped[0]
            needed = self.blocks.needed(sequence.known + 1)
            keep = self.policy.watermark * self.blocks.total if self.running else 0
            if needed + keep > self.blocks.free or not self.blocks.swap_in(sequence):
                return
            self.swapped.popleft()
            self.blocks.grow(sequence, sequence.known)
            self._enter(sequence)

    def _victim(self) -> Sequence:
        """Whoever came last, of the least urgent where urgency counts."""
        if self.policy.order == "priority":
            return max(self.running, key=lambda s: (s.priority, s.admitted))
        return max(self.running, key=lambda s: s.admitted)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        sequence.preempted += 1
        self._free_row(sequence)
        if self.policy.preemption == "swap" and self.blocks.can_swap_out(sequence):
            self.blocks.swap_out(sequence)
            self.swapped.append(sequence)
            return
        self.blocks.release(sequence)
        self.waiting.appendleft(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._free_row(sequence)
        self.blocks.release(sequence)

    def _free_row(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._rows.append(sequence.row)
        sequence.row = -1
