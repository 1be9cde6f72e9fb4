"""Which cached block goes first when room is needed: four policies behind one protocol."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Protocol

PROTECTED_SHARE = 0.8  # of a segmented cache, for blocks that were used again


class Eviction(Protocol):
    """Blocks that nobody uses but whose content is kept."""

    def add(self, block: int, hits: int) -> None:
        """A block has become free; it was found again ``hits`` times so far."""

    def remove(self, block: int) -> None:
        """It is in use again."""

    def pop(self) -> int:
        """The block to give up; KeyError when there is none."""

    def __len__(self) -> int:
        """How many there are."""


class LeastRecentlyUsed:
    """The one that has been free for longest."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, block: int, hits: int) -> None:  # noqa: ARG002
        self._blocks[block] = None

    def remove(self, block: int) -> None:
        del self._blocks[block]

    def pop(self) -> int:
        return self._blocks.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._blocks)


class _Ranked:
    """The one of lowest rank; stale heap entries are passed over."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []
        self._live: dict[int, tuple[int, int, int]] = {}
        self._clock = 0

    def _push(self, block: int, rank: int) -> None:
        self._clock += 1
        entry = (rank, self._clock, block)
        self._live[block] = entry
        heapq.heappush(self._heap, entry)

    def remove(self, block: int) -> None:
        del self._live[block]

    def pop(self) -> int:
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._live.get(entry[2]) == entry:
                del self._live[entry[2]]
                return entry[2]
        raise KeyError("no block is free")

    def __len__(self) -> int:
        return len(self._live)


class LeastFrequentlyUsed(_Ranked):
    """The one that was found again least often; of equals, the one that has been free longest."""

    def add(self, block: int, hits: int) -> None:
        self._push(block, hits)


class FirstIn(_Ranked):
    """The one whose content was made first, however often it was used since."""

    def __init__(self) -> None:
        super().__init__()
        self._born: dict[int, int] = {}

    def add(self, block: int, hits: int) -> None:
        if hits == 0:  # new content; a block found again keeps its age
            self._born[block] = self._clock
        self._push(block, self._born.setdefault(block, self._clock))


class SegmentedLeastRecentlyUsed:
    """Blocks that were found again are protected from a stream of blocks that never are."""

    def __init__(self) -> None:
        self._trial: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()

    def add(self, block: int, hits: int) -> None:
        if hits == 0:
            self._trial[block] = None
            return
        self._protected[block] = None
        while len(self._protected) > max(1, PROTECTED_SHARE * len(self)):
            self._trial[self._protected.popitem(last=False)[0]] = None

    def remove(self, block: int) -> None:
        del (self._trial if block in self._trial else self._protected)[block]

    def pop(self) -> int:
        return (self._trial or self._protected).popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._trial) + len(self._protected)


POLICIES: dict[str, type[Eviction]] = {
    "lru": LeastRecentlyUsed,
    "lfu": LeastFrequentlyUsed,
    "slru": SegmentedLeastRecentlyUsed,
    "fifo": FirstIn,
}
