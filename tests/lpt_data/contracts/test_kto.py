"""Labelled completions: each check on planted rows, with a near miss."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from lpt_data.audit import AuditReport, audit
from lpt_data.contracts.kto import empty_turn, render, role_fault
from lpt_data.dataset import Dataset


def row(asked: str, completion: str, label: bool) -> dict:
    return {"prompt": asked, "completion": completion, "label": label}


def report_of(tmp_path: Path, rows: list[dict], **splits: list[dict]) -> AuditReport:
    datasets = {}
    for name, part in {"train": rows, **splits}.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(b"\n".join(map(orjson.dumps, part)))
        datasets[name] = Dataset.open([str(path)], kind="kto")
    return audit(datasets, "kto")


def metric(report: AuditReport, name: str):
    return next(m for m in report.metrics if m.id == name)


def balanced(n: int = 40) -> list[dict]:
    return [row(f"question {i // 2}", f"answer {'x' * (i % 5)} {i}", i % 4 < 2) for i in range(n)]


def test_a_balanced_set_is_accepted(tmp_path):
    report = report_of(tmp_path, balanced())
    assert report.verdict == "accept", [c for c in report.checks if c.status in ("warn", "fail", "error")]
    assert metric(report, "kto.labels.minority_share").value == 0.5
    assert metric(report, "duplicates.exact_share").n == 40


@pytest.mark.parametrize(
    ("wanted", "verdict"), [(20, "accept"), (8, "accept"), (7, "tune"), (0, "reject"), (40, "reject")]
)
def test_the_rarer_label(tmp_path, wanted, verdict):
    rows = [row(f"question {i}", f"{'abcde'[i % 5]} reply {i:02d}", i * 17 % 40 < wanted) for i in range(40)]
    report = report_of(tmp_path, rows)
    assert metric(report, "kto.labels.minority_share").value == min(wanted, 40 - wanted) / 40
    assert report.verdict == verdict


def test_both_labels_for_one_completion(tmp_path):
    rows = balanced()
    rows[3] = row("Question 0?", "answer   x\n0", False)  # the same words as a wanted one
    rows[0] = row("question 0", "answer x 0", True)
    rows[9] = row("question 0", "answer x 0 more", False)  # near miss
    report = report_of(tmp_path, rows)
    assert [r["row"] for r in report.rows("kto.labels.conflicting_share")] == [0, 3]
    across = report_of(tmp_path, [rows[0]], test=[rows[3]])
    assert [r["split"] for r in across.rows("kto.labels.conflicting_share")] == ["train", "test"]


def test_repeats_white_space_aside(tmp_path):
    rows = balanced()
    rows[5] = {**rows[4], "completion": rows[4]["completion"].replace(" ", "\n ")}
    assert [r["row"] for r in report_of(tmp_path, rows).rows("kto.rows.duplicated_share")] == [5]


@pytest.mark.parametrize(
    ("lengths", "accuracy"),
    [
        (([10, 20], [1, 2]), 1.0),
        (([1, 2], [10, 20]), 1.0),
        (([5, 5], [5, 5]), 0.5),
        (([1, 3], [2, 2]), 0.5),
        (([3, 4], [2, 3]), 0.875),  # 3 > 2, 3 = 3, 4 > 2, 4 > 3
    ],
)
def test_what_length_alone_tells(tmp_path, lengths, accuracy):
    rows = [
        row(f"question {label} {i}", "xyzw"[i] * size, label)
        for label, sizes in ((True, lengths[0]), (False, lengths[1]))
        for i, size in enumerate(sizes)
    ]
    assert metric(report_of(tmp_path, rows), "kto.length.label_accuracy").value == accuracy


def record(*turns: tuple[str, str]) -> dict:
    return {
        "prompt": [{"role": "user", "content": "q"}],
        "completion": [{"role": role, "content": content} for role, content in turns],
        "label": True,
    }


def test_turns():
    assert role_fault(record(("assistant", "a"))) is None
    assert role_fault(record(("user", "a"))) == "turn 1: user after user"
    assert role_fault(record()) == "ends with user, not with assistant"
    assert empty_turn(record(("assistant", "a"))) is None
    assert empty_turn(record(("assistant", " "))) == "turn 1: assistant is empty"
    assert empty_turn(record()) == "the completion has no turns"


class Turns:
    """An encoder for tests: three tokens a turn, those of a reply supervised."""

    def encode(self, messages, tools=None):
        return SimpleNamespace(
            ids=[7] * 3 * len(messages), loss_mask=[int(m["role"] == "assistant") for m in messages for _ in range(3)]
        )


def test_a_reply_inside_the_prompt_is_no_token_that_counts():
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    record = {"prompt": turns[:3], "completion": turns[3:], "label": True}
    assert [(row.supervised, row.kept) for row in (render(record, Turns(), n) for n in (None, 10, 8))] == [
        (3, 3),
        (3, 1),
        (3, 0),
    ]
