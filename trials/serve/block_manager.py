"""Who owns which block of the KV cache, which blocks can be found again, and what is wasted."""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass

from trials.serve.eviction import POLICIES, Eviction
from trials.serve.sequence import Sequence

_ROOT = b""  # the hash before the first block


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One block of KV to be moved before the next step runs."""

    source: int
    target: int
    to_host: bool


class BlockManager:
    """Blocks of ``size`` tokens, counted, and with prefix caching found again by their content.

    A block's content is known by a hash that chains over all blocks before it. ``reserve_whole``
    makes it a contiguous cache: one block, of a whole sequence, per sequence. With ``host_blocks``
    there is a second tier in host memory: for sequences that are swapped out, and for cached blocks
    that the device has no more room for.
    """

    def __init__(
        self,
        *,
        blocks: int,
        size: int,
        prefix_caching: bool = False,
        eviction: str = "lru",
        host_blocks: int = 0,
        offload: bool = False,
    ) -> None:
        self.size, self.total = size, blocks
        self.prefix_caching = prefix_caching
        self._free: deque[int] = deque(range(blocks))
        self._cached: Eviction = POLICIES[eviction]()
        self._users = [0] * blocks
        self._hash: list[bytes | None] = [None] * blocks
        self._hits = [0] * blocks
        self._by_hash: dict[bytes, int] = {}
        self._host_free: deque[int] = deque(range(host_blocks))
        self._host_by_hash: dict[bytes, int] = {}  # in order of arrival, for eviction
        self._offload = offload and host_blocks > 0
        self.copies: list[Copy] = []  # to be done before the next step
        self.allocated_slots = 0  # of all running sequences, shared ones counted for each
        self.live_tokens = 0
        self.hit_tokens = 0
        self.asked_tokens = 0

    @property
    def free(self) -> int:
        """Blocks that can be had now, cached ones included."""
        return len(self._free) + len(self._cached)

    def needed(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.size)

    def match(self, sequence: Sequence) -> int:
        """Leading tokens whose KV is in a cache; at least one token is left to compute."""
        if not self.prefix_caching:
            return 0
        return len(self._matching(sequence)) * self.size

    def cost(self, sequence: Sequence, tokens: int) -> int:
        """How much less would be free if it were given room for so many tokens."""
        needed = self.needed(tokens)
        if not self.prefix_caching:
            return needed
        found = (self._by_hash.get(value) for value in self._matching(sequence))
        return needed - sum(block is not None and self._users[block] > 0 for block in found)

    def admit(self, sequence: Sequence) -> None:
        """Take over cached blocks of its prefix; it starts behind them."""
        found = self._matching(sequence) if self.prefix_caching else []
        self.asked_tokens += sequence.known
        for value in found:
            block = self._by_hash.get(value)
            if block is None:
                block = self._back_from_host(value)
                if block is None:
                    break
            else:
                self._hits[block] += 1
                self._use(block)
            sequence.blocks.append(block)
        start = len(sequence.blocks) * self.size
        sequence.computed = sequence.cached = start
        self.hit_tokens += start
        self.allocated_slots += start
        self.live_tokens += start

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give it blocks for so many tokens; False, and nothing changed, when there are too few."""
        missing = self.needed(tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        if missing > self.free:
            return False
        for _ in range(missing):
            sequence.blocks.append(self._take())
        self.allocated_slots += missing * self.size
        return True

    def advance(self, sequence: Sequence, tokens: int) -> None:
        """A step that computes its next ``tokens`` was planned; negative takes some back."""
        sequence.computed += tokens
        self.live_tokens += tokens

    def commit(self, sequence: Sequence) -> None:
        """Let others find its full blocks; their KV is computed and their tokens are known."""
        if not self.prefix_caching:
            return
        full = min(sequence.computed, sequence.known) // self.size
        for index in range(len(sequence.hashes), full):
            value = self._chain(sequence, index)
            sequence.hashes.append(value)
        for index in range(sequence.committed, full):
            block, value = sequence.blocks[index], sequence.hashes[index]
            if self._hash[block] is None and value not in self._by_hash:
                self._hash[block] = value
                self._by_hash[value] = block
                self._hits[block] = 0
        sequence.committed = max(sequence.committed, full)

    def release(self, sequence: Sequence) -> None:
        """It needs its blocks no more. Its last ones become free first: a prefix outlives them."""
        self.allocated_slots -= len(sequence.blocks) * self.size
        self.live_tokens -= sequence.computed
        for block in reversed(sequence.blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if self._hash[block] is None:
                self._free.append(block)
            else:
                self._cached.add(block, self._hits[block])
        sequence.blocks = []
        sequence.computed = sequence.committed = 0

    def can_swap_out(self, sequence: Sequence) -> bool:
        """Whether the host tier has room for it."""
        return len(self._host_free) + self._offloaded >= len(sequence.blocks)

    def swap_out(self, sequence: Sequence) -> None:
        """Copy its blocks to the host and give them up."""
        count = self.needed(sequence.computed)
        targets = [self._host_slot() for _ in range(count)]
        for source, target in zip(sequence.blocks[:count], targets, strict=True):
            self.copies.append(Copy(source=source, target=target, to_host=True))
        computed = sequence.computed
        self.release(sequence)
        sequence.swapped, sequence.parked = tuple(targets), computed

    def swap_in(self, sequence: Sequence) -> bool:
        """Bring its blocks back; False when there is no room."""
        if len(sequence.swapped) > self.free:
            return False
        self.grow(sequence, len(sequence.swapped) * self.size)
        for source, target in zip(sequence.swapped, sequence.blocks, strict=True):
            self.copies.append(Copy(source=source, target=target, to_host=False))
        self._host_free.extend(sequence.swapped)
        sequence.swapped = ()
        self.advance(sequence, sequence.parked)
        return True

    def clear_cache(self) -> None:
        """Forget what could be found again; blocks in use stay."""
        while len(self._cached):
            self._free.append(self._forget(self._cached.pop()))
        self._host_free.extend(self._host_by_hash.values())
        self._host_by_hash.clear()

    def take_copies(self) -> Items[Copy]:
        """What must be moved before the next step; the list starts anew."""
        found, self.copies = self.copies, []
        return found

    @property
    def _offloaded(self) -> int:
        return len(self._host_by_hash)

    def _use(self, block: int) -> None:
        if not self._users[block]:
            self._cached.remove(block)
        self._users[block] += 1

    def _take(self) -> int:
        """A block of one's own."""
        if self._free:
            block = self._free.popleft()
        else:
            block = self._cached.pop()
            self._keep_on_host(block)
            self._forget(block)
        self._users[block] = 1
        return block

    def _forget(self, block: int) -> int:
        value = self._hash[block]
        if value is not None:
            del self._by_hash[value]
            self._hash[block] = None
        return block

    def _keep_on_host(self, block: int) -> None:
        value = self._hash[block]
        if not self._offload or value is None or value in self._host_by_hash:
            return
        if not self._host_free and not self._host_by_hash:
            return  # all of it holds sequences that are swapped out
        target = self._host_slot()
        self._host_by_hash[value] = target
        self.copies.append(Copy(source=block, target=target, to_host=True))

    def _host_slot(self) -> int:
        if self._host_free:
            return self._host_free.popleft()
        return self._host_by_hash.pop(next(iter(self._host_by_hash)))

    def _back_from_host(self, value: bytes) -> int | None:
        if not self.free:
            return None
        source = self._host_by_hash[value]
        block = self._take()
        if self._host_by_hash.get(value) != source:  # its slot went to the block just evicted
            self._users[block] = 0
            self._free.append(block)
            return None
        self.copies.append(Copy(source=source, target=block, to_host=False))
        self._hash[block], self._hits[block] = value, 1
        self._by_hash[value] = block
        return block

    def _matching(self, sequence: Sequence) -> list[bytes]:
        """Hashes of leading blocks that are cached, on the device or the host."""
        found: list[bytes] = []
        for index in range((sequence.known - 1) // self.size):
            if len(sequence.hashes) <= index:
                sequence.hashes.append(self._chain(sequence, index))
            value = sequence.hashes[index]
            if value not in self._by_hash and value not in self._host_by_hash:
                break
            found.append(value)
        return found

    def _chain(self, sequence: Sequence, index: int) -> bytes:
        before = sequence.hashes[index - 1] if index else _ROOT
        tokens = array("q", sequence.tokens(index * self.size, self.size))
        return hashlib.blake2b(before + tokens.tobytes(), digest_size=16).digest()
