"""Why a row went: a planted history of three stages and an admission, asked from every side."""

from __future__ import annotations

import gzip
import shutil

import numpy as np
import pytest
import zstandard
from folders import admit

from manifests import decisions
from manifests.canon import text_ids
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, UsageError
from manifests.places import row_of_line
from manifests.why import why

# clean removes row 1 (empty) and quarantines row 4; dedup removes cat (repeats Cat) and then 5 (repeats 3).
RAW = ["alpha one", "", "beta two", "gamma three", "{broken", "gamma 3", "delta four", "beta 2"]
CLEAN = ["alpha one", "beta two", "gamma three", "gamma 3", "delta four", "beta 2"]
DEDUP = ["alpha one", "beta two", "gamma three", "delta four"]
FINAL = ["alpha one", "gamma three", "delta four"]  # a second pass finds beta two near alpha one


def ident(text: str) -> str:
    return text_ids([text])[0].tobytes().hex()


class History:
    def __init__(self, tmp_path):
        self.folder = tmp_path
        self.catalog = Catalog.open(tmp_path / ".lpt")
        self.raw = tmp_path / "raw.jsonl"
        self.write(self.raw, RAW, blank_after=2)
        clean = self.stage(
            "c1ea0000", "clean", [self.raw], [RAW], CLEAN,
            [(1, "remove", "empty_text", None, None), (4, "quarantine", "invalid_json", None, None)],
        )  # fmt: skip
        first = self.stage(
            "dedd0000", "dedup", [clean], [CLEAN], DEDUP,
            [(3, "remove", "near_duplicate", 2, 0.9), (5, "remove", "near_duplicate", 1, 0.8)],
        )  # fmt: skip
        self.final = self.stage("dedd1111", "dedup", [first], [DEDUP], FINAL, [(1, "remove", "near_duplicate", 0, 0.7)])
        source = {"path": str(self.final), "sha256": bytes_sha256(self.final), "rows": len(FINAL), "split": "train"}
        admit(self.catalog, "web", {"train": FINAL, "test": ["unrelated"]}, sources=[source])

    def write(self, path, texts, blank_after=None):
        lines = [text if text.startswith("{") else f'{{"text": "{text}"}}' for text in texts]
        if blank_after is not None:
            lines.insert(blank_after, "  ")
        path.write_text("\n".join(lines))

    def stage(self, stage_id, name, inputs, texts, kept, decided):
        output = self.folder / f"{stage_id}.jsonl"
        self.write(output, kept)
        rows = [t for part in texts for t in part]
        columns = {
            "row": [d[0] for d in decided],
            "record_id": np.stack([text_ids([rows[d[0]]])[0] * (d[1] != "quarantine") for d in decided]),
            "action": [d[1] for d in decided],
            "reason": [d[2] for d in decided],
            "witness_row": [d[3] for d in decided],
            "witness_id": [None if d[3] is None else ident(rows[d[3]]) for d in decided],
            "score": [d[4] for d in decided],
        }
        decisions.write(self.catalog.decisions_path(stage_id), decisions.table(columns))
        sources, start = [], 0
        for path, part in zip(inputs, texts, strict=True):
            size = path.stat().st_size
            entry = {
                "path": str(path),
                "bytes": size,
                "sha256": bytes_sha256(path),
                "rows": len(part),
                "first_row": start,
            }
            sources.append(entry)
            start += len(part)
        written = {
            "path": str(output),
            "bytes": output.stat().st_size,
            "sha256": bytes_sha256(output),
            "rows": len(kept),
        }
        body = {
            "type": "lpt.stage/1", "stage_id": stage_id, "stage": name, "inputs": sources, "rows_in": start,
            "rows_out": len(kept), "outputs": [written],
            "decisions": {
                "path": f"decisions/{stage_id}.parquet",
                "sha256": bytes_sha256(self.catalog.decisions_path(stage_id)),
                "rows": len(decided),
            },
        }  # fmt: skip
        self.catalog.put(body)
        return output


@pytest.fixture
def history(tmp_path):
    return History(tmp_path)


def said(answer) -> list[tuple]:
    return [(s.stage, s.row, s.what, s.reason, s.witness) for s in answer.steps]


def test_decisions_that_were_changed_are_said(history):
    path = history.catalog.decisions_path("c1ea0000")
    decisions.write(path, decisions.read(path).slice(0, 1))
    answer = why(history.catalog, f"{history.raw}:9")
    assert [note for note in answer.notes if "changed after they were written" in note and "c1ea0000" in note]


def test_a_damaged_record_of_one_stage_does_not_silence_the_others(history):
    name = next(name for name, _ in history.catalog.find("lpt.stage/1", stage_id="dedd1111"))
    history.catalog.objects.path(name).write_text("{}")
    answer = why(history.catalog, f"{history.raw}:2")
    assert said(answer)[0] == ("clean", 1, "removed", "empty_text", False)
    assert any(name[:16] in note for note in answer.notes)


def test_a_removed_row_is_followed_over_its_witnesses_to_the_final_survivor(history):
    # row 7 of the raw file: beta 2 -> repeats beta two -> which repeats alpha one in the next pass -> admitted
    answer = why(history.catalog, f"{history.raw}:9")  # the ninth line is row 7, because line 3 is blank
    assert said(answer) == [
        ("clean", 7, "kept", "", False),
        ("dedup", 5, "removed", "near_duplicate", False),
        ("dedup", 1, "kept", "", True),
        ("dedup", 1, "removed", "near_duplicate", True),
        ("dedup", 0, "kept", "", True),
        ("web@1:train", 0, "admitted", "", True),
    ]
    assert answer.fate == "removed"
    assert (answer.record_id, answer.survivor) == (ident("beta 2"), ident("alpha one"))


@pytest.mark.parametrize("digits", [8, 16, 64])
def test_by_record_id(history, digits):
    answer = why(history.catalog, ident("gamma 3")[:digits])
    assert answer.fate == "removed"
    assert answer.survivor == ident("gamma three")
    assert said(answer)[0] == ("dedup", 3, "removed", "near_duplicate", False)
    assert said(answer)[-1] == ("web@1:train", 1, "admitted", "", True)
    assert answer.steps[0].score == 0.9


def test_by_stage_and_row(history):
    assert why(history.catalog, "dedd0000:3").survivor == ident("gamma three")
    assert why(history.catalog, "dedd1:1").record_id == ident("beta two")
    assert why(history.catalog, "c1ea0000:1").steps[0].reason == "empty_text"
    with pytest.raises(BadInputError, match="no such row"):
        why(history.catalog, "dedd0000:6")
    with pytest.raises(BadInputError, match="2 stages"):
        why(history.catalog, "dedd:1")


def test_a_row_that_was_kept_says_so(history):
    answer = why(history.catalog, f"{history.raw}:1")
    assert [s[2] for s in said(answer)] == ["kept", "kept", "kept", "admitted"]
    assert (answer.fate, answer.survivor, answer.record_id) == ("kept", ident("alpha one"), ident("alpha one"))
    assert "kept everywhere" in str(answer)
    assert why(history.catalog, ident("unrelated")).fate == "kept"  # admitted, and no stage saw it


def test_the_runs_on_a_split_that_holds_a_row_are_named_and_not_said_to_have_seen_it(history):
    split = next(step.stage for step in why(history.catalog, f"{history.raw}:1").steps if step.what == "admitted")
    run = {"type": "lpt.run/1", "run_id": "sft-1", "split": split, "status": "stopped", "steps": 1}
    history.catalog.put(run)
    history.catalog.put(run | {"status": "done", "steps": 9})  # the same run, resumed
    history.catalog.put(run | {"run_id": "sft-2", "split": "others@1:train"})
    answer = why(history.catalog, f"{history.raw}:1")
    assert answer.runs == [f"sft-1 ({split}), done at step 9"]
    assert f"  a run on a split that holds it: sft-1 ({split}), done at step 9" in str(answer).splitlines()
    removed = why(history.catalog, f"{history.raw}:2")
    assert removed.fate == "removed"
    assert removed.runs == []


def test_a_quarantined_row_says_so(history):
    answer = why(history.catalog, f"{history.raw}:6")
    assert (answer.fate, answer.steps[-1].reason) == ("quarantined", "invalid_json")
    assert "invalid_json" in str(answer)


def test_a_witness_may_be_asked_for(history):
    answer = why(history.catalog, ident("alpha one")[:12])
    assert answer.fate == "kept"
    assert ("web@1:train", 0, "admitted", "", False) in said(answer)


def test_an_exact_copy_was_removed_and_its_equal_stands(history):
    source = history.folder / "copies.jsonl"
    history.write(source, ["same", "same"])
    history.stage(
        "eeee0000", "exact", [source], [["same", "same"]], ["same"], [(1, "remove", "exact_duplicate", 0, 1.0)]
    )
    answer = why(history.catalog, ident("same"))
    assert (answer.fate, answer.survivor) == ("removed", answer.record_id)
    assert "an equal row" in str(answer)


def test_rows_of_several_files_are_numbered_through(history):
    one, two = history.folder / "one.jsonl", history.folder / "two.jsonl"
    history.write(one, ["x1", "x2"])
    history.write(two, ["y1", "y2"])
    history.stage(
        "ffff0000",
        "clean",
        [one, two],
        [["x1", "x2"], ["y1", "y2"]],
        ["x1", "x2", "y1"],
        [(3, "remove", "off", None, None)],
    )
    answer = why(history.catalog, f"{two}:2")
    assert (answer.fate, answer.steps[0].row, answer.steps[0].file_row) == ("removed", 3, 1)


def test_lines_of_files_that_stages_wrote_and_of_files_admitted_as_they_were(history):
    answer = why(history.catalog, f"{history.folder / 'dedd0000.jsonl'}:3")  # an output that another stage read
    assert said(answer)[0] == ("dedup", 2, "kept", "", False)
    answer = why(history.catalog, f"{history.final}:2")  # an output that no stage read: row 2 of its input, row 1 left
    assert said(answer)[:2] == [("dedup", 2, "kept", "", False), ("web@1:train", 1, "admitted", "", False)]
    assert answer.survivor == ident("gamma three")
    source = history.folder / "straight.jsonl"
    history.write(source, ["s0", "s1"])
    entry = {
        "path": str(source),
        "bytes": source.stat().st_size,
        "sha256": bytes_sha256(source),
        "rows": 2,
        "split": "test",
    }
    admit(history.catalog, "straight", {"train": ["z"], "test": ["s0", "s1"]}, sources=[entry])
    answer = why(history.catalog, f"{source}:2")
    assert said(answer) == [("straight@1:test", 1, "admitted", "", False)]
    assert (answer.fate, answer.record_id) == ("kept", ident("s1"))


def test_a_moved_file_is_known_by_its_contents_and_a_changed_one_is_said(history):
    moved = history.folder / "moved.jsonl"
    shutil.move(history.raw, moved)
    assert why(history.catalog, f"{moved}:9").record_id == ident("beta 2")
    history.write(history.raw, ["other"] * 9)
    assert any("is not the file" in note for note in why(history.catalog, f"{history.raw}:2").notes)
    history.raw.unlink()
    assert why(history.catalog, f"{history.raw}:1").steps


def test_what_nobody_decided_about_is_unknown_and_says_what_to_ask(history):
    answer = why(history.catalog, "0123456789abcdef")
    assert answer.fate == "unknown"
    assert "FILE:LINE" in answer.notes[0]


@pytest.mark.parametrize("ref", ["abc", "nothing", "", "ABCDEF01"])
def test_what_names_no_row(history, ref):
    with pytest.raises(UsageError, match="not a row"):
        why(history.catalog, ref)


@pytest.mark.parametrize("ref", ["absent.jsonl:3", "nope:1", "{raw}:3", "{raw}:0", "{raw}:99"])
def test_lines_that_are_not_there(history, ref):
    with pytest.raises(BadInputError):
        why(history.catalog, ref.format(raw=history.raw))


def test_missing_decisions_and_a_split_that_is_gone_are_notes(history):
    history.catalog.decisions_path("dedd0000").unlink()
    shutil.rmtree(history.catalog.splits_dir / "web@1")
    answer = why(history.catalog, f"{history.raw}:1")
    assert any("dedd0000" in note for note in answer.notes)
    assert any("web@1" in note for note in answer.notes)


def test_witnesses_in_a_circle_end(history):
    source = history.folder / "circle.jsonl"
    history.write(source, ["p", "q"])
    decided = [(0, "remove", "near", 1, 0.9), (1, "remove", "near", 0, 0.9)]
    history.stage("cccc0000", "dedup", [source], [["p", "q"]], [], decided)
    assert len(why(history.catalog, f"{source}:1").steps) == 2


def test_rows_scattered_by_a_split_are_found_by_their_id(history):
    source, train, test = (history.folder / f"{n}.jsonl" for n in ("all", "train", "test"))
    for path, texts in ((source, ["t1", "u1"]), (train, ["u1"]), (test, ["t1"])):
        history.write(path, texts)
    outputs = [{"path": str(p), "bytes": p.stat().st_size, "sha256": bytes_sha256(p), "rows": 1} for p in (train, test)]
    given = {
        "path": str(source),
        "bytes": source.stat().st_size,
        "sha256": bytes_sha256(source),
        "rows": 2,
        "first_row": 0,
    }
    history.catalog.put(
        {
            "type": "lpt.stage/1",
            "stage_id": "5b1d0000",
            "stage": "split",
            "inputs": [given],
            "rows_in": 2,
            "kind": "text",
            "outputs": outputs,
        }
    )
    admit(history.catalog, "tu", {"train": ["u1"], "test": ["t1"]})
    answer = why(history.catalog, f"{source}:1")
    assert any("one of" in note and "test.jsonl" in note for note in answer.notes)
    assert (answer.record_id, answer.survivor, answer.fate) == (ident("t1"), ident("t1"), "kept")
    assert said(answer)[-1] == ("tu@1:test", 0, "admitted", "", False)
    assert why(history.catalog, f"{source}:1", identify=lambda body, path, row: None).record_id == ""


# -- lines


@pytest.mark.parametrize(
    ("name", "content", "line", "row"),
    [
        ("a.jsonl", b"{}\n\n  \n{}\n{}", 4, 1),
        ("a.jsonl", b"{}\r\n{}\r\n", 2, 1),
        ("a.jsonl.gz", gzip.compress(b"\n{}\n{}\n", mtime=0), 3, 1),
        ("a.jsonl.zst", zstandard.compress(b"{}\n") + zstandard.compress(b"{}\n"), 2, 1),
        ("a.json", b'[{"a": 1}, {"a": 2}]', 2, 1),
        ("a.json", b"{}\n{}\n", 2, 1),
        ("a.csv", b"a,b\n1,2\n3,4\n", 3, 1),
        ("a.csv", b'a,b\n1,"2\n2"\n3,4\n', 4, 1),
        ("a.csv", b'a,b\n1,"2\n2"\n3,4\n', 3, 0),
        ("a.csv", b"a\n" + b"x" * 200_000 + b"\n3\n", 3, 1),
        ("a.tsv", b"a\tb\n1\t2\n", 2, 0),
        ("a.parquet", b"", 5, 4),
    ],
)
def test_lines_are_rows_without_the_blank_ones(tmp_path, name, content, line, row):
    (tmp_path / name).write_bytes(content)
    assert row_of_line(tmp_path / name, line) == row


def test_a_line_of_thousands_of_digits_is_no_row(history):
    with pytest.raises(UsageError, match="not a row"):
        why(history.catalog, f"{history.raw}:{'1' * 5000}")


@pytest.mark.parametrize(("name", "line"), [("a.jsonl", 2), ("a.jsonl", 9), ("a.csv", 1), ("a.csv", 9), ("b.jsonl", 1)])
def test_lines_that_are_no_rows(tmp_path, name, line):
    (tmp_path / "a.jsonl").write_bytes(b"{}\n\n{}\n")
    (tmp_path / "a.csv").write_bytes(b"a\n1\n")
    with pytest.raises(BadInputError):
        row_of_line(tmp_path / name, line)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_file_that_is_cut_or_damaged_is_bad_input(tmp_path, name):
    rows = b'{"text": "row"}\n' * 1000
    (tmp_path / name).write_bytes(gzip.compress(rows, mtime=0)[:-12] if name.endswith("gz") else b"no zstd at all")
    with pytest.raises(BadInputError, match="cannot be read"):
        row_of_line(tmp_path / name, 2000)
