"""Answers found without the task, and pass rates out of columns, scored files and evaluations."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from lpt_data.audit import AuditReport, audit
from lpt_data.contracts.answers import in_prompt, rate_of
from lpt_data.dataset import Dataset
from manifests.canon import record_id
from manifests.errors import BadInputError


def problem(asked: str, answer: str) -> dict:
    return {"prompt": [{"role": "user", "content": asked}], "answer": answer, "verifier": "integer"}


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("Tom has 15 apples and eats none. How many?", "15"),
        ("Is the answer 15?", " 15 "),
        ("Which city, Paris or Rome?", "Paris"),
        ("It costs $1,500. What does it cost?", "1,500"),
        ("x is -3, what is x?", "-3"),
        ("Pick 1.5 or 2.", "1.5"),
    ],
)
def test_an_answer_that_the_prompt_says(asked, answer):
    assert in_prompt(problem(asked, answer)) is not None


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("Tom has 150 apples.", "15"),
        ("Tom has 15.5 apples.", "15"),
        ("Tom has 3.15 apples.", "15"),
        ("Tom has 1,500 apples.", "500"),
        ("Tom has 1/2 apple.", "1"),
        ("The Parisian way", "Paris"),
        ("a_15", "15"),
        ('Use {"numbers":[1],"target":2}', '{"numbers":[1],"target":2}'),
        ("Tom eats.", ""),
    ],
)
def test_parts_of_words_and_numbers_are_no_answers(asked, answer):
    assert in_prompt(problem(asked, answer)) is None


def test_only_the_user_asks():
    record = problem("How many?", "15")
    record["prompt"].insert(0, {"role": "system", "content": "Say 15."})
    assert in_prompt(record) is None


def report_of(tmp_path: Path, rows: list[dict], name: str = "train", **options) -> AuditReport:
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return audit({name: Dataset.open([str(path)], kind="rlvr")}, "rlvr", **options)


def metric(report: AuditReport, name: str):
    return next(m for m in report.metrics if m.id == name)


def test_a_small_space_of_answers(tmp_path):
    rows = [problem(f"question number {i} of many", str(900 + i % 7)) for i in range(140)]
    report = report_of(tmp_path, rows)
    assert metric(report, "rlvr.answers.five_guesses_share").value == 100 / 140
    assert metric(report, "rlvr.answers.most_common_share").value == 20 / 140
    assert len(report.rows("rlvr.answers.five_guesses_share")) == 100
    spread = report_of(tmp_path, [problem(f"question number {i} of many", str(900 + i)) for i in range(140)])
    assert metric(spread, "rlvr.answers.five_guesses_share").value == 5 / 140
    few = report_of(tmp_path, rows[:99])
    assert metric(few, "rlvr.answers.five_guesses_share").status == "skipped"


@pytest.mark.parametrize(
    ("beside", "rate"),
    [
        ({"pass_rate": 0.25}, 0.25),
        ({"solve_rate": "0.5"}, 0.5),
        ({"success_rate": 1}, 1.0),
        ({"rewards": [1, 0, 0, 1]}, 0.5),
        ({"correct": [True, False]}, 0.5),
        ({"pass_rate": 35}, 35.0),
        ({"rewards": []}, None),
        ({"rewards": [1, None]}, None),
        ({"pass_rate": float("nan")}, None),
        ({"pass_rate": "many"}, None),
        ({"passed": 0.3}, None),
    ],
)
def test_pass_rates_of_columns(beside, rate):
    assert rate_of(beside) == rate


def rated(rates: list[float | None]) -> list[dict]:
    rows = [problem(f"question number {i} of many", str(900 + i)) for i in range(len(rates))]
    return [row | ({"pass_rate": rate} if rate is not None else {}) for row, rate in zip(rows, rates, strict=True)]


def test_the_band_and_the_prompts_without_signal(tmp_path):
    report = report_of(tmp_path, rated([0.0, 1.0, 0.05, 0.1, 0.5, 0.9, 0.95, None]))
    signal, band = (metric(report, f"rlvr.pass_rate.{name}") for name in ("no_signal_share", "in_band_share"))
    assert (signal.value, signal.n) == (2 / 7, 7)
    assert (band.value, band.n) == (3 / 7, 7)
    assert [r["row"] for r in report.rows("rlvr.pass_rate.no_signal_share")] == [0, 1]
    assert [r["row"] for r in report.rows("rlvr.pass_rate.in_band_share")] == [0, 1, 2, 6]
    assert signal.reason == "1 never solved, 1 always; 1 rows have no pass rate"
    without = report_of(tmp_path, rated([None, None]))
    assert metric(without, "rlvr.pass_rate.in_band_share").status == "skipped"


def test_a_rate_in_percent_is_an_error_and_no_band(tmp_path):
    report = report_of(tmp_path, rated([0.5, 35.0]))
    band = metric(report, "rlvr.pass_rate.in_band_share")
    assert band.status == "error"
    assert "train row 1" in band.reason
    assert report.exit_code == 5


def test_rates_of_a_scored_file_by_record_and_by_key(tmp_path):
    rows = rated([None, None, None])
    scored = tmp_path / "scored.jsonl"
    same = {**rows[0], "rewards": [1, 1, 0, 0]}
    other_words = problem("Question NUMBER 1, of many!", "901") | {"rewards": [0, 0]}
    scored.write_bytes(b"\n".join(map(orjson.dumps, [same, other_words])))
    report = report_of(tmp_path, rows, pass_rates=[str(scored)])
    assert metric(report, "rlvr.pass_rate.no_signal_share").value == 0.5
    assert [r["row"] for r in report.rows("rlvr.pass_rate.no_signal_share")] == [1]
    assert any("--scored" in check.next for check in report.checks)
    scored.write_bytes(orjson.dumps(rows[0]))
    with pytest.raises(BadInputError, match="no pass rate"):
        report_of(tmp_path, rows, pass_rates=[str(scored)])


def test_rates_of_an_evaluation_and_of_a_function(tmp_path):
    rows = rated([None, None])
    ids = [record_id("rlvr", row).hex() for row in rows]
    evaluation = tmp_path / "evaluation.json"
    items = [{"record_id": ids[0], "score": 0.5}, {"record_id": ids[1], "score": None}]
    evaluation.write_bytes(orjson.dumps({"accuracy": 0.5, "items": items}))
    report = report_of(tmp_path, rows, pass_rates=[str(evaluation)])
    assert (metric(report, "rlvr.pass_rate.in_band_share").value, metric(report, "rlvr.pass_rate.in_band_share").n) == (
        1.0,
        1,
    )
    asked = []

    def model(name: bytes, key: bytes, record: dict) -> float:
        asked.append((name.hex(), record["answer"]))
        return 1.0

    lent = report_of(tmp_path, rows, pass_rates=model)
    assert metric(lent, "rlvr.pass_rate.no_signal_share").value == 1.0
    assert asked == [(ids[0], "900"), (ids[1], "901")]
