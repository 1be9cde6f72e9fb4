"""One request on its way through the engine: its tokens, its blocks, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """The state that scheduler and block manager share; only they and the engine write to it.

    Positions ``0 .. computed`` hold KV, or will once the steps that are already launched have run.
    ``inflight`` tokens are being sampled by such steps: they count, but their values are unknown.
    """

    number: int
    prompt: tuple[int, ...]
    max_new: int
    priority: int = 0
    arrival: float = 0.0
    eos: int | None = None
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of the full blocks, as far as known
    committed: int = 0  # blocks that others can find
    computed: int = 0
    inflight: int = 0
    row: int = -1  # place in the runner's tables while it runs
    finished: bool = False
    swapped: tuple[int, ...] = ()  # host blocks that hold its KV
    parked: int = 0  # tokens that these hold
    cached: int = 0  # prompt tokens whose KV was found, not computed
    admitted: int = -1  # running number of its last admission; higher is later
    preempted: int = 0

    @property
    def known(self) -> int:
        """Tokens whose values are known."""
        return len(self.prompt) + len(self.output)

    @property
    def length(self) -> int:
        """Tokens, those being sampled included."""
        return self.known + self.inflight

    @property
    def remaining(self) -> int:
        """Output tokens that no launched step will bring."""
        return self.max_new - len(self.output) - self.inflight

    @property
    def is_decoding(self) -> bool:
        """All but its last token are computed."""
        return self.length - self.computed == 1 and self.computed >= len(self.prompt)

    def token(self, position: int) -> int:
        """The known token at that position."""
        inside = position - len(self.prompt)
        return self.prompt[position] if inside < 0 else self.output[inside]

    def tokens(self, first: int, count: int) -> list[int]:
        """Known tokens from ``first`` on."""
        size = len(self.prompt)
        if first >= size:
            return self.output[first - size : first - size + count]
        found = list(self.prompt[first : first + count])
        return found + self.output[: count - len(found)]
