"""Cycles of a directed graph: which of its edges lie on one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def components(graph: Mapping[Node, Sequence[Node]]) -> dict[Node, int]:
    """Return the strongly connected component of each node (Tarjan 1972), without recursion: graphs may be deep."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    found: dict[Node, int] = {}
    stack: list[Node] = []
    for start in graph:
        if start in index:
            continue
        index[start] = low[start] = len(index)
        stack.append(start)
        work = [(start, iter(graph[start]))]
        while work:
            node, following = work[-1]
            after = next((n for n in following if n not in found), None)
            if after is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    number = len(found)
                    while node not in found:
                        found[stack.pop()] = number
            elif after in index:
                low[node] = min(low[node], index[after])
            else:
                index[after] = low[after] = len(index)
                stack.append(after)
                work.append((after, iter(graph.get(after, ()))))
    return found


def on_cycles(edges: Iterable[tuple[Node, Node]]) -> list[bool]:
    """Return for each edge whether it lies on a cycle of at least two nodes; an edge from a node to itself does not."""
    listed = list(edges)
    graph: dict[Node, list[Node]] = {}
    for start, end in listed:
        graph.setdefault(start, []).append(end)
    of = components(graph)
    return [start != end and of[start] == of[end] for start, end in listed]
