"""Edges on cycles, by hand and against a search from every edge."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_data.contracts.cycles import components, on_cycles


def test_by_hand():
    assert on_cycles([]) == []
    assert on_cycles([("a", "a")]) == [False]
    assert on_cycles([("a", "b"), ("b", "a")]) == [True, True]
    assert on_cycles([("a", "b"), ("b", "c"), ("a", "c")]) == [False] * 3  # an order
    assert on_cycles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("x", "a")]) == [True, True, True, False, False]
    # a bridge between two cycles lies on none
    assert on_cycles([(1, 2), (2, 1), (2, 3), (3, 4), (4, 3)]) == [True, True, False, True, True]


def test_depth_costs_no_recursion():
    chain = {n: [n + 1] for n in range(50_000)}
    assert len(set(components(chain).values())) == 50_001
    chain[50_000] = [0]
    assert len(set(components(chain).values())) == 1


def reaches(edges, start, end):
    seen, waiting = set(), [start]
    while waiting:
        node = waiting.pop()
        if node == end:
            return True
        if node not in seen:
            seen.add(node)
            waiting += [b for a, b in edges if a == node]
    return False


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14))
@settings(max_examples=300, deadline=None)
def test_an_edge_lies_on_a_cycle_where_its_end_leads_back(edges):
    assert on_cycles(edges) == [a != b and reaches(edges, b, a) for a, b in edges]
