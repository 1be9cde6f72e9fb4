"""Guesses at the next tokens from the request's own text: what followed the last time."""

from __future__ import annotations

from collections.abc import Callable

from trials.serve.sequence import Sequence

_WINDOW = 4096  # tokens back that are searched


def ngram(shortest: int, longest: int) -> Callable[[Sequence, int], tuple[int, ...]]:
    """A drafter that looks for the latest earlier place where the last tokens stood."""

    def draft(sequence: Sequence, most: int) -> tuple[int, ...]:
        first = max(0, sequence.known - _WINDOW)
        text = sequence.tokens(first, sequence.known - first)
        for size in range(min(longest, len(text) - 1), shortest - 1, -1):
            start = _latest(text, text[-size:])
            if start >= 0:
                return tuple(text[start + size : start + size + most])
        return ()

    return draft


def _latest(text: list[int], ending: list[int]) -> int:
    """Where the ending stood before, as late as possible; -1 when nowhere."""
    size, last = len(ending), ending[-1]
    for start in range(len(text) - size - 1, -1, -1):
        if text[start + size - 1] == last and text[start : start + size] == ending:
            return start
    return -1
