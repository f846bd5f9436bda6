"""Input that breaks others, through the method semantic as a command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import Popen

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_spill import CLOCK, finish, start
from tiny_embedder import WORDS, static_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    static_model(tmp_path / "m", feline="cat")
    return tmp_path


def begin(folder: Path, rows: str, *more: str, before: tuple[str, ...] = ()) -> Popen[bytes]:
    (folder / "in.jsonl").write_text(rows)
    out = ("--out", str(folder / "out.jsonl"), "--embedder", str(folder / "m"))
    return start(folder, str(folder / "in.jsonl"), *out, *more, before=before)


def lines(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def report(process: Popen[bytes], folder: Path) -> tuple[dict, str]:
    code, said = finish(process)
    assert code == 0, (folder / "said.txt").read_text()
    body, end = json.JSONDecoder().raw_decode(said)
    return body, said[end:]


def test_a_hundred_thousand_copies_are_one_vector(folder: Path) -> None:
    """Without exact before it the copies go for their meaning; each is embedded once, and compared with nothing."""
    rows = lines(["the cat sat on the mat"]) * 100_000 + lines(["the feline sat on the mat", "red car"])
    clocked = (sys.executable, "-c", CLOCK)
    body, peak = report(begin(folder, rows, "--method", "semantic", "--memory", "600MB", before=clocked), folder)
    assert body["removed"] == {"semantic_duplicate": 100_000}
    assert body["rows_out"] == 2
    assert body["semantic"]["distinct_texts"] == body["semantic"]["embedded"] == 3
    assert body["semantic"]["pairs"] == 1
    assert int(peak) <= 600 * 10**6


@pytest.mark.parametrize("methods", ["semantic", "exact,minhash,semantic"])
def test_a_corpus_of_empty_rows_is_refused_and_empty_rows_among_others_go(folder: Path, methods: str) -> None:
    code, _ = finish(begin(folder, '{"text": ""}\n' * 500, "--method", methods))
    assert code == 5
    assert "all bad" in (folder / "said.txt").read_text()
    body, _ = report(begin(folder, lines(["", "red car", "  ", "red car house"]), "--method", methods), folder)
    assert body["rows_out"] == 2
    assert body["quarantined"] == 2
    assert body["semantic"]["distinct_texts"] == 2


def test_a_huge_row_is_read_by_its_beginning(folder: Path) -> None:
    """20 MB: the embedder reads a mebicharacter of it, says so, and a row of the same beginning means the same."""
    start_of_it = " ".join(WORDS) + " "
    huge = start_of_it * (20_000_000 // len(start_of_it))
    body, _ = report(begin(folder, lines([huge, huge[: 2 << 20] + "blue", "red car"]), "--method", "semantic"), folder)
    assert body["semantic"]["truncated_texts"] == 2
    assert body["removed"] == {"semantic_duplicate": 1}
    assert body["rows_out"] == 2


def test_two_at_once_embed_the_same_texts_and_write_one_output(folder: Path) -> None:
    rows = lines([f"{a} {b} {c}" for a in WORDS[:12] for b in WORDS[12:24] for c in WORDS[4:9]])
    both = [begin(folder, rows, "--method", "semantic", "--semantic-threshold", "0.97") for _ in range(2)]
    codes = sorted(finish(process)[0] for process in both)
    assert codes in ([0, 0], [0, 75])  # the second one finds the work done, or gives up waiting
    first = (folder / "out.jsonl").read_bytes()
    # Vectors of both are in the cache, once or twice each; they are whole, and the outcome is that of one run.
    body, _ = report(begin(folder, rows, "--method", "semantic", "--semantic-threshold", "0.96"), folder)
    assert body["semantic"]["cache_notes"] == []
    body, _ = report(begin(folder, rows, "--method", "semantic", "--semantic-threshold", "0.97"), folder)
    assert (folder / "out.jsonl").read_bytes() == first


def test_vectors_of_another_model_in_the_cache_are_left_out_and_named(folder: Path) -> None:
    texts = [f"{a} {b}" for a in WORDS[:8] for b in WORDS[8:16]]
    first, _ = report(begin(folder, lines(texts), "--method", "semantic"), folder)
    static_model(folder / "other", seed=9)
    (mine,) = (folder / "lpt" / "embeddings").iterdir()
    (folder / "m").rename(folder / "gone")
    (folder / "other").rename(folder / "m")
    second, _ = report(begin(folder, lines(texts), "--method", "semantic", "--semantic-threshold", "0.8"), folder)
    assert second["semantic"]["embedded"] == 64  # it has a folder of its own
    (theirs,) = (path for path in (folder / "lpt" / "embeddings").iterdir() if path != mine)
    for path in theirs.glob("*.arrow"):
        path.write_bytes(next(mine.glob("*.arrow")).read_bytes())  # someone copies files about
    for path in (folder / "lpt" / "pairs").iterdir():
        path.unlink()
    (folder / "out.jsonl").unlink()
    third, _ = report(begin(folder, lines(texts), "--method", "semantic", "--semantic-threshold", "0.8"), folder)
    assert "another embedder" in third["semantic"]["cache_notes"][0]
    assert third["semantic"]["embedded"] == 64
    assert third["content_root"] == second["content_root"]
    assert third["removed"] == second["removed"]
