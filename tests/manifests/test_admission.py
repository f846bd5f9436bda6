"""Loading, verifying and comparing admitted folders, with planted edits that must be named."""

from __future__ import annotations

import hashlib
import shutil
import subprocess

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folders import admit, rows_of, write_split

from manifests.admission import diff, load_manifest, parse_split_ref, verify
from manifests.canon import record_ids
from manifests.catalog import Catalog
from manifests.digests import key_root
from manifests.errors import BadInputError, LptError, RefusedError, UsageError

TRAIN = [f"train text {i}" for i in range(40)]
TEST = [f"test text {i}" for i in range(10)]
SPLITS = {"train": TRAIN, "test": TEST}


@pytest.fixture
def catalog(tmp_path):
    return Catalog.open(tmp_path / ".lpt")


@pytest.fixture
def folder(catalog, tmp_path):
    """An admitted folder, carried to where there is no catalog."""
    carried = tmp_path / "carried"
    shutil.copytree(admit(catalog, "web", SPLITS), carried)
    return carried


def seal_again(folder, change) -> None:
    """Change the manifest's body and make the sums agree: what a forger would do."""
    body = orjson.loads((folder / "manifest.json").read_bytes())
    change(body)
    (folder / "manifest.json").write_bytes(orjson.dumps(body, option=orjson.OPT_SORT_KEYS))
    names = [f.name for f in folder.iterdir() if f.name != "SHA256SUMS"]
    lines = [f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


# -- finding one


def test_every_way_to_name_a_manifest(catalog):
    first, second = admit(catalog, "web", SPLITS), admit(catalog, "web", {"train": TRAIN})
    newest = load_manifest(catalog, "web")
    assert (newest.ref, newest.folder, newest.path) == ("web@2", second, second / "manifest.json")
    assert load_manifest(catalog, "web@1").folder == first
    for ref in (newest.id, newest.id[:10], "web@2", str(second), second / "manifest.json", f"{second}/manifest.json"):
        assert load_manifest(catalog, ref) == newest
    assert load_manifest(None, second / "manifest.json") == newest


@pytest.mark.parametrize(
    ("ref", "says"),
    [("wbe", "web"), ("web@9", "web@1"), ("zzz", "manifest list"), ("deadbeef", ""), ("./absent.json", "DIR")],
)
def test_an_unknown_manifest_is_answered_with_what_is_close(catalog, ref, says):
    admit(catalog, "web", SPLITS)
    with pytest.raises(BadInputError) as caught:
        load_manifest(catalog, ref)
    assert says in caught.value.next
    with pytest.raises(BadInputError):
        load_manifest(None, ref)


def test_other_objects_are_no_manifests(catalog):
    stage = catalog.put({"type": "lpt.stage/1", "stage_id": "s"})
    with pytest.raises(BadInputError, match="not an admission"):
        load_manifest(catalog, stage)
    with pytest.raises(UsageError):
        load_manifest(catalog, "a b")


def test_split_references():
    assert parse_split_ref("web@2:train") == ("web@2", "train")
    assert parse_split_ref("dir/manifest.json:test") == ("dir/manifest.json", "test")
    assert parse_split_ref("C:/x/manifest.json:test") == ("C:/x/manifest.json", "test")
    for bad in ("web", ":train", "web:", "a:b/c"):
        with pytest.raises(UsageError):
            parse_split_ref(bad)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.pop("splits"),
        lambda b: b.update(splits=[1]),
        lambda b: b.update(version="1"),
        lambda b: b.update(name="../x"),
        lambda b: b.update(verdict="great"),
        lambda b: b.update(contract="nothing"),
        lambda b: b.update(checks={"id": 1}),
        lambda b: b["splits"]["train"].update(rows=-1),
        lambda b: b["splits"]["train"].update(content_root="zz"),
        lambda b: b["splits"]["train"]["files"][0].update(path=3),
        lambda b: b["splits"]["train"]["files"][0].pop("sha256"),
        lambda b: b.update(checks=[{"id": "x", "status": "splendid"}]),
        lambda b: b.update(checks=[{"id": "x", "status": []}]),
        lambda b: b.update(verdict="reject", checks=[{"id": "x"}]),
        lambda b: b["splits"]["train"].update(key={"normaliser": "math", "count": 1}),
        lambda b: b.update(checks=[{"id": ["x"], "status": "pass"}]),
        lambda b: b.update(checks=[{"id": "x", "status": "pass", "value": "none"}]),
        lambda b: b.update(disjoint=True),
        lambda b: b.update(disjoint=[{"a": "train", "b": "test"}]),
        lambda b: b.update(disjoint=[{"a": "train", "b": "test", "by": "key", "intersection": "0"}]),
        lambda b: b.update(side_files=[{"path": "buckets.json"}]),
        lambda b: b.update(side_files=[{"path": "buckets.json", "bytes": 1, "sha256": {}}]),
        lambda b: b["splits"]["train"].update(key=1.5),
        lambda b: b["splits"]["train"].update(key={"normaliser": ["math"], "count": 1}),
        lambda b: b.update(tokenizer=["a"]),
        lambda b: b["splits"]["train"].update(tokenized={"rows": 1, "tokens": 2}),
        lambda b: b["splits"]["train"].update(tokenized={n: "7" for n in ("rows", "tokens", "supervised")}),
    ],
)
def test_a_damaged_manifest_is_refused_when_it_is_loaded(folder, change):
    seal_again(folder, change)
    with pytest.raises(BadInputError, match="damaged"):
        load_manifest(None, folder / "manifest.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"type": 3}'])
def test_a_file_that_is_no_manifest(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(BadInputError):
        load_manifest(None, folder)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../secret", "a/../../secret", "link", "C:\\x", "..\\x", "", "a\0b", "\\\\host\\x", "x" * 5000],
)
def test_paths_out_of_the_folder_are_refused(folder, path):
    (folder.parent / "secret").write_text("secret")
    (folder / "link").symlink_to(folder.parent / "secret")
    seal_again(folder, lambda b: b["splits"]["train"]["files"][0].update(path=path))
    with pytest.raises(RefusedError, match="outside"):
        verify(load_manifest(None, folder))


@pytest.mark.parametrize("ref", ["web@" + "1" * 5000, "x" * 300, "a\0b"])
def test_a_name_that_no_file_system_takes_is_no_traceback(tmp_path, ref):
    with pytest.raises(LptError):
        load_manifest(Catalog.open(tmp_path / ".lpt"), ref)


def test_sums_that_name_outside_files_are_refused(folder):
    with open(folder / "SHA256SUMS", "a") as file:
        file.write(f"{'0' * 64}  ../../etc/passwd\n")
    with pytest.raises(RefusedError, match="outside"):
        verify(load_manifest(None, folder))


# -- verifying


def test_a_carried_folder_verifies_without_a_catalog_and_with_coreutils(folder):
    report = verify(load_manifest(None, folder))
    assert (report.ok, report.problems, report.rows) == (True, [], [])
    assert {f["path"] for f in report.files} == {"train-00000.parquet", "test-00000.parquet", "buckets.json"}
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=folder, check=True)


def edit(folder, change, split="train") -> None:
    path = folder / f"{split}-00000.parquet"
    rows = pq.read_table(path).to_pylist()
    pq.write_table(pa.Table.from_pylist(change(rows)), path)


def test_an_edited_row_is_named(folder):
    def change(rows):
        rows[7]["text"] += "!"
        return rows

    edit(folder, change)
    report = verify(load_manifest(None, folder))
    assert [(r.split, r.row, r.what) for r in report.rows] == [("train", 7, "edited")]
    assert report.rows[0].admitted == record_ids("text", rows_of([TRAIN[7]])).tobytes().hex()
    text = "\n".join(report.problems)
    assert "train-00000.parquet row 7 was edited" in text
    assert "content_root" in text
    assert "has sha256" in text


@pytest.mark.parametrize("what", ["added", "removed", "doubled", "replaced"])
def test_rows_changed_together_with_their_ids_are_found_by_their_buckets(folder, what):
    path = folder / "train-00000.parquet"
    texts = {
        "added": [*TRAIN, "new"],
        "removed": TRAIN[:-1],
        "doubled": [*TRAIN, TRAIN[3]],
        "replaced": [*TRAIN[:-1], "new"],
    }[what]
    write_split(path, rows_of(texts))
    report = verify(load_manifest(None, folder))
    assert not report.ok
    found = {(r.what, r.row) for r in report.rows}
    expected = {
        "added": {("added", 40)},
        "removed": {("removed", -1)},
        "doubled": {("doubled", 40)},
        "replaced": {("added", 39), ("removed", -1)},
    }[what]
    assert found == expected


def test_a_reordered_and_a_rewritten_file(folder):
    edit(folder, lambda rows: rows[::-1])
    problems = verify(load_manifest(None, folder)).problems
    assert any("another order" in p for p in problems)
    assert not any("content_root" in p for p in problems)


@pytest.mark.parametrize("fault", ["missing", "truncated", "text", "no folder", "manifest", "sums", "bucket"])
def test_files_that_are_gone_or_broken(folder, catalog, fault):
    path = folder / "train-00000.parquet"
    loaded = load_manifest(None, folder)
    match fault:
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(path.read_bytes()[:-20])
        case "text":
            path.write_text("not parquet")
        case "no folder":
            shutil.rmtree(folder)
        case "manifest":
            (folder / "manifest.json").write_bytes(b"{}")
        case "sums":
            (folder / "SHA256SUMS").write_text("nonsense\n")
        case "bucket":
            (folder / "buckets.json").write_text("{}")
    report = verify(loaded)
    assert not report.ok
    assert all(isinstance(problem, str) for problem in report.problems)


def test_rows_that_are_no_records_any_more_are_named(folder):
    def change(rows):
        rows[3]["text"] = None
        return rows

    edit(folder, change)
    report = verify(load_manifest(None, folder))
    assert ("unreadable", 3) in {(r.what, r.row) for r in report.rows}


@pytest.mark.parametrize("stored", ["z" * 64, "short", 7, 1.5])
def test_stored_ids_may_be_anything(folder, stored):
    def change(rows):
        rows[7]["text"] += "!"
        return [row | {"record_id": stored} for row in rows]

    edit(folder, change)
    problems = "\n".join(verify(load_manifest(None, folder)).problems)
    assert "train holds other rows than were admitted" in problems


def test_text_that_is_no_utf8_is_a_problem_and_no_traceback(folder):
    path = folder / "train-00000.parquet"
    table = pq.read_table(path)
    broken = pa.array([b"\xff\xfe"] * len(table), pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(table), broken.buffers())
    pq.write_table(table.set_column(table.column_names.index("text"), "text", text), path)
    problems = verify(load_manifest(None, folder)).problems
    assert any("cannot be read as Parquet" in problem for problem in problems)


def test_a_forged_disjointness_is_computed_again(catalog):
    shared = {"train": TRAIN, "test": [*TEST, TRAIN[0]]}
    proof = [{"a": "train", "b": "test", "by": "record", "n_a": 40, "n_b": 11, "intersection": 0}]
    report = verify(load_manifest(None, admit(catalog, "leaky", shared, disjoint=proof)))
    assert report.problems == ["test and train share 1 records, the manifest says 0"]


def test_keys_are_checked_when_the_caller_can_compute_them(folder):
    def key(kind, record, extra, normaliser):
        assert (kind, normaliser) == ("text", "text")
        return hashlib.sha256(record["text"].encode()).digest()

    root = key_root(np.stack([np.frombuffer(key("text", {"text": t}, {}, "text"), np.uint8) for t in TRAIN]))
    claimed = {"normaliser": "text", "root": root.root, "count": 40}
    seal_again(folder, lambda b: b["splits"]["train"].update(key=claimed))
    assert verify(load_manifest(None, folder), key=key).ok
    assert verify(load_manifest(None, folder)).not_checked
    wrong = {**claimed, "root": "0" * 64}
    seal_again(folder, lambda b: b["splits"]["train"].update(key=wrong))
    assert any("keys" in p for p in verify(load_manifest(None, folder), key=key).problems)


def test_another_definition_of_a_record_is_said(folder):
    seal_again(folder, lambda b: b.update(canon="lpt-canon/9"))
    assert "lpt-canon/9" in verify(load_manifest(None, folder)).problems[0]


# -- comparing


@pytest.mark.parametrize(
    ("splits", "bump", "counts", "moved"),
    [
        (SPLITS, "PATCH", {}, 0),
        ({**SPLITS, "train": TRAIN[::-1]}, "PATCH", {}, 0),
        ({**SPLITS, "train": [*TRAIN, "new"]}, "MINOR", {"train": (1, 0)}, 0),
        ({**SPLITS, "train": [*TRAIN, TRAIN[0]]}, "MINOR", {"train": (1, 0)}, 0),
        ({**SPLITS, "extra": ["x"]}, "MINOR", {"extra": (1, 0)}, 0),
        ({**SPLITS, "train": TRAIN[1:]}, "MAJOR", {"train": (0, 1)}, 0),
        ({**SPLITS, "train": ["edited", *TRAIN[1:]]}, "MAJOR", {"train": (1, 1)}, 0),
        ({"train": TRAIN[1:], "test": [*TEST, TRAIN[0]]}, "MAJOR", {"train": (0, 1), "test": (1, 0)}, 1),
        ({"train": TRAIN}, "MAJOR", {"test": (0, 10)}, 0),
    ],
)
def test_the_version_step_follows_the_rows(catalog, splits, bump, counts, moved):
    left, right = admit(catalog, "web", SPLITS), admit(catalog, "web", splits)
    if splits == SPLITS:  # the same rows, compressed anew
        table = pq.read_table(right / "train-00000.parquet")
        pq.write_table(table, right / "train-00000.parquet", compression="gzip")
        digest = hashlib.sha256((right / "train-00000.parquet").read_bytes()).hexdigest()
        seal_again(right, lambda b: b["splits"]["train"]["files"][0].update(sha256=digest))
    answer = diff(load_manifest(None, left), load_manifest(None, right)).to_json()
    assert answer["bump"] == bump
    changed = {n: (s["added"], s["removed"]) for n, s in answer["splits"].items() if s["added"] or s["removed"]}
    assert (changed, answer["moved"]) == (counts, moved)
    assert answer["reasons"]


def test_a_manifest_does_not_differ_from_itself(catalog):
    loaded = load_manifest(None, admit(catalog, "web", SPLITS))
    assert diff(loaded, loaded).bump == "NONE"


def test_checks_that_changed_are_listed(catalog):
    old = [{"id": "a", "status": "pass", "value": 0.0}, {"id": "b", "status": "skipped", "value": None}]
    new = [{"id": "a", "status": "fail", "value": 0.25}, {"id": "c", "status": "pass", "value": 1}]
    left, right = admit(catalog, "web", SPLITS, checks=old), admit(catalog, "web", SPLITS, checks=new)
    answer = diff(load_manifest(None, left), load_manifest(None, right)).to_json()
    assert answer["checks"] == [
        {"id": "a", "left": "pass 0", "right": "fail 0.25"},
        {"id": "b", "left": "skipped", "right": "-"},
        {"id": "c", "left": "-", "right": "pass 1"},
    ]


def test_rows_that_are_not_here_cannot_be_compared(catalog):
    left, right = admit(catalog, "web", SPLITS), admit(catalog, "web", {"train": ["other"]})
    a, b = load_manifest(None, left), load_manifest(None, right)
    shutil.rmtree(left)
    with pytest.raises(BadInputError, match="not there"):
        diff(a, b)
