"""Benchmarks added to a catalog: pinned the first time, compared afterwards, refused where they are others."""

import json
import socket
from pathlib import Path

import pytest

from lpt_data.benchmarks import KNOWN, add, added, hub, paths_of, read_published, stored, verify
from lpt_data.benchmarks.store import add_named, root_of
from lpt_data.contamination import load_benchmarks
from manifests.catalog import Catalog
from manifests.errors import BadInputError, RefusedError, UsageError

DATA = Path(__file__).parents[4] / "shared" / "data"
ROWS = [
    {"question": f"How many of the {n} lamps of the long corridor burn at noon?", "answer": f"{n}\n#### {n}"}
    for n in range(5)
]


@pytest.fixture
def catalog(tmp_path):
    return Catalog.open(tmp_path / ".lpt")


def write(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_added_by_name_and_read_without_a_path(tmp_path, catalog):
    made = add("lamps", [write(tmp_path / "a.jsonl")], catalog)
    assert (made.items, made.layout, made.pinned, made.expected) == (5, "gsm8k", False, None)
    assert stored(catalog) == {"lamps": made}
    direct = load_benchmarks({"lamps": [str(tmp_path / "a.jsonl")]})
    again = load_benchmarks({"lamps": paths_of("lamps", catalog)})
    assert [(i.record_id, i.question, i.answer) for i in again.items] == [
        (i.record_id, i.question, i.answer) for i in direct.items
    ]


def test_the_same_items_are_the_same_benchmark_in_any_order_and_format(tmp_path, catalog):
    made = add("lamps", [write(tmp_path / "a.jsonl")], catalog)
    (tmp_path / "b.json").write_text(json.dumps(list(reversed(ROWS))))
    assert add("lamps", [str(tmp_path / "b.json")], catalog) == made
    with pytest.raises(RefusedError, match="added with other items"):
        add("lamps", [write(tmp_path / "c.jsonl", ROWS[:4])], catalog)


def test_a_pinned_name_takes_no_other_items(tmp_path, catalog):
    with pytest.raises(RefusedError, match="not those of gsm8k") as error:
        add("gsm8k", [write(tmp_path / "a.jsonl")], catalog)
    assert "my-gsm8k=" in error.value.next
    assert add("my-gsm8k", [str(tmp_path / "a.jsonl")], catalog).items == 5


def test_an_edited_copy_is_refused_and_verified(tmp_path, catalog):
    path = write(tmp_path / "a.jsonl")
    made = add("lamps", [path], catalog)
    assert verify(made, catalog) == []
    write(tmp_path / "a.jsonl", ROWS[:2])
    assert verify(made, catalog) == [f"{path}, which it was added from, has changed since"]
    copy = Path(paths_of("lamps", catalog)[0])
    copy.write_text(copy.read_text().replace("noon", "night"))
    assert "was edited" in verify(made, catalog)[0]
    with pytest.raises(RefusedError, match="was edited"):
        paths_of("lamps", catalog)


def test_names_that_are_not_there(catalog):
    with pytest.raises(UsageError, match="not added yet") as error:
        added("mbpp", catalog)
    assert "lpt data benchmarks add mbpp=FILE" in error.value.next
    with pytest.raises(UsageError, match="no benchmark is called nothing"):
        added("nothing", catalog)
    with pytest.raises(UsageError, match="no such benchmark"):
        add_named(["nothing"], catalog)


def test_a_layout_that_no_benchmark_has(tmp_path, catalog):
    with pytest.raises(UsageError, match="--layout"):
        add("lamps", [write(tmp_path / "a.jsonl")], catalog, layout="gsmk")
    with pytest.raises(BadInputError, match="those of no benchmark"):
        add("lamps", [write(tmp_path / "b.jsonl", [{"text": "a"}])], catalog)


def test_offline_is_answered_at_once(monkeypatch, catalog):
    """A port that nothing listens on, so that no network is needed; nor is one waited for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(BadInputError, match="cannot be reached") as error:
        add_named(["mbpp"], catalog)
    assert error.value.next == "get the file elsewhere, then: lpt data benchmarks add mbpp=FILE"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInputError, match="cannot be reached"):
        add_named(["mbpp"], catalog)
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed"):
        add_named(["mbpp"], catalog)
    assert stored(catalog) == {}


@pytest.mark.skipif(not DATA.is_dir(), reason="no shared data")
@pytest.mark.parametrize(
    ("name", "file"), [("gsm8k", "gsm8k/test.jsonl"), ("humaneval", "human_eval/HumanEval.jsonl.gz")]
)
def test_pinned_digests_are_those_of_the_published_files(catalog, name, file):
    made = add(name, [str(DATA / file)], catalog)
    assert made.pinned
    assert made.items == KNOWN[name].items
    assert made.sources[0]["sha256"] == KNOWN[name].sha256
    assert root_of(read_published(paths_of(name, catalog)).entries) == KNOWN[name].content_root
