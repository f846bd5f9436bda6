from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from lpt_data.admit import admit
from lpt_data.config import SynthConfig
from lpt_data.dataset import Dataset
from lpt_data.generations import gold, open_generations, read_requests, read_row
from lpt_data.stage import StageReport, run_stage
from lpt_data.synth import check_config, decider
from lpt_train.admitted import check_trains, load_split
from lpt_train.rewards import REWARDS
from manifests.catalog import Catalog
from manifests.decisions import read as read_decisions
from manifests.errors import BadInputError, CheckNotRunError, LptError, RecordError, RefusedError, UsageError

SOLUTIONS = Path(__file__).parents[3] / "shared/data/gsm8k/example_model_solutions.jsonl"
TOLD = {
    "generator": "maker-7b", "generator_revision": "9c9", "prompt_id": "plain-v1", "sampling": '{"temperature":1}',
    "licence": "mit", "terms": "allowed", "depth": 1,
}  # fmt: skip


def write(path: Path, rows: list[Any]) -> str:
    path.write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in rows))
    return str(path)


def sample(n: int, right: int, wrong: int, **more: Any) -> dict[str, Any]:
    """A prompt with so many different right and wrong answers."""
    answers = [f"way {k}: {n} + {n}\n#### {2 * n}" for k in range(right)]
    answers += [f"way {k}\n#### {2 * n + 1 + k}" for k in range(wrong)]
    return {"question": f"What is {n} + {n}?", "completions": answers, "answer": str(2 * n), **more}


def synth(tmp_path: Path, rows: list[Any], name: str = "made.jsonl", **settings: Any) -> tuple[StageReport, list[dict]]:
    config = SynthConfig(**{"verifier": "integer", **TOLD, **settings})
    check_config(config, REWARDS)
    files = [write(tmp_path / "raw.jsonl", rows)] if isinstance(rows[0], dict) else [str(path) for path in rows]
    data = open_generations(files, config)
    catalog = Catalog.open(tmp_path / ".lpt")
    report = run_stage("synth", data, config, decider(REWARDS), output=tmp_path / name, catalog=catalog)
    if name.endswith(".parquet"):
        return report, [
            extra | record for _, record, extra in Dataset.open([str(tmp_path / name)], kind="sft").records()
        ]
    return report, [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]


def reasons(tmp_path: Path, report: StageReport) -> dict[int, str]:
    table = read_decisions(Path(report.decisions_path))
    return dict(zip(table["row"].to_pylist(), table["reason"].to_pylist(), strict=True))


def test_what_passes_stays_with_its_provenance_and_every_answer_is_accounted_for(tmp_path):
    rows = [sample(1, 3, 7), sample(2, 0, 10), sample(3, 4, 6), {"question": "q"}, sample(4, 2, 2, answer=None)]
    rows[0]["completions"].append(rows[0]["completions"][0].replace(" ", "  "))  # the same but for white space
    report, made = synth(tmp_path, rows)
    assert report.extra["answers"] == {
        "all": 35,
        "kept": 7,
        "failed_verifier": 23,
        "could_not_score": 4,
        "duplicate_answer": 1,
    }
    assert reasons(tmp_path, report) == {1: "failed_verifier", 3: "missing_field", 4: "could_not_score"}
    body = report.to_json()
    assert (body["rows_in"], body["repeated"], body["rows_out"]) == (5, 5, 7)
    first = made[0]
    assert (first["prompt"], first["answer"]) == ("What is 1 + 1?", "2")
    assert (first["attempts"], first["passes"]) == (11, 4)
    assert (first["source_attempts"], first["source_passes"]) == (31, 8)  # the prompt without a pass included
    assert {name: first[name] for name in TOLD} == TOLD
    assert "completions" not in first
    assert report.extra["unscored"] == {"no answer to verify by": 4}


def test_the_pass_rate_of_each_source_with_its_interval_and_the_band(tmp_path):
    rows = [sample(n, 3, 7, source="good") for n in range(10)] + [sample(n, 9, 1, source="easy") for n in range(10, 20)]
    rows += [sample(n, 0, 10, source="hard") for n in range(20, 30)]
    report, _ = synth(tmp_path, rows)
    told = {s["source"]: (s["attempts"], s["passes"], s["rate"], s["band"]) for s in report.extra["sources"]}
    assert told == {"easy": (100, 90, 0.9, "above"), "good": (100, 30, 0.3, "inside"), "hard": (100, 0, 0.0, "below")}
    good = next(s for s in report.extra["sources"] if s["source"] == "good")
    assert good["interval"] == [pytest.approx(0.218937, abs=1e-4), pytest.approx(0.395852, abs=1e-4)]
    assert report.extra["prompt_rates"] == [10, 0, 0, 10, 0, 0, 0, 0, 0, 10]


@pytest.mark.parametrize(("keep", "texts"), [("all", 3), ("one", 1), ("shortest", 1)])
def test_how_many_answers_stay(tmp_path, keep, texts):
    rows = [sample(1, 3, 0)]
    rows[0]["completions"][2] = "#### 2"
    report, made = synth(tmp_path, rows, keep=keep)
    assert len(made) == texts
    assert report.extra["answers"].get("not_chosen", 0) == 3 - texts
    if keep == "shortest":
        assert made[0]["completion"] == "#### 2"


def test_the_ratio_is_enforced(tmp_path):
    report, made = synth(tmp_path, [sample(1, 8, 2), sample(2, 1, 1)], max_keep_ratio=0.4)
    assert [r["prompt"] for r in made].count("What is 1 + 1?") == 4
    assert report.extra["answers"]["over_keep_ratio"] == 4
    assert len(made) == 5  # one may always stay


def test_prompts_that_are_too_easy_or_too_hard_go_and_are_no_part_of_the_rate(tmp_path):
    rows = [sample(1, 10, 0), sample(2, 1, 19), sample(3, 3, 7)]
    report, made = synth(tmp_path, rows, least_rate=0.1, most_rate=0.8)
    assert reasons(tmp_path, report)[0] == "too_easy"
    assert report.extra["answers"]["too_hard"] == 1
    assert {r["prompt"] for r in made} == {"What is 3 + 3?"}
    assert [(s["attempts"], s["passes"]) for s in report.extra["sources"]] == [(10, 3)]


def test_one_row_for_each_attempt(tmp_path):
    rows = [
        {"prompt": row["question"], "response": text, "answer": row["answer"], "model": "m-2", "note": k}
        for row in (sample(1, 2, 3), sample(2, 0, 4))
        for k, text in enumerate(row["completions"])
    ]
    report, made = synth(tmp_path, rows, generator="")
    assert [(r["attempts"], r["passes"], r["generator"], r["note"]) for r in made] == [
        (5, 2, "m-2", 0),
        (5, 2, "m-2", 1),
    ]
    assert report.to_json()["removed"] == {"failed_verifier": 7}
    assert report.to_json()["rows_in"] == report.to_json()["rows_out"] + 7


LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], str, tuple[str, ...]]] = {
    "vllm": ({"prompt": "p", "outputs": [{"text": "a"}, {"text": "b"}]}, {}, "p", ("a", "b")),
    "choices": ({"prompt": "p", "choices": [{"message": {"role": "assistant", "content": "a"}}]}, {}, "p", ("a",)),
    "alpaca": ({"instruction": "do", "input": "this", "output": "a"}, {}, "do\n\nthis", ("a",)),
    "messages": (
        {"messages": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}]}, {}, "p", ("a",)
    ),
    "chat prompt": ({"prompt": [{"role": "user", "content": "p"}], "completions": ["a"]}, {}, "p", ("a",)),
    "json in a cell": ({"prompt": "p", "completions": '["a", "b"]'}, {}, "p", ("a", "b")),
    "named": ({"q": "p", "x": {"solution": "a"}, "y": {"solution": "b"}}, {"prompt": "q", "completion": "x,y"}, "p",
              ("a", "b")),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_generated_files(name):
    row, named, prompt, answers = LAYOUTS[name]
    found = read_row(row, SynthConfig(**named))
    assert (found.prompt, found.answers) == (prompt, answers)
    if name == "named":
        assert found.models == ("x", "y")


def test_a_batch_of_an_api_is_joined_with_its_requests(tmp_path):
    asked = [
        {"custom_id": f"r{n}", "body": {"model": "m", "messages": [{"role": "user", "content": f"{n}?"}]}}
        for n in (1, 2)
    ]
    requests = read_requests([write(tmp_path / "requests.jsonl", asked)])
    body = {"model": "m-2025-01", "choices": [{"message": {"content": "#### 1"}}]}
    found = read_row({"custom_id": "r1", "response": {"status_code": 200, "body": body}}, SynthConfig(), requests)
    assert (found.prompt, found.answers, found.models) == ("1?", ("#### 1",), ("m-2025-01",))
    with pytest.raises(RecordError) as caught:
        read_row({"custom_id": "r9", "response": {"body": body}}, SynthConfig(), requests)
    assert caught.value.reason == "no_request"
    with pytest.raises(BadInputError, match="no request"):
        read_requests([write(tmp_path / "none.jsonl", [{"a": 1}])])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "p"}, "missing_field"),
        ({"completions": ["a"]}, "missing_field"),
        ({"prompt": "p", "completions": []}, "no_answer"),
        ({"prompt": "p", "completions": [3]}, "wrong_type"),
        ({"prompt": 3, "completions": ["a"]}, "wrong_type"),
        ({"messages": [{"role": "user", "content": "p"}]}, "no_answer"),
    ],
)
def test_rows_without_prompt_or_answer_say_why(row, reason):
    with pytest.raises(RecordError) as caught:
        read_row(row, SynthConfig())
    assert caught.value.reason == reason


def test_what_verifiers_compare_with_is_made_of_the_columns_there_are():
    assert gold({"nums": [1, 2], "target": 3}, "countdown", SynthConfig())[0] == '{"numbers":[1,2],"target":3}'
    told = json.loads(gold({"test": "assert f()", "entry_point": "f"}, "code", SynthConfig())[0])
    assert told == {"tests": "assert f()", "entry_point": "f", "prefix": ""}
    assert gold({"schema": {"type": "object"}}, "schema", SynthConfig())[0] == '{"type":"object"}'
    assert gold({"x": 5}, "math", SynthConfig(answer="x"))[0] == "5"
    assert gold({}, "math", SynthConfig()) == (None, ())


def test_order_files_and_format_change_no_choice(tmp_path):
    rows = [sample(n, 4, 4) for n in range(20)]
    flat = [{"question": r["question"], "completion": c, "answer": r["answer"]} for r in rows for c in r["completions"]]
    random.Random(0).shuffle(flat)
    for folder in ("lists", "flat", "parts", "packed"):
        (tmp_path / folder).mkdir()
    files = [write(tmp_path / f"part{n}.jsonl", flat[n::3]) for n in range(3)]
    runs = [
        synth(tmp_path / "lists", rows, keep="one"),
        synth(tmp_path / "flat", flat, keep="one"),
        synth(tmp_path / "parts", files, keep="one"),
        synth(tmp_path / "packed", rows, keep="one", name="made.parquet"),
    ]
    assert len({report.to_json()["content_root"] for report, _ in runs}) == 1
    assert runs[0][0].to_json()["rows_out"] == 20
    assert {(r["prompt"], r["completion"]) for r in runs[0][1]} == {(r["prompt"], r["completion"]) for r in runs[1][1]}


def test_what_comes_out_is_admitted_and_trains_as_sft_and_as_nothing_else(tmp_path):
    rows = [sample(n, 3, 7) for n in range(30)]
    for n, made in enumerate(rows):
        made["question"] = f"{' '.join(random.Random(n).sample('abcdefghijklmnopqrstuvwxyz', 12))} {n} + {n}?"
        made["completions"] = [
            f"{random.Random(f'{n}{c}').random()} {random.Random(c).random()} {c}" for c in made["completions"]
        ]
    report, _ = synth(tmp_path, rows)
    catalog = Catalog.open(tmp_path / ".lpt")
    admission = admit(
        "made", "synthetic", {"train": [str(tmp_path / "made.jsonl")]}, catalog=catalog, verifiers=REWARDS
    )
    bad = {c.id: (c.status, c.value, c.detail) for c in admission.checks if c.status in ("warn", "fail", "error")}
    assert admission.verdict in ("accept", "tune"), bad
    assert not [c for c in admission.checks if c.required and c.status == "skipped"]
    assert admission.body["splits"]["train"]["content_root"] == report.to_json()["content_root"]
    assert admission.body["parents"]  # the stage is in the lineage
    split = load_split("made:train", catalog=catalog)
    assert (split.contract, split.kind, len(split)) == ("synthetic", "sft", 90)
    assert next(split.rows())["messages"][0]["role"] == "user"
    assert "generator" in split.table.column_names
    check_trains(split, "sft")
    with pytest.raises(RefusedError, match="synthetic"):
        check_trains(split, "grpo")


def test_refusals(tmp_path):
    with pytest.raises(UsageError, match="no such verifier"):
        check_config(SynthConfig(verifier="judge"), REWARDS)
    for wrong in ({"max_keep_ratio": 0.0}, {"max_keep_ratio": 1.5}, {"least_rate": 0.9, "most_rate": 0.1}):
        with pytest.raises(UsageError):
            check_config(SynthConfig(**wrong), REWARDS)
    with pytest.raises(CheckNotRunError, match="no answer can be verified"):
        synth(tmp_path, [sample(1, 1, 1)], verifier="")
    with pytest.raises(BadInputError) as caught:
        synth(tmp_path, [{"a": 1}])
    assert "--completion" in caught.value.next
    assert isinstance(caught.value, LptError)
    assert not (tmp_path / "made.jsonl").exists()


def test_no_answer_that_passes_is_an_empty_file_with_every_row_explained(tmp_path):
    report, made = synth(tmp_path, [sample(1, 0, 3), sample(2, 0, 1)])
    assert made == []
    assert report.to_json()["removed"] == {"failed_verifier": 2}


@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="needs the data folder")
def test_the_solutions_of_gsm8k(tmp_path):
    """2,001 of 5,276 are marked right; 7 of them are there twice."""
    columns = "6b_finetuning,6b_verification,175b_finetuning,175b_verification"
    report, made = synth(
        tmp_path, [SOLUTIONS], verifier="math", completion=columns, answer="ground_truth", generator=""
    )
    assert report.extra["answers"] == {"all": 5276, "kept": 1994, "failed_verifier": 3275, "duplicate_answer": 7}
    (source,) = report.extra["sources"]
    assert (source["attempts"], source["passes"], source["band"]) == (5276, 2001, "inside")
    assert {r["generator"] for r in made} == set(columns.split(","))
