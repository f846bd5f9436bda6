"""Bad input at the command line: three parts, the exit code, nothing lost, nothing half-written."""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import contents, invoke, jsonl, mount, refused, spawn, sums, unchanged

GOOD = b'{"text": "one good row of text"}\n'
BROKEN = {
    "empty.jsonl": b"",
    "blank.jsonl": b"\n\n",
    "binary.jsonl": b"\x7fELF" + bytes(range(256)),
    "zip.jsonl": b"PK\x03\x04" + bytes(99),
    "cut.jsonl.gz": gzip.compress(GOOD * 500)[:-9],
    "wide.jsonl": '{"text": "wide"}'.encode("utf-16"),
    "fake.parquet": GOOD,
    "only-bad.jsonl": b'{"text": \nhello\n',
    "bad.csv": b'text\nx\n"never closed\n',
    "notes.txt": GOOD,
}


def reading_commands(*paths: object) -> list[tuple[object, ...]]:
    """Each command that reads raw files."""
    return [
        ("data", "dedup", *paths, "--out", "out.jsonl"),
        ("data", "split", *paths, "--test", 1, "--out", "splits"),
        ("data", "audit", *paths, "--contract", "text"),
        ("admit", "name", "--contract", "text", *[part for path in paths for part in ("--train", path)]),
    ]


# -- files


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_cannot_be_read(tmp_path, name):
    (tmp_path / name).write_bytes(BROKEN[name])
    for command in reading_commands(name):
        with unchanged(tmp_path):
            refused(invoke(*command, cwd=tmp_path), 5, name)


def test_missing_files_and_folders_without_data(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "train.jsonl").write_bytes(GOOD)
    for command in reading_commands("trian.jsonl"):
        with unchanged(tmp_path):
            refused(invoke(*command, cwd=tmp_path), 5, "trian.jsonl", "train.jsonl")
    for command in [*reading_commands("folder"), *reading_commands("*.parquet")]:
        with unchanged(tmp_path):
            refused(invoke(*command, cwd=tmp_path), 5)


def test_one_bad_file_among_good_ones_stops_everything(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "z.jsonl.gz").write_bytes(BROKEN["cut.jsonl.gz"])
    for command in reading_commands("a.jsonl", "z.jsonl.gz"):
        with unchanged(tmp_path):
            refused(invoke(*command, cwd=tmp_path), 5, "z.jsonl.gz", "cut short")


# -- rows

ROWS = [
    (b'{"text": "a good row", "n": 1}', None),
    (b'{"text": "a broken row"', "invalid_json"),
    (b'{"text": "nul \x00 raw"}', "nul_byte"),
    (b'{"text": "half a pair \\ud800"}', "lone_surrogate"),
    (b'{"text": "not a number", "n": NaN}', "not_a_number"),
    (b'{"text": "first", "text": "second"}', "duplicate_key"),
    (b'["no", "object"]', "not_an_object"),
    (b'{"text": "bad \xff byte"}', "invalid_utf8"),
    (b'{"text": 7}', "wrong_type"),
    (b'{"text": "  "}', "empty_text"),
    (b'{"n": 2}', "missing_field"),
    ('{"text": "another good row, with ümlauts", "n": "2"}'.encode(), None),
]


def test_bad_rows_are_put_aside_with_their_line_and_reason(tmp_path):
    data = b"\xef\xbb\xbf" + b"\r\n".join(line for line, _ in ROWS)  # byte-order mark, CRLF, no last line feed
    (tmp_path / "in.jsonl").write_bytes(data)
    body = invoke("data", "dedup", "in.jsonl", "--out", "out.jsonl", "--json", cwd=tmp_path).json
    reasons = [reason for _, reason in ROWS if reason]
    assert (body["rows_in"], body["rows_out"], body["quarantined"], body["removed"]) == (12, 2, len(reasons), {})
    assert sum(body["quarantine"].values()) == len(reasons)
    assert set(body["quarantine"]) == set(reasons)
    kept = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert kept == [json.loads(line) for line, reason in ROWS if reason is None]
    answer = invoke("sql", "select row, reason, detail from v_decision order by row", "--json", cwd=tmp_path).json
    assert [(r["row"], r["reason"]) for r in answer["rows"]] == [(i, r) for i, (_, r) in enumerate(ROWS) if r]
    for row in answer["rows"]:
        assert row["detail"].startswith(f"in.jsonl:{row['row'] + 1}:")
    why = invoke("why", "in.jsonl:5", cwd=tmp_path)
    assert why.code == 0, why.stderr
    assert "not_a_number" in why.stdout
    # What was put aside is still readable, whole.
    aside = (tmp_path / body["quarantine_file"]).read_bytes()
    assert aside.count(b"\n") == len(reasons)


def test_a_line_of_50_mb(tmp_path):
    with open(tmp_path / "in.jsonl", "wb") as file:
        file.write(GOOD + b'{"text": "' + b"word " * 10_000_000 + b'"}\n' + GOOD)
    exact = ("--method", "exact", "--out", "out.jsonl", "--json")
    body = invoke("data", "dedup", "in.jsonl", *exact, cwd=tmp_path).json
    assert (body["rows_in"], body["rows_out"], body["quarantined"]) == (3, 2, 0)
    assert (tmp_path / "out.jsonl").stat().st_size == 50_000_000 + len(b'{"text": ""}\n') + len(GOOD)


def test_wrong_columns(tmp_path):
    jsonl(tmp_path / "in.jsonl", [{"contents": "a row", "id": 1}])
    for command in reading_commands("in.jsonl"):
        with unchanged(tmp_path):
            refused(invoke(*command, cwd=tmp_path), 5, "contents, id")
            refused(invoke(*command, "--text-column", "content", cwd=tmp_path), 5, "contents")
    jsonl(tmp_path / "in.jsonl", [{"text": "a row", "id": 1}])
    for arguments in (("dedup", "--out", "o.jsonl"), ("split", "--test", 1, "--out", "s")):
        with unchanged(tmp_path):
            outcome = invoke("data", arguments[0], "in.jsonl", "--key", "idd", *arguments[1:], cwd=tmp_path)
            refused(outcome, outcome.code, "idd", "id")
            assert outcome.code in (2, 5)


def test_mixed_types_are_never_widened(tmp_path):
    """To JSON lines the rows pass as they are; to Parquet the mixed column becomes JSON text, and that is said."""
    rows = [{"text": f"row number {i}", "mixed": value} for i, value in enumerate((1, "1", None, 1.5, [1], True))]
    jsonl(tmp_path / "in.jsonl", rows)
    invoke("data", "dedup", "in.jsonl", "--out", "out.jsonl", "--json", cwd=tmp_path)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "in.jsonl").read_bytes()
    body = invoke("data", "dedup", "in.jsonl", "--out", "out.parquet", "--json", cwd=tmp_path).json
    assert body["columns_as_json_text"] == ["mixed"]
    found = pq.read_table(tmp_path / "out.parquet")["mixed"].to_pylist()
    assert [json.loads(v) if v is not None else None for v in found] == [row["mixed"] for row in rows]


# -- places to write


def long_rows(path: Path, n: int = 1000) -> Path:
    return jsonl(path, [{"text": os.urandom(500).hex()} for _ in range(n)])


def test_a_full_disk_leaves_nothing_and_the_same_command_works_later(tmp_path, disk):
    long_rows(tmp_path / "in.jsonl")
    for name in ("out.jsonl", "out.parquet", "out.jsonl.gz"):
        outcome = invoke("data", "dedup", "in.jsonl", "--out", disk / name, cwd=tmp_path)
        refused(outcome, 5, "cannot be written", "No space left", "free some space")
    refused(invoke("data", "split", "in.jsonl", "--test", 9, "--out", disk / "s", cwd=tmp_path), 5, "No space left")
    admit = ("admit", "big", "--contract", "text", "--train", "in.jsonl")
    refused(invoke(*admit, "--out", disk / "big", cwd=tmp_path), 5, "No space left")
    assert contents(disk) == {}
    assert invoke("manifest", "list", "--json", cwd=tmp_path).json["manifests"] == []
    assert invoke("sql", "select count(*) n from v_stage", "--json", cwd=tmp_path).json["rows"] == [{"n": 0}]
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    assert invoke("data", "dedup", "in.jsonl", "--out", disk / "out.jsonl", cwd=tmp_path).code == 0
    assert (disk / "out.jsonl").read_bytes() == (tmp_path / "in.jsonl").read_bytes()


def test_a_full_disk_under_the_catalog(tmp_path, disk):
    long_rows(tmp_path / "in.jsonl")
    admit = ("admit", "big", "--contract", "text", "--train", "in.jsonl", "--catalog", disk / "cat")
    refused(invoke(*admit, cwd=tmp_path), 5, "No space left")
    assert not [path for path in contents(disk) if "objects" in path or "splits" in path]
    subprocess.run(["mount", "-o", "remount,size=32m", str(disk)], check=True)
    assert invoke(*admit, cwd=tmp_path).code in (0, 3, 4)
    assert invoke("manifest", "verify", "big", "--catalog", disk / "cat", cwd=tmp_path).code == 0


def test_a_full_disk_under_a_run(place, model, tmp_path, disk):
    """Nothing half-written is taken for a checkpoint or a model, and --resume goes on when there is space."""
    run = sft("--admitted", "chats:train", "--set", "use_peft=false", model=model, out=disk / "r")
    outcome = refused(invoke(*run, "--json", cwd=place), 5, "cannot be written", "No space left", "free some space")
    assert outcome.json["error"]["exit_code"] == 5
    assert not list((disk / "r" / "checkpoints").iterdir())
    refused(invoke(*sft("--admitted", "chats:train", model="tiny", out=disk / "t"), cwd=place), 5, "No space left")
    assert contents(disk / "t") == {}
    subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
    assert invoke("train", "sft", "--resume", disk / "r", cwd=place).code == 0
    assert json.loads((disk / "r" / "run.json").read_bytes())["status"] == "done"
    assert invoke(*sft("--admitted", "chats:train", model="tiny", out=disk / "t"), cwd=place).code == 0


@pytest.fixture
def sealed(tmp_path):
    """Two folders that take no writing: an empty one and one with a file of rows and a catalog."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    if not mount(folder, "-o", "size=16m"):
        pytest.skip("needs the right to mount a read-only disk")
    jsonl(folder / "in.jsonl", sums(20))
    assert invoke("data", "split", "in.jsonl", "--key", "countdown", "--test", 4, "--out", "s", cwd=folder).code == 0
    admit = ("admit", "sums", "--contract", "rlvr", "--train", "s/train.jsonl", "--test", "s/test.jsonl")
    assert invoke(*admit, "--key", "countdown", cwd=folder).code in (0, 3)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=False)


def test_a_read_only_folder_takes_no_output(tmp_path, sealed):
    long_rows(tmp_path / "in.jsonl", n=3)
    with unchanged(sealed, tmp_path):
        refused(invoke("data", "dedup", "in.jsonl", "--out", sealed / "o.jsonl", cwd=tmp_path), 5, "Read-only")
        refused(invoke("data", "split", "in.jsonl", "--test", 1, "--out", sealed / "n", cwd=tmp_path), 5, "Read-only")
        refused(invoke("data", "generate", "countdown", "--n", 5, "--out", sealed / "p.jsonl", cwd=tmp_path), 5)
        admit = ("admit", "a", "--contract", "text", "--train", "in.jsonl", "--out", sealed / "a")
        refused(invoke(*admit, cwd=tmp_path), 5, "Read-only")


def test_a_read_only_catalog_can_be_asked_but_not_written(tmp_path, sealed):
    with unchanged(sealed):
        assert invoke("manifest", "list", "--json", cwd=sealed).json["manifests"][0]["name"] == "sums"
        assert invoke("manifest", "show", "sums", "--json", cwd=sealed).json["contract"] == "rlvr"
        assert invoke("manifest", "verify", "sums", "--json", cwd=sealed).json["ok"]
        assert invoke("why", "in.jsonl:1", cwd=sealed).code == 0
        rows = invoke("sql", "select name from v_manifest", "--json", cwd=sealed).json["rows"]
        assert rows == [{"name": "sums"}]
        again = ("data", "dedup", "in.jsonl", "--key", "row", "--out", tmp_path / "o.jsonl")
        refused(invoke(*again, cwd=sealed), 5, "Read-only")
        assert not (tmp_path / "o.jsonl").exists()
        refused(invoke("catalog", "rebuild", cwd=sealed), 5, "Read-only")


def test_a_catalog_that_lost_an_object_is_made_again_without_it_and_says_so(tmp_path):
    long_rows(tmp_path / "in.jsonl", n=3)
    for name in ("a", "b"):
        done = invoke("data", "dedup", "in.jsonl", "--out", f"{name}.jsonl", "--json", cwd=tmp_path)
        assert done.code == 0, done.stderr
    gone = done.json["object"]
    (tmp_path / ".lpt/objects" / gone[:2] / f"{gone[2:]}.json").unlink()
    (tmp_path / ".lpt/catalog.duckdb").unlink()
    outcome = invoke("catalog", "rebuild", "--json", cwd=tmp_path)
    assert (outcome.code, outcome.json["unreadable"]) == (5, [gone])
    assert gone[:16] in outcome.stderr
    rows = invoke("sql", "select output from v_stage", "--json", cwd=tmp_path).json["rows"]
    assert [row["output"] for row in rows] == ["a.jsonl"]


def test_an_output_is_never_an_input_nor_a_folder_nor_of_no_format(tmp_path):
    long_rows(tmp_path / "in.jsonl", n=3)
    (tmp_path / "folder.jsonl").mkdir()
    with unchanged(tmp_path):
        for out in ("in.jsonl", "folder.jsonl", "out", "out.txt", "absent/out.jsonl", "in.jsonl/out.jsonl"):
            refused(invoke("data", "dedup", "in.jsonl", "--out", out, cwd=tmp_path), 5, out.split("/")[0])


# -- manifests and the door


def grpo(*arguments: object, model: Path, out: Path) -> tuple[object, ...]:
    small = ("max_steps=1", "num_generations=2", "per_device_train_batch_size=2", "max_completion_length=2",
             "gradient_accumulation_steps=1", "reward_workers=1")  # fmt: skip
    settings = [part for value in small for part in ("--set", value)]
    return ("train", "grpo", "--model", model, "--out", out, *settings, *arguments)


def sft(*arguments: object, model: Path, out: Path) -> tuple[object, ...]:
    return ("train", "sft", "--model", model, "--out", out, "--set", "max_steps=1", *arguments)


def test_unknown_manifests_versions_and_splits(place, model, tmp_path):
    out = tmp_path / "run"
    with unchanged(place, tmp_path):
        for command in ("show", "verify"):
            refused(invoke("manifest", command, "sumz", cwd=place), 5, "did you mean sums?")
            refused(invoke("manifest", command, "sums@9", cwd=place), 5, "sums@1")
            refused(invoke("manifest", command, "nowhere/manifest.json", cwd=place), 5, "nowhere")
        refused(invoke("manifest", "diff", "sums", "sumz", cwd=place), 5, "did you mean sums?")
        refused(invoke(*grpo("--admitted", "sumz:train", model=model, out=out), cwd=place), 5, "did you mean sums?")
        refused(invoke(*grpo("--admitted", "sums:tarin", model=model, out=out), cwd=place), 5, "train")
        refused(invoke(*grpo("--admitted", "sums", model=model, out=out), cwd=place), 2, "sums")
        refused(invoke("eval", "--admitted", "sumz:test", "--model", model, cwd=place), 5, "did you mean sums?")
        assert "not found" in invoke("why", "abcdef0123", cwd=place).stdout
        refused(invoke("why", "nonsense", cwd=place), 2, "nonsense")
        refused(invoke("sql", "@nonsense", cwd=place), 2, "@lost-rows")
        for name in ("a" * 300, "a/" * 2100 + "b", "nul\0", "\u00e9" * 200 + ".json"):  # no file system takes them
            refused(invoke("eval", "--admitted", f"{name}:train", "--model", "tiny", cwd=place), 5, name[:3])
    with unchanged(tmp_path):
        refused(invoke("eval", "--admitted", f"{'a' * 300}:train", "--model", "tiny", cwd=tmp_path), 5, "catalog")
        for command in (("list",), ("show", "sums"), ("verify", "sums")):
            refused(invoke("manifest", *command, cwd=tmp_path), 5, "there is no catalog here")
        refused(invoke("sql", "select 1", cwd=tmp_path), 5, "there is no catalog here")


def test_the_wrong_folder_is_told_and_gets_no_catalog(place, model, tmp_path):
    out = tmp_path / "run"
    with unchanged(tmp_path):
        for command in (
            grpo("--admitted", "sums:train", model=model, out=out),
            ("eval", "--admitted", "sums:test", "--model", model),
            ("export", model, "--out", out, "--merge", "--admitted", "sums@1:test"),
            ("reward", "sample", "--admitted", "sums:test", "--policy", model, "--model", model, "--out", "a.jsonl"),
        ):
            words = ("there is no catalog here", "seen: .lpt", "--catalog DIR, or LPT_CATALOG")
            refused(invoke(*command, cwd=tmp_path), 5, *words)
    # A folder that is carried needs none.
    carried = f"{place}/.lpt/splits/sums@1/manifest.json:nowhere"
    refused(invoke("eval", "--admitted", carried, "--model", model, cwd=tmp_path), 5, "no split of that name")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("admit", ("`lpt admit` needs NAME, --contract, --train", "--contract: text, sft (chats), preference")),
        ("admit chats --train a.jsonl", ("needs --contract", "seen: lpt admit chats --train a.jsonl")),
        ("data audit a.jsonl", ("needs --contract", "rlvr (prompts with an answer to verify)")),
        ("eval", ("needs --admitted, --model",)),
        ("eval --model tiny", ("needs --admitted",)),
        ("data dedup in.jsonl", ("needs --out",)),
        ("manifest diff a", ("needs NAME[@V]", "path to manifest.json")),
        ("train sft", ("seen: no --admitted no --model no --out", "next: --admitted NAME:train --model DIR --out RUN")),
        ("train sft --model tiny", ("seen: no --admitted no --out",)),
        ("train matrix", ("needs SPEC.yaml, --out",)),
    ],
)
def test_all_that_is_missing_is_named_at_once(tmp_path, line, words):
    refused(invoke(*line.split(), cwd=tmp_path), 2, *words)


def test_a_matrix_names_all_keys_that_it_lacks_and_prints_one_to_begin_with(tmp_path):
    (tmp_path / "a.yaml").write_text("algorithm: sft\nunadmitted: a.jsonl\n")
    told = invoke("train", "matrix", "a.yaml", "--out", "runs/a", cwd=tmp_path)
    refused(told, 5, "the matrix lacks variants, seeds, band", "band: {relative: 0.02}", "--example")
    example = invoke("train", "matrix", "--example", cwd=tmp_path)
    assert example.code == 0
    (tmp_path / "rank.yaml").write_text(example.stdout)
    from lpt_train.matrix_spec import read_spec

    spec = read_spec(tmp_path / "rank.yaml")
    assert (len(spec.cells), spec.metric) == (9, "eval_loss")


def test_runs_and_matrices_are_no_data_sets_and_are_answered_with_what_they_have(place, tmp_path):
    for name, mark in (("a", "run.json"), ("b", "run.json"), ("m", "matrix.md")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / mark).write_text("{}")
    there = ("--catalog", place / ".lpt")
    diff = invoke("manifest", "diff", "runs/a", "runs/b", *there, cwd=tmp_path)
    refused(diff, 2, "a run is not an admitted data set", "lpt sql @compare", "--model runs/a --baseline OTHER")
    report = invoke("report", "runs/m", *there, cwd=tmp_path)
    refused(report, 2, "a matrix is not", "its page is runs/m/matrix.md", "lpt report runs/m/VARIANT-seedN")


def test_a_second_version_is_said_and_the_first_is_named_for_a_split_that_it_alone_has(place, model, tmp_path):
    there = ("--catalog", tmp_path / "catalog")
    rlvr = ("--contract", "rlvr", "--key", "countdown", "--train")
    first = invoke("admit", "n", *rlvr, "train.jsonl", "--test", "test.jsonl", *there, cwd=place)
    assert "there was" not in first.said
    again = invoke("admit", "n", *rlvr, "train.jsonl", "--test", "test.jsonl", *there, cwd=place)
    assert "there was" not in again.said
    second = invoke("admit", "n", *rlvr, "train.jsonl", *there, cwd=place)
    assert "there was n@1; this is n@2, and what n means from now on" in second.said
    lost = invoke("eval", "--admitted", "n:test", "--model", model, *there, cwd=place)
    refused(lost, 5, "n@2 has no split of that name", "next: one of: train; n@1 has test: n@1:test")


def test_what_is_no_split_is_answered_with_the_splits_or_with_how_a_file_is_admitted(place, model, tmp_path):
    out = tmp_path / "run"
    for typed in ("train.jsonl", "train.jsonl:train"):
        admit = "next: lpt admit NAME --contract rlvr --train train.jsonl; then NAME:train"
        refused(invoke(*grpo("--admitted", typed, model=model, out=out), cwd=place), 2, "not an admitted split", admit)
    refused(invoke("eval", "--admitted", "chats.jsonl", "--model", model, cwd=place), 2, "--contract sft --train chats")
    for typed in ("sums@1", "sums", ".lpt/splits/sums@1/manifest.json"):
        words = f"next: {typed}:train; sums@1 has test, train"
        refused(invoke(*grpo("--admitted", typed, model=model, out=out), cwd=place), 2, words)
    refused(invoke(*grpo("--admitted", "other", model=model, out=out), cwd=place), 2, "e.g. NAME:train")


def copied(place: Path, target: Path, name: str = "sums@1") -> Path:
    """The admitted folder, carried elsewhere."""
    shutil.copytree(place / ".lpt" / "splits" / name, target)
    return target


def test_an_edited_split_is_refused_and_its_rows_are_named(place, model, tmp_path):
    folder = copied(place, tmp_path / "carried")
    file = folder / "train-00000.parquet"
    table = pq.read_table(file)
    answers = table["answer"].to_pylist()
    answers[7], answers[11] = answers[11], answers[7]
    pq.write_table(table.set_column(table.column_names.index("answer"), "answer", pa.array(answers)), file)
    ref = folder / "manifest.json"
    with unchanged(place, tmp_path):
        outcome = invoke(*grpo("--admitted", f"{ref}:train", model=model, out=tmp_path / "r"), cwd=tmp_path)
        refused(outcome, 4, "is not what was admitted", "row 7", "row 11", "lpt admit")
        assert "row 8" not in outcome.said
        refused(invoke("eval", "--admitted", f"{ref}:train", "--model", model, cwd=tmp_path), 4, "row 7")
        verified = invoke("manifest", "verify", ref, "--json", cwd=tmp_path)
        assert verified.code == 4
        assert not verified.json["ok"]
    # The other split is whole and stays usable.
    measured = invoke("eval", "--admitted", f"{ref}:test", "--model", model, "--max-tokens", "2", cwd=tmp_path)
    assert measured.code == 0


def test_a_split_with_rows_taken_away_or_garbage_for_a_file(place, model, tmp_path):
    folder = copied(place, tmp_path / "carried")
    file = folder / "train-00000.parquet"
    whole = file.read_bytes()
    run = grpo("--admitted", f"{folder}/manifest.json:train", model=model, out=tmp_path / "r")
    pq.write_table(pq.read_table(file).slice(0, 20), file)
    gone = refused(invoke(*run, cwd=tmp_path), 4, "20 rows, 24 were admitted")
    assert gone.said.count("a row is gone") == 4
    for data in (b"", whole[:100], b"garbage" * 100):
        file.write_bytes(data)
        refused(invoke(*run, cwd=tmp_path), 4, "train-00000.parquet")
    file.unlink()
    refused(invoke(*run, cwd=tmp_path), 5, "train-00000.parquet")
    (folder / "manifest.json").write_bytes(b'{"type": "lpt.admission/1"')
    refused(invoke(*run, cwd=tmp_path), 5, "manifest.json")
    assert not (tmp_path / "r" / "run.json").exists()


def test_another_contract_and_another_tokenizer(place, model, tmp_path):
    from lpt_train.tiny import make_tiny

    with unchanged(place, tmp_path):
        outcome = invoke(*sft("--admitted", "sums:train", model=model, out=tmp_path / "r"), cwd=place)
        refused(outcome, 4, "admitted for rlvr", "lpt train grpo")
        outcome = invoke(*grpo("--admitted", "chats:train", model=model, out=tmp_path / "r"), cwd=place)
        refused(outcome, 4, "admitted for sft", "lpt train sft")
    other = make_tiny(tmp_path / "other", hidden=32, layers=1, heads=2)
    ids = (other / "tokenizer.json").read_text("utf-8")
    swapped = ids.replace('"a": 97', '"a": 98', 1).replace('"b": 98', '"b": 97', 1)
    (other / "tokenizer.json").write_text(swapped, "utf-8")
    with unchanged(place, tmp_path):
        outcome = invoke(*sft("--admitted", "chats:train", model=other, out=tmp_path / "r"), cwd=place)
        refused(outcome, 4, "another tokenizer", "--tokenizer")
    assert invoke(*sft("--admitted", "chats:train", model=model, out=tmp_path / "r"), cwd=place).code == 0


def test_a_rejected_split_cannot_be_trained_on(model, tmp_path):
    jsonl(tmp_path / "in.jsonl", [*sums(10), *sums(10)])
    admit = ("admit", "twice", "--contract", "rlvr", "--train", "in.jsonl", "--key", "countdown", "--json")
    outcome = invoke(*admit, cwd=tmp_path)
    assert (outcome.code, outcome.json["verdict"]) == (4, "reject")
    with unchanged(tmp_path):
        outcome = invoke(*grpo("--admitted", "twice:train", model=model, out=tmp_path / "r"), cwd=tmp_path)
        refused(outcome, 4, "was rejected", "lpt manifest show twice@1")


def test_what_is_no_split_at_all(place, model, tmp_path):
    both = ("--admitted", "sums:train", "--unadmitted", place / "train.jsonl")
    with unchanged(place, tmp_path):
        refused(invoke(*grpo(model=model, out=tmp_path / "r"), cwd=place), 2, "neither")
        refused(invoke(*grpo(*both, model=model, out=tmp_path / "r"), cwd=place), 2, "both")
        refused(invoke(*grpo("--unadmitted", "train.jsonl", model=model, out=tmp_path / "r"), cwd=place), 5, "row 0")
        refused(invoke(*grpo("--unadmitted", "no.jsonl", model=model, out=tmp_path / "r"), cwd=place), 5, "no.jsonl")


def test_models_that_are_none(place, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read once, when it is imported
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    with unchanged(place, tmp_path):
        for name in (tmp_path / "empty", tmp_path / "file", tmp_path / "absent", "nobody/no-such-model"):
            run = sft("--admitted", "chats:train", model=name, out=tmp_path / "r")
            refused(invoke(*run, cwd=place), 5, str(name))


# -- rewards

REWARDS = """
import time
def raises(completions, **_):
    raise ValueError("no idea")
def hangs(completions, **_):
    while True:
        pass
def short(completions, **_):
    return [1.0] * (len(completions) - 1)
def words(completions, **_):
    return ["good"] * len(completions)
def ends(completions, **_):
    import os
    os._exit(3)
"""
LATER = """
asked = 0
def later(completions, **_):
    # The pool tries a batch that fails item by item: the first of the two then raises, the second hangs.
    global asked
    asked += 1
    if asked == 1:
        return [float(len(c)) for c in completions]
    if len(completions) > 1 or asked == 3:
        raise RuntimeError("later")
    while True:
        pass
"""


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("raises", ("error_raised", "no idea")),
        ("hangs", ("time_limit_passed", "reward_timeout")),
        ("short", ("wrong_length", "one value for each completion")),
        ("words", ("not_a_number",)),
        ("ends", ("process_ended",)),
    ],
)
def test_rewards_that_misbehave_stop_the_run_before_it_starts(place, model, tmp_path, monkeypatch, reward, words):
    (tmp_path / "mine.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    run = grpo("--admitted", "sums:train", "--reward", f"mine:{reward}", "--set", "reward_timeout=0.3",
               model=model, out=tmp_path / "r")  # fmt: skip
    with unchanged(place):
        refused(invoke(*run, cwd=place), 5, f"mine:{reward}", *words)
    assert not (tmp_path / "r").exists()


def test_what_a_refused_reward_said_is_kept_and_the_folder_is_still_free(place, model, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import os, sys\ndef ends(completions, **_):\n    print('my last words', file=sys.stderr)\n    os._exit(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = grpo("--admitted", "sums:train", "--reward", "mine:ends", model=model, out=tmp_path / "r")
    for _ in range(2):
        refused(invoke(*run, cwd=place), 5, "mine:ends", "process_ended", "rewards.log")
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["rewards.log"]
    assert "my last words" in (tmp_path / "r" / "rewards.log").read_text()


def test_rewards_that_are_not_there(place, model, tmp_path):
    with unchanged(place):
        for reward, code in (("nonsense", 2), ("countdown=lots", 2), ("absent:score", 5), ("json:score", 5)):
            run = grpo("--admitted", "sums:train", "--reward", reward, model=model, out=tmp_path / "r")
            refused(invoke(*run, cwd=place), code, reward.split("=")[0].split(":")[0])
            assert not (tmp_path / "r").exists()


def test_a_reward_that_misbehaves_later_is_counted_and_never_a_reward(place, model, tmp_path, monkeypatch):
    """It scores the trial completions, then raises for some and hangs for others: None, excluded, with the reason."""
    (tmp_path / "mine.py").write_text(LATER)
    monkeypatch.syspath_prepend(tmp_path)
    run = grpo("--admitted", "sums:train", "--reward", "mine:later", "--set", "reward_timeout=0.3", "--json",
               model=model, out=tmp_path / "r")  # fmt: skip
    outcome = invoke(*run, cwd=place)
    assert outcome.code == 0, outcome.stderr
    assert outcome.json["status"] == "done"
    assert outcome.json["rewards"]["unscorable"] == {"error_raised": 1, "time_limit_passed": 1}
    rollouts = [json.loads(line) for line in (tmp_path / "r" / "rollouts.jsonl").read_text().splitlines()]
    assert rollouts
    assert all(rollout["reward"] is None for rollout in rollouts)


# -- settings


def test_settings_that_are_not(place, model, tmp_path):
    (tmp_path / "bad.yaml").write_text("key: [unclosed\n")
    (tmp_path / "list.yaml").write_text("- learning_rate\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "unknown.yaml").write_text("lerning_rate: 1\n")
    (tmp_path / "number.yaml").write_text("learning_rate: fast\n")
    wrong = {
        ("--set", "lerning_rate=1"): "did you mean learning_rate",
        ("--set", "learning_rate=fast"): "fast",
        ("--set", "learning_rate=nan"): "learning_rate",
        ("--set", "learning_rate"): "key=value",
        ("--set", "=1"): "key=value",
        ("--set", "max_steps=0"): "max_steps",
        ("--set", "max_steps=1.5"): "1.5",
        ("--set", "dtype=float8"): "float8",
        ("--config", tmp_path / "bad.yaml"): "no YAML",
        ("--config", tmp_path / "list.yaml"): "mapping",
        ("--config", tmp_path / "binary.yaml"): "no YAML",
        ("--config", tmp_path / "unknown.yaml"): "did you mean learning_rate",
        ("--config", tmp_path / "number.yaml"): "fast",
        ("--config", tmp_path / "absent.yaml"): "absent.yaml",
        ("--config", tmp_path): "configuration",
    }
    with unchanged(place, tmp_path):
        for arguments, words in wrong.items():
            run = ("train", "sft", "--admitted", "chats:train", "--model", model, "--out", tmp_path / "r", *arguments)
            refused(invoke(*run, cwd=place), 2, words)


def test_options_of_other_tools_are_answered_with_what_to_type_here(tmp_path):
    habits = {
        ("--lr", "1e-4"): "next: --set learning_rate=1e-4",
        ("--num-epochs=3",): "next: --set num_train_epochs=3",
        ("--output_dir", "runs/a"): "next: --out runs/a",
        ("--bf16",): "next: --set dtype=bfloat16",
        ("--dataset", "a.jsonl"): "next: lpt admit NAME --contract sft --train a.jsonl; then --admitted NAME:train",
        ("--beta", "0.1"): "sft has no setting beta: it is one of dpo",
    }
    for typed, words in habits.items():
        refused(invoke("train", "sft", *typed, cwd=tmp_path), 2, words)


DEDUP = ("data", "dedup", "in.jsonl", "--out", "out.jsonl")
SPLIT = ("data", "split", "in.jsonl", "--out", "s")
AUDIT = ("data", "audit", "in.jsonl", "--contract")
ADMIT = ("--contract", "text", "--train", "in.jsonl")


@pytest.mark.parametrize(
    ("code", "command"),
    [
        (2, (*DEDUP, "--threshold", 0)),
        (2, (*DEDUP, "--threshold", 1.5)),
        (2, (*DEDUP, "--threshold", "nan")),
        (2, (*DEDUP, "--method", "magic")),
        (2, (*DEDUP, "--method", "")),
        (2, (*DEDUP, "--keep", "best")),
        (2, (*DEDUP, "--memory", "lots")),
        (2, (*DEDUP, "--memory", "nan")),
        (2, (*DEDUP, "--layout", "nonsense")),
        (2, SPLIT),
        (2, (*SPLIT, "--test", 1.5)),
        (2, (*SPLIT, "--test", "inf")),
        (2, (*SPLIT, "--test", 0.6, "--validation", 0.6)),
        (2, (*SPLIT, "--test", 1, "--validation", 0.1)),
        (5, (*SPLIT, "--test", 99)),
        (2, (*AUDIT, "nonsense")),
        (2, (*AUDIT, "SFT")),
        (2, (*AUDIT, "text", "--policy", "lpt:none")),
        (5, (*AUDIT, "text", "--policy", "absent.yaml")),
        (2, (*AUDIT, "text", "--rows", "nonsense")),
        (5, (*AUDIT, "text", "--against", "absent.jsonl")),
        (5, (*AUDIT, "text", "--tokenizer", "no/such/folder")),
        (2, ("admit", "../escape", *ADMIT)),
        (2, ("admit", "a/b", *ADMIT)),
        (2, ("admit", "", *ADMIT)),
        (2, ("admit", ".hidden", *ADMIT)),
        (2, ("admit", "x" * 101, *ADMIT)),
        (2, ("admit", "a", *ADMIT, "--benchmark", "in.jsonl")),
        (5, ("admit", "a", *ADMIT, "--benchmark", "b=absent.jsonl")),
        (5, ("admit", "a", *ADMIT, "--against", "absent.jsonl")),
        (5, ("admit", "a", *ADMIT, "--tokenizer", "no/such/folder")),
        (2, ("admit", "a", *ADMIT, "--out", "in.jsonl")),
        (2, ("data", "generate", "countdown", "--low", 9, "--high", 3, "--out", "p.jsonl")),
        (5, ("data", "generate", "countdown", "--out", "absent/p.jsonl")),
        (5, ("data", "generate", "package-docs", "--max-bytes", 1000, "--out", "absent/p.jsonl")),
        (5, (*DEDUP, "--catalog", "in.jsonl")),
    ],
    ids=lambda value: " ".join(map(str, value))[-60:] if isinstance(value, tuple) else "",
)
def test_options_that_cannot_be(tmp_path, code, command):
    long_rows(tmp_path / "in.jsonl", n=3)
    with unchanged(tmp_path):
        refused(invoke(*command, cwd=tmp_path), code)


def test_usage_errors_of_the_parser(tmp_path):
    """What does not even parse is answered by the parser: what is wrong, the help to ask for, exit 2."""
    long_rows(tmp_path / "in.jsonl", n=3)
    with unchanged(tmp_path):
        for command in (
            ("data", "dedupe"), (*DEDUP, "--treshold", 1), (*DEDUP, "--ngram", 0),
            (*DEDUP, "--threshold", "much"), (*SPLIT, "--test", -1), (*SPLIT, "--test", "nan"),
            (*SPLIT, "--test", 1, "--method", "guess"), ("sql", "select 1", "--format", "xml"),
            ("train", "settings", "dpoo"),
        ):  # fmt: skip
            outcome = invoke(*command, cwd=tmp_path)
            assert (outcome.code, outcome.stdout) == (2, ""), command
            assert outcome.stderr.startswith("Usage: ")
            assert "--help' for help" in outcome.stderr
            assert "\nError: " in outcome.stderr


# -- SQL


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 1) to 'stolen.csv'",
        "create table t as select 1",
        "attach 'other.duckdb'",
        "install httpfs",
        "pragma database_list; select 1",
        "select 1; select 2",
        "select * from read_csv('secret.csv')",
        "select * from read_text('/etc/hostname')",
        "select * from 'secret.csv'",
        "select * from glob('*')",
        "from read_json('https://example.invalid/x.json')",
        "set enable_external_access = true",
        "select nonsense from v_stage",
        "select * from v_nonsense",
        "selekt 1",
        "",
    ],
)
def test_sql_reads_the_catalog_and_nothing_else(place, query):
    (place / "secret.csv").write_text("a\nsecret\n")
    with unchanged(place):
        for arguments, stdin in (((query,), ""), (("-",), query)):
            outcome = refused(invoke("sql", *arguments, cwd=place, stdin=stdin), 2)
            assert "secret\n" not in outcome.stdout


# -- two at once

HOLDER = """
import sys, duckdb
held = duckdb.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_catalog_held_by_another_process(place, model, hurried, tmp_path):
    """Who holds it is said; a data command does nothing; a run is trained, and its record arrives afterwards."""
    index = place / ".lpt" / "catalog.duckdb"
    invoke("sql", "select 1", cwd=place)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with unchanged(place):
            for command in (("sql", "select 1"), ("data", "dedup", "train.jsonl", "--key", "row", "--out", "o.jsonl")):
                refused(invoke(*command, cwd=place), 75, str(holder.pid), "again")
        out = tmp_path / "run"
        run = invoke(*sft("--admitted", "chats:train", "--json", model=model, out=out), cwd=place)
        assert run.code == 0, run.stderr
    finally:
        holder.communicate("")
    wanted = f"select status from v_run where run_id = '{run.json['run_id']}'"
    assert invoke("sql", wanted, "--json", cwd=place).json["rows"] == [{"status": "done"}]


def test_two_dedups_on_one_output(hurried, tmp_path):
    """The second waits, then names the first; the output is the first one's, whole."""
    from lpt_data.places import lock_path
    from manifests.catalog import Catalog

    jsonl(tmp_path / "a.jsonl", [{"text": f"row number {i} of the first"} for i in range(50)])
    jsonl(tmp_path / "b.jsonl", [{"text": f"row number {i} of the second"} for i in range(50)])
    lock = lock_path(Catalog.open(tmp_path / ".lpt"), tmp_path / "out.jsonl")
    code = (
        "import sys\nfrom manifests.files import exclusive_lock\n"
        "with exclusive_lock(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    with unchanged(tmp_path):
        command = ("data", "dedup", "b.jsonl", "--method", "exact", "--out", "out.jsonl")
        refused(invoke(*command, cwd=tmp_path), 75, "out.jsonl", str(first.pid))
    first.communicate("")
    assert invoke(*command, cwd=tmp_path).code == 0


def test_two_commands_at_the_same_moment(tmp_path):
    """Two real processes with one output: each ends well or busy, and the output is one of theirs, whole."""
    for name in "ab":
        jsonl(tmp_path / f"{name}.jsonl", [{"text": f"row number {i} of {name}"} for i in range(200)])
    exact = ("--method", "exact", "--out", "o.jsonl")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        jobs = [threads.submit(spawn, "data", "dedup", f"{name}.jsonl", *exact, cwd=tmp_path) for name in "ab"]
        outcomes = [job.result() for job in jobs]
    assert {outcome.code for outcome in outcomes} <= {0, 75}
    assert 0 in {outcome.code for outcome in outcomes}
    assert (tmp_path / "o.jsonl").read_bytes() in {(tmp_path / f"{name}.jsonl").read_bytes() for name in "ab"}
    assert not list(tmp_path.glob(".tmp-*"))
