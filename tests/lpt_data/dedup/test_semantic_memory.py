"""Vectors in little memory: the cap holds by an outside clock, and neither it nor the cache changes what stays."""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_spill import CLOCK, finish, start
from tiny_embedder import WORDS, static_model

WIDTH = 240_000  # numbers of a vector: few rows whose vectors are large, so that comparing them takes seconds
CLOCKED = (sys.executable, "-c", CLOCK)


def sentences(count: int, seed: int) -> list[str]:
    rng, made = random.Random(seed), set()
    while len(made) < count:
        made.add(" ".join(rng.choices(WORDS, k=rng.randrange(5, 12))))
    return sorted(made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("semantic")
    static_model(folder / "m", dimension=WIDTH, feline="cat")
    texts = sentences(100, 1)
    texts += [text.replace("cat", "feline") for text in texts if "cat" in text]
    beside = [*sentences(1500, 2), *(f"{text} {text}" for text in texts[:5])]
    for name, rows in (("in", texts), ("moved", texts[::-1]), ("full", texts), ("ref", beside)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    return folder


def run(
    folder: Path, rows: str, memory: str, catalog: str, *more: str, limit: Callable[[], None] | None = None
) -> tuple[int, dict, int]:
    """Exit code, the report and the peak of the process, by the clock of its parent; a catalog is a folder here."""
    (folder / catalog).mkdir(exist_ok=True)
    process = start(
        folder / catalog, str(folder / f"{rows}.jsonl"), "--out", str(folder / f"{rows}-{memory}.jsonl"),
        "--against", str(folder / "ref.jsonl"), "--method", "exact,semantic", "--embedder", str(folder / "m"),
        "--memory", memory, *more, limit=limit, before=CLOCKED,
    )  # fmt: skip
    code, said = finish(process)
    if code:
        return code, {}, 0
    body, end = json.JSONDecoder().raw_decode(said)
    return code, body, int(said[end:])


def test_the_cap_holds_with_vectors_beyond_it_and_nothing_else_changes(folder: Path) -> None:
    cap, told, decided = 600 * 10**6, [], []
    # Embedded, then from the cache, at last the other way round.
    for rows, memory in (("in", "600MB"), ("in", "20GB"), ("moved", "20GB")):
        code, body, peak = run(folder, rows, memory, "a")
        assert code == 0, (folder / "a" / "said.txt").read_text()
        meant = body["semantic"]
        told.append((body["content_root"], body["removed"], meant["pairs"], meant["histogram"], meant["bands"]))
        assert meant["vector_bytes"] > 1.1 * cap
        assert meant["vectors_spilled"] == (memory != "20GB")
        assert meant["embedded"] == (meant["distinct_texts"] if len(told) == 1 else 0)
        if memory != "20GB":
            assert peak <= cap
            assert body["memory"]["spilled_bytes"] >= meant["vector_bytes"]
        decided.append(Path(body["decisions"]).read_bytes())
        for kept in (folder / "a").glob("lpt/pairs/*"):
            kept.unlink()
    assert told[0] == told[1] == told[2]
    assert decided[0] == decided[1]
    assert (folder / "in-600MB.jsonl").read_bytes() == (folder / "in-20GB.jsonl").read_bytes()
    assert set(told[0][1]) == {"semantic_duplicate", "duplicate_of_reference"}


def test_a_full_disk_under_the_vectors_is_said_and_leaves_nothing(folder: Path) -> None:
    """The vectors come from the cache; the spill file beside the output is what finds no room."""
    before = sorted(path.name for path in folder.iterdir())

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30 << 20, 30 << 20))

    code, _, _ = run(folder, "full", "600MB", "a", limit=full)
    said = (folder / "a" / "said.txt").read_text()
    assert code == 5
    assert "the spill file" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_dry_run_foretells_where_the_vectors_will_lie(folder: Path) -> None:
    (folder / "c").mkdir(exist_ok=True)
    before = sorted(path.name for path in folder.iterdir())
    for memory, fits in (("20GB", True), ("600MB", True), ("300MB", False)):
        code, told, _ = run(folder, "in", memory, "c", "--dry-run")
        assert code == 0, (folder / "c" / "said.txt").read_text()
        meant = told["meaning"]
        assert (meant["vectors"], meant["search"]) == (told["rows"] + 1505, "exact")
        assert meant["vector_bytes"] == 2 * WIDTH * meant["vectors"]
        beside = told["spilled_bytes"] - (0 if memory == "20GB" else meant["vector_bytes"])
        assert 0 <= beside < 10**6  # of texts
        assert (told["needed_bytes"] <= told["cap_bytes"]) == fits
        assert min(meant["embedding_seconds"], meant["search_seconds"]) > 0
    assert not (folder / "c" / "lpt").exists()  # nothing is written
    assert sorted(path.name for path in folder.iterdir()) == before


def test_an_embedder_beyond_the_cap_is_refused_with_the_cap_that_it_needs(folder: Path) -> None:
    """Before a row is read, as nothing is in the cache."""
    code, _, _ = run(folder, "in", "300MB", "b")
    said = (folder / "b" / "said.txt").read_text()
    assert code == 5
    assert "does not fit in the memory that was given" in said or "is not enough even with everything spilled" in said
    assert "next: --memory " in said
    assert not (folder / "in-300MB.jsonl").exists()
