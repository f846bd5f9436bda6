"""Admission end to end on small sets: what is on disk, what the manifest claims, and what survives a kill."""

from __future__ import annotations

import dataclasses
import gzip
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpt_data.admit import Admission, admit
from manifests.admission import load_manifest, verify
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, UsageError
from manifests.objects import object_bytes, object_id

REPO = Path(__file__).parents[2]
SHARED = REPO.parent / "shared" / "data"


def chat(question: str, answer: str = "fine", **extra: Any) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **extra}


def write(path: Path, rows: list[Any]) -> str:
    path.write_bytes(b"".join((r if isinstance(r, bytes) else orjson.dumps(r)) + b"\n" for r in rows))
    return str(path)


TRAIN = [chat(f"train {i}", f"answer {i}") for i in range(40)]
TEST = [chat(f"test {i}", f"answer {i}") for i in range(10)]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog.open(tmp_path / ".lpt")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[str]]:
    return {"train": [write(tmp_path / "train.jsonl", TRAIN)], "test": [write(tmp_path / "test.jsonl", TEST)]}


def roots(admission: Admission) -> dict[str, str]:
    return {name: split["content_root"] for name, split in admission.body["splits"].items()}


# -- what is written


def test_the_folder_verifies_with_sha256sum_and_with_lpt(catalog, files):
    done = admit("chats", "sft", files, catalog=catalog)
    assert (done.name, done.version, done.verdict, done.exit_code) == ("chats", 1, "accept", 0)
    assert done.folder == catalog.splits_dir / "chats@1"
    sums = subprocess.run(
        ["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=done.folder, capture_output=True, text=True
    )
    assert sums.returncode == 0, sums.stdout + sums.stderr
    listed = {line.split("  ")[1] for line in (done.folder / "SHA256SUMS").read_text().splitlines()}
    assert listed | {"SHA256SUMS"} == {p.name for p in done.folder.iterdir()}
    assert verify(load_manifest(catalog, "chats")).ok
    assert verify(load_manifest(None, str(done.folder / "manifest.json"))).ok


def test_the_manifest_id_is_the_sha256_of_manifest_json(catalog, files):
    done = admit("chats", "sft", files, catalog=catalog)
    assert bytes_sha256(done.folder / "manifest.json") == done.manifest_id == object_id(object_bytes(dict(done.body)))
    assert catalog.get(done.manifest_id) == orjson.loads((done.folder / "manifest.json").read_bytes())


def test_rows_come_out_in_canonical_form_in_order_with_their_other_columns(catalog, tmp_path):
    rows = [chat("a", source="x"), chat("b"), chat("c", source="y")]
    done = admit("chats", "sft", {"train": [write(tmp_path / "t.jsonl", rows)]}, catalog=catalog)
    table = pq.read_table(done.folder / "train-00000.parquet").to_pylist()
    assert [r["messages"][0]["content"] for r in table] == ["a", "b", "c"]
    assert [r["source"] for r in table] == ["x", None, "y"]
    assert len({r["record_id"] for r in table}) == 3


def test_an_admitted_folder_can_be_admitted_again_with_the_same_root(catalog, files):
    first = admit("chats", "sft", files, catalog=catalog)
    again = {name: [str(first.folder / f"{name}-00000.parquet")] for name in files}
    second = admit("copy", "sft", again, catalog=catalog)
    assert roots(second) == roots(first)
    assert second.body["parents"] == [first.manifest_id]


# -- laws of the digests


def test_order_sharding_format_and_compression_do_not_change_the_content_root(catalog, files, tmp_path):
    first = admit("chats", "sft", files, catalog=catalog)
    shuffled = random.Random(7).sample(TRAIN, len(TRAIN))
    packed = tmp_path / "train.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(files["train"][0]).read_bytes()))
    pq.write_table(pa.Table.from_pylist(TRAIN), tmp_path / "train.parquet")
    shapes = {
        "shuffled": [write(tmp_path / "shuffled.jsonl", shuffled)],
        "sharded": [write(tmp_path / "a.jsonl", TRAIN[:7]), write(tmp_path / "b.jsonl", TRAIN[7:])],
        "packed": [str(packed)],
        "parquet": [str(tmp_path / "train.parquet")],
    }
    for name, paths in shapes.items():
        other = admit(name, "sft", {**files, "train": paths}, catalog=catalog)
        assert roots(other) == roots(first), name
        same_order = other.body["splits"]["train"]["order_sha256"] == first.body["splits"]["train"]["order_sha256"]
        assert same_order == (name != "shuffled")


@pytest.mark.parametrize("change", ["edit", "add", "remove", "double"])
def test_one_row_changes_the_root(catalog, files, tmp_path, change):
    first = admit("chats", "sft", files, catalog=catalog)
    rows = {
        "edit": [*TRAIN[:-1], chat("train 39", "another answer")],
        "add": [*TRAIN, chat("new")],
        "remove": TRAIN[:-1],
        "double": [*TRAIN, TRAIN[0]],
    }[change]
    second = admit("chats", "sft", {**files, "train": [write(tmp_path / "x.jsonl", rows)]}, catalog=catalog)
    assert second.version == 2
    assert roots(second)["train"] != roots(first)["train"]
    assert roots(second)["test"] == roots(first)["test"]


# -- claims of the manifest


def test_disjointness_is_proven_for_each_pair_by_record_and_by_key(catalog, files, tmp_path):
    files["validation"] = [write(tmp_path / "v.jsonl", [chat("TRAIN 3!", "other words"), chat("new")])]
    done = admit("chats", "sft", files, catalog=catalog)
    proofs = {(p["a"], p["b"], p["by"]): (p["n_a"], p["n_b"], p["intersection"]) for p in done.body["disjoint"]}
    assert proofs == {
        ("train", "test", "record"): (40, 10, 0),
        ("train", "test", "key"): (40, 10, 0),
        ("train", "validation", "record"): (40, 2, 0),
        ("train", "validation", "key"): (40, 2, 1),
        ("test", "validation", "record"): (10, 2, 0),
        ("test", "validation", "key"): (10, 2, 0),
    }
    assert (done.verdict, done.exit_code) == ("reject", 4)


def test_a_rejected_set_leaves_its_evidence(catalog, tmp_path):
    rows = [*TRAIN, chat("empty", " ")]
    done = admit("bad", "sft", {"train": [write(tmp_path / "t.jsonl", rows)]}, catalog=catalog)
    assert (done.verdict, done.exit_code) == ("reject", 4)
    assert load_manifest(catalog, "bad").body["verdict"] == "reject"
    (failing,) = pq.read_table(done.folder / "failing_rows.parquet").to_pylist()
    assert failing["check_id"] == "sft.turns.empty_share"
    assert (failing["split"], failing["row"], failing["line"]) == ("train", 40, 41)
    rows_on_disk = pq.read_table(done.folder / "train-00000.parquet")
    assert rows_on_disk.num_rows == 41  # nothing was dropped
    assert failing["record_id"] == rows_on_disk["record_id"][40].as_py()
    assert any("--rows sft.turns.empty_share" in line for line in done.body["next"])


def test_quarantined_rows_are_counted_and_listed_so_that_rows_are_conserved(catalog, tmp_path):
    rows = [*TRAIN, b"{broken"]
    done = admit("chats", "sft", {"train": [write(tmp_path / "t.jsonl", rows)]}, catalog=catalog)
    split = done.body["splits"]["train"]
    assert (split["rows_in"], split["rows"], split["quarantined"]) == (41, 40, 1)
    (row,) = pq.read_table(done.folder / "failing_rows.parquet").to_pylist()
    assert (row["check_id"], row["row"], row["line"], row["record_id"]) == ("schema.quarantined_share", 40, 41, "")
    assert done.verdict == "tune"  # 1 of 41 is over 0.5 % and under 5 %
    assert done.exit_code == 3


def test_sources_and_benchmarks_are_pinned_by_the_sha256_of_their_bytes(catalog, files, tmp_path):
    bench = write(tmp_path / "bench.jsonl", [{"question": "train 3", "answer": "x"}])
    done = admit("chats", "sft", files, catalog=catalog, benchmarks={"b": [bench]})
    pinned = {(s["split"], s["path"]): (s["sha256"], s["layout"]) for s in done.body["sources"]}
    assert pinned["train", files["train"][0]] == (bytes_sha256(files["train"][0]), "messages")
    (benchmark,) = done.body["benchmarks"]
    assert (benchmark["name"], benchmark["items"], benchmark["files"][0]["sha256"]) == ("b", 1, bytes_sha256(bench))
    assert done.verdict == "reject"


def test_scored_files_and_declared_languages_are_part_of_the_evidence(catalog, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"{n} + {n}?"}], "answer": str(2 * n)} for n in range(20)]
    train = write(tmp_path / "problems.jsonl", rows)
    scored = write(tmp_path / "scored.jsonl", [{**row, "pass_rate": 0.3} for row in rows])

    def admitted(**options: Any) -> Admission:
        return admit("sums", "rlvr", {"train": [train]}, catalog=catalog, **options)

    first = admitted(pass_rates=[scored])
    assert first.body["scored"][0]["sha256"] == bytes_sha256(scored)
    assert admitted(pass_rates=[scored]).reused
    assert not admitted().reused  # other evidence is another admission
    write(tmp_path / "scored.jsonl", [{**row, "pass_rate": 0.3, "note": 1} for row in rows])
    assert not admitted(pass_rates=[scored]).reused


def test_a_policy_file_decides_and_is_kept_whole(catalog, files, tmp_path):
    policy = tmp_path / "strict.yaml"
    policy.write_text("name: strict\nextends: lpt:sft\nchecks:\n  - {id: sft.truncation.rate, required: true}\n")
    done = admit("chats", "sft", files, catalog=catalog, policy=policy)
    assert (done.verdict, done.exit_code) == ("reject", 5)
    assert done.body["policy"]["name"] == "strict"
    assert "sft.turns.empty_share" in done.body["policy"]["text"]
    with pytest.raises(BadInputError):
        admit("chats", "sft", files, catalog=catalog, policy=tmp_path / "missing.yaml")


def test_a_policy_that_was_given_and_the_admission_itself_are_part_of_the_next_command(catalog, files, tmp_path):
    @dataclasses.dataclass
    class Words:
        name = "words"
        fingerprint = "f" * 64
        template_sha256 = "0" * 64

        def encode(self, messages, tools=None):
            return SimpleNamespace(ids=[5] * 30, loss_mask=[0, *[1] * 29])

    policy = tmp_path / "mine.yaml"
    policy.write_text("name: mine\nextends: lpt:sft\n")
    done = admit("chats", "sft", files, catalog=catalog, policy=policy, encode=Words(), max_length=20)
    (line,) = [c.next for c in done.checks if c.id == "sft.truncation.rate"]
    wanted = f"lpt admit chats --train {files['train'][0]} --test {files['test'][0]} --contract sft --tokenizer words"
    assert line == f"{wanted} --policy {policy} --max-length 40  # estimated: 0.00% at 30, 0.00% at 40"
    assert done.body["tokenizer"] == {
        "name": "words",
        "fingerprint": "f" * 64,
        "template_sha256": "0" * 64,
        "max_length": 20,
    }
    assert done.body["splits"]["train"]["tokenized"] == {
        "rows": 40,
        "tokens": 800,
        "supervised": 760,
        "truncated_rows": 40,
    }


def test_lineage_follows_the_bytes_back_through_the_stages(catalog, files):
    def stage(name: str, reads: str, writes: str, rows_in: int, rows_out: int) -> str:
        return catalog.put(
            {
                "type": "lpt.stage/1",
                "stage": name,
                "stage_id": name,
                "rows_in": rows_in,
                "rows_out": rows_out,
                "removed": {"exact_duplicate": rows_in - rows_out},
                "quarantined": 0,
                "inputs": [{"path": "elsewhere", "sha256": reads}],
                "outputs": [{"path": "moved since", "sha256": writes}],
            }
        )

    dedup = stage("dedup", "0" * 64, "1" * 64, 90, 50)
    split = stage("split", "1" * 64, bytes_sha256(files["train"][0]), 50, 50)
    stage("unrelated", "2" * 64, "3" * 64, 5, 5)
    done = admit("chats", "sft", files, catalog=catalog)
    assert done.body["parents"] == [split]
    assert done.body["stages"] == [dedup, split]
    assert [(f["stage"], f["rows_in"], f["rows_out"]) for f in done.body["funnel"]] == [
        ("dedup", 90, 50),
        ("split", 50, 50),
        ("admit train", 40, 40),
        ("admit test", 10, 10),
    ]


# -- versions


def test_the_same_again_is_reused_and_another_policy_is_another_version(catalog, files, tmp_path):
    first = admit("chats", "sft", files, catalog=catalog)
    again = admit("chats", "sft", files, catalog=catalog)
    assert (again.version, again.manifest_id, again.reused) == (1, first.manifest_id, True)
    assert again.folder == first.folder
    policy = tmp_path / "p.yaml"
    policy.write_text("name: mine\nextends: lpt:sft\ndrop: [against.keys]\n")
    second = admit("chats", "sft", files, catalog=catalog, policy=policy)
    assert (second.version, second.reused, second.same_content_as) == (2, False, "chats@1")
    assert second.body["supersedes"] == first.manifest_id
    assert sorted(p.name for p in catalog.splits_dir.iterdir()) == ["chats@1", "chats@2"]


def test_the_same_at_once_is_one_version_and_another_set_has_its_own(catalog, files, tmp_path):
    other = {"train": [write(tmp_path / "more.jsonl", [*TRAIN, chat("one more", "yes")])], "test": files["test"]}
    starts = threading.Barrier(4)

    def one(given: dict[str, list[str]]) -> Admission:
        mine = Catalog.open(catalog.directory)
        starts.wait()
        return admit("chats", "sft", given, catalog=mine)

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(one, [files, files, other, files]))
    recorded = list(catalog.find("lpt.admission/1", name="chats"))
    # The other one may have come between: what is reused is the newest version alone.
    assert {admission.manifest_id for admission in made} == {found for found, _ in recorded}
    assert 2 <= len(recorded) <= 3
    assert len({roots(admission)["train"] for admission in made}) == 2
    assert sum(not admission.reused for admission in made) == len(recorded)
    assert all(verify(load_manifest(catalog, f"chats@{body['version']}")).ok for _, body in recorded)
    assert not list(catalog.splits_dir.glob(".tmp-*"))


def test_the_same_four_times_at_once_is_one_version(catalog, files):
    starts = threading.Barrier(4)

    def one(_: int) -> Admission:
        mine = Catalog.open(catalog.directory)
        starts.wait()
        return admit("chats", "sft", files, catalog=mine)

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(one, range(4)))
    assert {(admission.version, admission.manifest_id) for admission in made} == {(1, made[0].manifest_id)}
    assert sorted(admission.reused for admission in made) == [False, True, True, True]


def test_a_damaged_folder_is_not_reused(catalog, files):
    first = admit("chats", "sft", files, catalog=catalog)
    (first.folder / "train-00000.parquet").write_bytes(b"PAR1")
    second = admit("chats", "sft", files, catalog=catalog)
    assert (second.version, second.reused) == (2, False)


def test_the_same_rows_from_another_file_are_a_version_that_says_so(catalog, files, tmp_path):
    admit("chats", "sft", files, catalog=catalog)
    other = {**files, "train": [write(tmp_path / "u.jsonl", [*TRAIN[1:], TRAIN[0]])]}
    second = admit("chats", "sft", other, catalog=catalog)
    assert (second.version, second.same_content_as) == (2, "chats@1")


# -- out


def test_out_is_the_folder_itself_and_can_be_carried(catalog, files, tmp_path):
    done = admit("chats", "sft", files, catalog=catalog, out=tmp_path / "carry")
    assert done.folder == tmp_path / "carry"
    (tmp_path / "carry").rename(tmp_path / "elsewhere")
    assert verify(load_manifest(None, str(tmp_path / "elsewhere" / "manifest.json"))).ok
    assert [path.name for path in catalog.splits_dir.iterdir()] == ["chats@1.path"]  # where it was written, no rows


def test_out_never_replaces_what_is_there(catalog, files, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="not empty"):
        admit("chats", "sft", files, catalog=catalog, out=tmp_path / "full")
    with pytest.raises(BadInputError, match="does not exist"):
        admit("chats", "sft", files, catalog=catalog, out=tmp_path / "no" / "such")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert admit("chats", "sft", files, catalog=catalog, out=tmp_path / "empty").folder == tmp_path / "empty"


# -- what goes wrong


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b"])
def test_names_that_are_no_folder_names_are_refused(catalog, files, name):
    with pytest.raises(UsageError):
        admit(name, "sft", files, catalog=catalog)


def test_split_names_become_file_names_and_are_checked(catalog, files):
    with pytest.raises(UsageError, match="not a name for a split"):
        admit("chats", "sft", {"../train": files["train"]}, catalog=catalog)
    with pytest.raises(UsageError, match="nothing to admit"):
        admit("chats", "sft", {}, catalog=catalog)


@pytest.mark.parametrize("edit", ["append", "rewrite"])
def test_a_source_that_changes_meanwhile_is_not_admitted(catalog, files, edit):
    def progress(done: int, total: int | None, label: str) -> None:
        if label == "write train" and done == 0:
            path = Path(files["train"][0])
            data = path.read_bytes()
            path.write_bytes(data + data[:10] if edit == "append" else data.replace(b"train 7", b"TRAIN 7"))

    with pytest.raises(BadInputError, match=r"changed while|are not the rows"):
        admit("chats", "sft", files, catalog=catalog, progress=progress)
    assert not list(catalog.splits_dir.iterdir())
    assert not list(catalog.find("lpt.admission/1"))


KILLED = """
import os, sys, time
sys.path.insert(0, {repo!r})
from lpt_data import admit as module
from manifests.catalog import Catalog

def stop(*_):
    print("here", flush=True)
    time.sleep(60)

def progress(done, total, label):
    if {point!r} == "while writing" and label == "write test":
        stop()

if {point!r} == "before the rename":
    module.os.replace = stop
if {point!r} == "after the rename":
    Catalog.put = stop
module.admit("chats", "sft", {files!r}, catalog=Catalog.open({catalog!r}), progress=progress)
"""


@pytest.mark.parametrize("out", [None, "carry"])
def test_a_catalog_that_cannot_be_written_leaves_no_folder_behind(catalog, files, tmp_path, monkeypatch, out):
    def refuse(self, body):
        raise BadInputError("the catalog cannot be written", seen="No space left on device", next="free some space")

    target = tmp_path / out if out else None
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "put", refuse)
        with pytest.raises(BadInputError, match="catalog cannot be written"):
            admit("chats", "sft", files, catalog=catalog, out=target)
    assert not list(catalog.splits_dir.iterdir())
    assert not (tmp_path / "carry").exists()
    assert admit("chats", "sft", files, catalog=catalog, out=target).version == 1


def test_a_disk_that_is_full_leaves_nothing(catalog, files):
    script = f"""
import resource, signal, sys
sys.path.insert(0, {str(REPO)!r})
from lpt_data.admit import admit
from manifests.catalog import Catalog
from manifests.errors import BadInputError
catalog = Catalog.open({str(catalog.directory)!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    admit("chats", "sft", {files!r}, catalog=catalog)
except BadInputError as error:
    assert error.what and error.seen and error.next
    sys.exit(error.exit_code)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 5, ended.stderr
    assert not list(catalog.splits_dir.iterdir())
    assert not list(catalog.find("lpt.admission/1"))


@pytest.mark.parametrize("point", ["while writing", "before the rename", "after the rename"])
def test_a_killed_admission_leaves_nothing_recorded_and_the_next_one_works(catalog, files, point):
    script = KILLED.format(repo=str(REPO), point=point, files=files, catalog=str(catalog.directory))
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
    assert not list(catalog.find("lpt.admission/1"))
    left = [p.name for p in catalog.splits_dir.iterdir() if not p.name.startswith(".")]
    assert left == (["chats@1"] if point == "after the rename" else [])
    for name in left:  # complete, or not there
        assert verify(load_manifest(None, str(catalog.splits_dir / name / "manifest.json"))).ok
    done = admit("chats", "sft", files, catalog=catalog)
    assert (done.version, done.reused) == (1, False)
    assert verify(load_manifest(catalog, "chats@1")).ok
    assert not list(catalog.splits_dir.glob(".tmp-*"))


def test_two_names_do_not_sweep_each_other(catalog, files):
    mine = catalog.splits_dir / f".tmp-admit-other-{socket.gethostname()}-999999999-aa"
    mine.mkdir()
    admit("chats", "sft", files, catalog=catalog)
    assert mine.is_dir()


# -- real data


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not here")
def test_gsm8k_is_admitted_with_no_key_in_two_splits(catalog):
    class Integer:
        def parse_gold(self, answer):
            return answer.removeprefix("-").isdigit()

        def score(self, completion, answer):
            return float(completion.split()[-1:] == [answer])

    splits = {n: [str(SHARED / "gsm8k" / f"{n}.jsonl")] for n in ("train", "test")}
    done = admit("gsm8k", "rlvr", splits, catalog=catalog, verifiers={"integer": Integer()})
    assert done.verdict == "accept"
    assert {p["by"]: (p["n_a"], p["n_b"], p["intersection"]) for p in done.body["disjoint"]} == {
        "record": (7473, 1319, 0),
        "key": (7473, 1319, 0),
    }
    assert verify(load_manifest(catalog, "gsm8k")).ok


# -- a folder outside the catalog


def test_a_name_finds_the_folder_that_was_written_elsewhere(tmp_path):
    from manifests.admission import load_manifest, verify

    rows = write(tmp_path / "train.jsonl", [chat("a"), chat("b")])
    catalog = Catalog.open(tmp_path / ".lpt")
    admit("set", "sft", {"train": [rows]}, catalog=catalog, out=tmp_path / "elsewhere")
    loaded = load_manifest(catalog, "set")
    assert loaded.folder == (tmp_path / "elsewhere").resolve()
    assert verify(loaded).ok


def test_an_admission_killed_before_it_was_recorded_does_not_block_the_next_one(tmp_path):
    rows = write(tmp_path / "train.jsonl", [chat("a"), chat("b")])
    catalog = Catalog.open(tmp_path / ".lpt")
    done = admit("set", "sft", {"train": [rows]}, catalog=catalog, out=tmp_path / "elsewhere")
    # What a kill between the rename and the record leaves: the folder and its pointer, and a manifest nobody knows.
    manifest = done.folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    again = admit("set", "sft", {"train": [rows]}, catalog=catalog, out=tmp_path / "elsewhere")
    assert again.version == 2
    assert [path.name.startswith(".unfinished-elsewhere-") for path in tmp_path.glob(".unfinished*")] == [True]
    with pytest.raises(UsageError, match="not empty"):  # a recorded one is never moved
        admit("set", "sft", {"train": [rows]}, catalog=catalog, out=tmp_path / "elsewhere")
