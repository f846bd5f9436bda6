"""The cache of vectors: by content and by embedder, never a damaged one, and it survives kills."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_embedder import WORDS, static_model, transformer

from lpt_data.semantic import embed, vectors
from lpt_data.semantic.cache import Cache, keys_of
from lpt_data.semantic.models import find_model
from lpt_data.semantic.room import Matrix, Room
from lpt_data.semantic.vectors import Vectors, distinct_texts, source_of, vectors_of

TEXTS = [f"{a} {b}".encode() for a in WORDS[:8] for b in WORDS[8:16]]


def embedded(texts: list[bytes], folder: Path, catalog: Path) -> Vectors:
    return vectors_of(texts, distinct_texts(texts), source_of(find_model(str(folder)), catalog))


def files(catalog: Path) -> list[Path]:
    return sorted(catalog.glob("embeddings/*/*.arrow"))


def test_a_text_is_embedded_once(tmp_path: Path) -> None:
    model, catalog = static_model(tmp_path / "m"), tmp_path / "c"
    first = embedded([*TEXTS, TEXTS[0]], model, catalog)
    assert (first.told["distinct_texts"], first.told["embedded"]) == (64, 64)
    again = embedded(TEXTS[::-1], model, catalog)
    assert (again.told["from_cache"], again.told["embedded"]) == (64, 0)
    assert (again.vectors[:] == first.vectors[:]).all()  # in the order of the keys, whatever that of the rows
    more = embedded([*TEXTS, b"house house"], model, catalog)
    assert (more.told["from_cache"], more.told["embedded"]) == (64, 1)
    assert len(files(catalog)) == 2


def test_the_order_is_that_of_keys_and_those_outside_come_last() -> None:
    texts = [b"x", b"y", b"x", b"z", b"w"]
    found = distinct_texts(texts, np.array([True, True, False, False, True]))
    assert found.inside == 2
    for position, text in enumerate(texts):
        assert (found.keys[found.of_position[position]] == keys_of([text])[0]).all()
        assert texts[found.first[found.of_position[position]]] == text
    inside = {texts[i] for i in found.first[:2]}
    assert inside == {b"x", b"z"}  # x is in both


def test_vectors_of_another_embedder_are_never_used(tmp_path: Path) -> None:
    one, other, catalog = static_model(tmp_path / "one"), static_model(tmp_path / "other", seed=7), tmp_path / "c"
    right = embedded(TEXTS, other, tmp_path / "elsewhere").vectors[:]
    embedded(TEXTS, one, catalog)
    assert (embedded(TEXTS, other, catalog).vectors[:] == right).all()  # another folder
    (mine,) = [p for p in files(catalog) if p.parent.name.startswith(find_model(str(one)).digest[:16])]
    (theirs,) = [p for p in files(catalog) if p != mine]
    theirs.write_bytes(mine.read_bytes())  # someone copies files about
    found = embedded(TEXTS, other, catalog)
    assert (found.vectors[:] == right).all()
    assert found.told["embedded"] == 64
    assert "another embedder" in found.told["cache_notes"][0]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_a_damaged_file_is_left_out_and_named(tmp_path: Path, damage: str) -> None:
    model, catalog = static_model(tmp_path / "m"), tmp_path / "c"
    right = embedded(TEXTS, model, catalog).vectors[:]
    (path,) = files(catalog)
    data = bytearray(path.read_bytes())
    at = data.index(right[0].tobytes())
    data[at] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[: at + 20]), "empty": b"", "text": b"hello\n" * 9}[damage])
    found = embedded(TEXTS, model, catalog)
    assert (found.vectors[:] == right).all()
    assert found.told["embedded"] == 64
    (note,) = found.told["cache_notes"]
    assert "damaged" in note
    assert path.name in note


def test_arithmetic_of_another_precision_has_a_folder_of_its_own(tmp_path: Path) -> None:
    model = find_model(str(transformer(tmp_path / "m")))
    names = {embed.Embedder(model, "cpu", p, lambda chunks: iter(())).digest for p in ("fp32", "fp16")}
    assert len(names) == 2


def test_a_run_that_is_killed_goes_on_behind_what_it_had(tmp_path: Path) -> None:
    model, catalog = static_model(tmp_path / "m"), tmp_path / "c"
    script = f"""
import os, signal
from lpt_data.semantic import embed, vectors
from lpt_data.semantic.models import find_model
vectors._FLUSH_TEXTS = embed.CHUNK_GPU = 8
done, cache = 0, vectors.Cache
class Killed(cache):
    def append(self, *parts):
        global done
        done += 1
        if done == 4:
            with open(self.folder / ".tmp-1-x.arrow", "wb") as file:
                file.write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        super().append(*parts)
vectors.Cache = Killed
texts = {TEXTS!r}
vectors.vectors_of(texts, vectors.distinct_texts(texts), vectors.source_of(find_model({str(model)!r}), {catalog!r}))
"""
    script = script.replace("PosixPath", "__import__('pathlib').Path")
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    found = embedded(TEXTS, model, catalog)
    assert (found.told["from_cache"], found.told["embedded"]) == (24, 40)
    assert (found.vectors[:] == embedded(TEXTS, model, tmp_path / "fresh").vectors[:]).all()
    assert not found.told["cache_notes"]


def test_nothing_is_loaded_when_everything_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, catalog = static_model(tmp_path / "m"), tmp_path / "c"
    embedded(TEXTS, model, catalog)
    monkeypatch.setattr(vectors.embed, "open_embedder", None)
    assert embedded(TEXTS, model, catalog).told["embedded"] == 0


def test_an_empty_cache_and_no_texts(tmp_path: Path) -> None:
    found = embedded([], static_model(tmp_path / "m"), tmp_path / "c")
    assert found.vectors.shape[0] == 0
    nothing = Cache(tmp_path / "nowhere", "x").lookup(keys_of([b"a"]), Matrix(1, Room()))
    assert [known.tolist() for known in nothing] == [[False], [False]]
