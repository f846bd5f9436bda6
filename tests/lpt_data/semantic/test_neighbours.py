"""All pairs: those of a plain product in float64, by every way of searching, and scores to match."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lpt_data.semantic import neighbours, neighbours_gpu
from lpt_data.semantic.room import Matrix, Picked, Room
from lpt_data.spill import Spill
from manifests.errors import BadInputError


def clustered(count: int, dimension: int = 24, clusters: int = 40, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, dimension))
    vectors = centres[rng.integers(clusters, size=count)] + rng.normal(size=(count, dimension)) * 0.35
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def plainly(vectors: np.ndarray, floor: float, queries: int | None = None, within: bool = True) -> set[tuple[int, int]]:
    wide = vectors.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    cosine = wide @ wide.T
    first = len(vectors) if queries is None else queries
    found = {(int(a), int(b)) for a, b in zip(*np.nonzero(cosine >= floor), strict=True) if a < b and a < first}
    return found if within else {(a, b) for a, b in found if b >= first}


@pytest.mark.parametrize(("queries", "within"), [(None, True), (150, True), (150, False), (0, True)])
@pytest.mark.parametrize("block", [64, 4096])
def test_blocks_find_the_pairs_of_a_plain_product(
    monkeypatch: pytest.MonkeyPatch, queries: int | None, within: bool, block: int
) -> None:
    monkeypatch.setattr(neighbours, "_BLOCK", block)
    vectors = clustered(500)
    search = neighbours.all_pairs(vectors, 0.85, queries=queries, within=within)
    found = search.whole()
    pairs = list(zip(found.a.tolist(), found.b.tolist(), strict=True))
    assert set(pairs) == plainly(vectors, 0.85, queries, within)
    assert pairs == sorted(set(pairs))
    assert search.how["method"] == "exact"


@pytest.mark.parametrize(("queries", "within"), [(500, True), (150, True), (150, False)])
def test_the_blocks_of_a_gpu_find_the_same(monkeypatch: pytest.MonkeyPatch, queries: int, within: bool) -> None:
    """Run by torch on a CPU, in float16 as on the GPU: the cut into blocks and the diagonal are what is tested."""
    monkeypatch.setattr(neighbours_gpu, "_ROWS", 64)
    monkeypatch.setattr(neighbours_gpu, "_COLUMNS", 96)
    vectors = clustered(500)
    found = neighbours_gpu.blocks(vectors, 0.85 - neighbours.MARGIN, queries, within, device="cpu")
    a, b, score = (np.concatenate(column) for column in zip(*found, strict=True))
    np.testing.assert_allclose(score, neighbours.scores(vectors, a, b), rtol=0, atol=1e-14)
    keep = score >= 0.85
    assert set(zip(a[keep].tolist(), b[keep].tolist(), strict=True)) == plainly(vectors, 0.85, queries, within)


def test_an_index_is_used_beyond_the_limit_and_its_recall_is_measured() -> None:
    pytest.importorskip("faiss")
    vectors = clustered(4000, clusters=200)
    exact = neighbours.all_pairs(vectors, 0.85).whole()
    search = neighbours.all_pairs(vectors, 0.85, exact_limit=1000)
    found = search.whole()
    assert search.how["method"] == "ivf"
    true = set(zip(exact.a.tolist(), exact.b.tolist(), strict=True))
    ours = set(zip(found.a.tolist(), found.b.tolist(), strict=True))
    assert ours <= true
    told = search.how["recall"]
    assert told["queries"] == 1000
    assert told["recall"] == pytest.approx(len(ours) / len(true), abs=0.02)
    again = neighbours.all_pairs(vectors, 0.85, exact_limit=1000).whole()
    assert (again.a == found.a).all()
    assert (again.score == found.score).all()


def test_scores_are_cosines_of_what_is_stored() -> None:
    vectors = np.array([[1, 0], [3, 4], [0, 2], [0, 0]], np.float16)  # lengths are divided out
    a, b = np.array([0, 0, 1, 0, 1]), np.array([1, 2, 2, 3, 1])
    assert neighbours.scores(vectors, a, b).tolist() == [0.6, 0.0, 0.8, 0.0, 1.0]


def test_scores_do_not_depend_on_how_they_are_cut() -> None:
    vectors = clustered(300)
    a, b = np.triu_indices(300, 1)
    assert (neighbours.scores(vectors, a, b, 17) == neighbours.scores(vectors, a, b)).all()
    assert (neighbours.scores(vectors, b, a) == neighbours.scores(vectors, a, b)).all()


def test_too_many_pairs_are_an_error_and_not_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MOST_PAIRS", 100)
    with pytest.raises(BadInputError, match="more pairs") as error:
        neighbours.all_pairs(clustered(500), 0.5)
    assert "--floor" in error.value.next


def test_nothing_to_compare() -> None:
    for count in (0, 1):
        found = neighbours.all_pairs(np.ones((count, 4), np.float16), 0.5).whole()
        assert len(found.a) == 0


class Little:
    """A room of some bytes, whose claims are noted or refused."""

    def __init__(self, size: int, folder: Path, most: int = 1 << 40) -> None:
        self.asked: list[int] = []

        def claim(size: int, what: str, instead: str) -> None:
            self.asked.append(size)
            if size > most:
                raise BadInputError(what, seen=size, next=instead)

        self.room = Room(Spill(folder), lambda: size, claim)


def stored(vectors: np.ndarray, room: Room) -> Matrix:
    held = Matrix(len(vectors), room)
    order = np.array_split(np.random.default_rng(1).permutation(len(vectors)), 7)
    for part in map(np.sort, order):
        held.put(part, vectors[part])
    return held


@pytest.mark.parametrize("exact_limit", [None, 1000])
@pytest.mark.parametrize("size", [2000, 30_000, 400_000])
def test_any_room_gives_the_same_pairs_and_scores(tmp_path: Path, size: int, exact_limit: int | None) -> None:
    vectors = clustered(1500, clusters=6)
    expected = neighbours.all_pairs(vectors, 0.75, queries=1300, exact_limit=exact_limit)
    little = Little(size, tmp_path)
    held = stored(vectors, little.room)
    assert held.spilled == (size < 144_000)
    found = neighbours.all_pairs(held, 0.75, queries=1300, exact_limit=exact_limit, room=little.room)
    for ours, theirs in zip(found.whole(), expected.whole(), strict=True):
        assert (ours == theirs).all()
    assert found.how == expected.how
    assert len(little.asked) == (exact_limit is not None)
    assert little.room.spill.bytes > (72_000 if held.spilled else 0)  # of pairs, too


def test_an_index_that_does_not_fit_is_refused_with_what_does(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    with pytest.raises(BadInputError, match="an index of 500 vectors") as error:
        neighbours.all_pairs(clustered(500), 0.85, exact_limit=100, room=Little(10**6, tmp_path, most=10**6).room)
    assert "--exact-limit 500" in error.value.next


def test_vectors_read_back_as_they_were_put_wherever_they_lie(tmp_path: Path) -> None:
    vectors = clustered(200)
    for size in (1, 1 << 30):
        held = stored(vectors, Little(size, tmp_path).room)
        assert (held[:] == vectors).all()
        assert (held[30:90] == vectors[30:90]).all()
        some = np.array([5, 199, 5, 0, 6, 7])
        assert (held[some] == vectors[some]).all()
        chosen = Picked(held, np.array([3, 9, 10, 150]))
        assert (chosen[1:3] == vectors[9:11]).all()
        held.evict()
        assert held.spilled
        assert (held[:] == vectors).all()
    sparse = Matrix(4, Little(1, tmp_path).room)
    sparse.put(np.array([2]), vectors[:1])
    assert not sparse[np.array([0, 1, 3])].any()  # zeros until they are put
