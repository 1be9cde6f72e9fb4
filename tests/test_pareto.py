"""Fronts, against the definition itself."""

from hypothesis import given
from hypothesis import strategies as st

from autotune.pareto import dominates, front

points = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=30)


@given(points)
def test_the_front_is_exactly_what_nothing_dominates(points):
    by_definition = [i for i, p in enumerate(points) if not any(dominates(q, p) for q in points)]
    assert front(points) == by_definition


def test_equal_points_stay_together_on_the_front():
    assert front([(1, 2), (1, 2), (0, 9), (2, 2)]) == [0, 1, 2]
