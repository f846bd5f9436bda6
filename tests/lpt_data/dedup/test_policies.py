"""Which copies stay: references, no copy, the best by a number, the same prompt with another answer, templates."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from reference import jaccard

from lpt_data.config import DedupConfig
from lpt_data.conservation import check_conservation
from lpt_data.dataset import Dataset
from lpt_data.dedup import decide
from lpt_data.progress import silent
from lpt_data.stage import StageResult, run_stage
from manifests.catalog import Catalog
from manifests.errors import BadInputError, LptError
from manifests.why import why


def words(start: int, length: int = 20) -> str:
    return " ".join(f"w{i}" for i in range(start, start + length))


def open_rows(path: Path, rows: list[Any]) -> Dataset:
    shaped = [row if isinstance(row, dict) else {"text": row} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in shaped), encoding="utf-8")
    return Dataset.open([str(path)])


def run(tmp_path: Path, rows: list[Any], reference: list[Any] | None = None, **changes: Any) -> tuple[dict, dict]:
    """Decisions by row, and what the stage had to say. Words are shingles, so similarities are exact fractions."""
    dataset = open_rows(tmp_path / "in.jsonl", rows)
    other = None if reference is None else open_rows(tmp_path / "ref.jsonl", reference)
    config = DedupConfig(**{"ngram": 1, "workers": 1, **changes})
    result = decide(dataset, config, silent, reference=other)
    check_conservation(dataset.rows_in, result, dataset.quarantined())
    return {row["row"]: row for row in result.decisions.to_pylist()}, result.extra


def test_rows_of_a_reference_take_theirs_and_are_no_rows_of_the_input(tmp_path: Path) -> None:
    # Input row 0 is the reference's first row in capitals; row 1 shares 18 of 22 words with it; rows 2 and 3 are equal.
    rows = [words(0).upper(), words(2), words(100), words(100)]
    gone, extra = run(tmp_path, rows, [words(0), words(0), words(50)])
    assert set(gone) == {0, 1, 3} or set(gone) == {0, 1, 2}
    assert [gone[i]["reason"] for i in (0, 1)] == ["duplicate_of_reference"] * 2
    assert gone[1]["score"] == 18 / 22
    assert gone[1]["witness_row"] is None
    theirs = next(iter(Dataset.open([str(tmp_path / "ref.jsonl")]).texts())).ids[0].tobytes().hex()
    assert gone[0]["witness_id"] == gone[1]["witness_id"] == theirs
    assert gone[0]["detail"].startswith("normalized_duplicate of ")
    assert gone[1]["detail"].endswith("ref.jsonl, row 1") or gone[1]["detail"].endswith("ref.jsonl, row 2")
    assert extra["reference"]["rows"] == 3


def test_a_reference_comes_before_a_better_row_of_the_input(tmp_path: Path) -> None:
    # Row 1 shares 19 of 21 words with row 0, and 18 of 22 with the reference.
    rows = [words(5), words(4)]
    gone, _ = run(tmp_path, rows, [words(2)], keep="first")
    assert set(gone) == {1}
    assert gone[1]["reason"] == "duplicate_of_reference"
    assert gone[1]["score"] == 18 / 22
    assert run(tmp_path, rows, keep="first")[0][1]["score"] == 19 / 21


@pytest.mark.parametrize("keep", ["content", "first"])
def test_removal_against_a_reference_depends_on_the_reference_alone(tmp_path: Path, keep: str) -> None:
    rng = random.Random(1)
    rows = [words(rng.randrange(60) * 3) for _ in range(60)]
    theirs = [words(rng.randrange(60) * 3) for _ in range(8)]
    gone, _ = run(tmp_path, rows, theirs, keep=keep, threshold=0.6)
    expected = {i for i, row in enumerate(rows) if any(jaccard(row, other, 1) >= 0.6 for other in theirs)}
    assert {i for i, row in gone.items() if row["reason"] == "duplicate_of_reference"} == expected
    for row in expected:
        assert gone[row]["score"] == max(jaccard(rows[row], other, 1) for other in theirs)


@pytest.mark.parametrize("keep", ["content", "first"])
def test_no_copy_stays_of_what_resembles_anything(tmp_path: Path, keep: str) -> None:
    rng = random.Random(2)
    rows = [words(rng.randrange(100) * 2) for _ in range(60)]
    gone, extra = run(tmp_path, rows, keep=keep, drop_all=True)
    alike = {i for i in range(60) for k in range(60) if i != k and jaccard(rows[i], rows[k], 1) >= 0.8}
    assert set(gone) == alike
    keepers = {i for i, row in gone.items() if row["reason"] == "duplicated_row"}
    assert {row["witness_row"] for row in gone.values()} - {None} <= keepers
    for i in keepers:
        assert gone[i]["witness_row"] is None
        assert "no copy was to stay" in gone[i]["detail"]
    assert keepers
    assert len(keepers) < len(alike)


def test_no_copy_stays_of_exact_ones_without_a_word(tmp_path: Path) -> None:
    gone, _ = run(tmp_path, ["!!", "??", "!!", "one"], drop_all=True, method=("exact",))
    assert set(gone) == {0, 2}
    assert {row["reason"] for row in gone.values()} == {"exact_duplicate", "duplicated_row"}


def test_a_witness_that_goes_for_another_reason_still_breaks_the_law(tmp_path: Path) -> None:
    dataset = open_rows(tmp_path / "in.jsonl", [words(0), words(0)])
    result = decide(dataset, DedupConfig(drop_all=True, workers=1), silent)
    column = result.decisions.schema.get_field_index("reason")
    broken = result.decisions.set_column(column, "reason", pa.array(["near_duplicate"] * 2))
    with pytest.raises(LptError, match="conservation"):
        check_conservation(2, StageResult(broken, result.record_ids), [])


def test_the_highest_number_stays_and_rows_without_one_come_last(tmp_path: Path) -> None:
    scores = [0.5, None, 3, "7.25", float("1e-3")]
    rows = [{"text": words(i % 2), "score": score} for i, score in enumerate(scores)]
    gone, extra = run(tmp_path, rows, keep="quality:score")
    assert set(gone) == {0, 1, 2, 4}
    assert {row["witness_row"] for row in gone.values()} == {3}
    assert extra["rows_without_quality"] == 1
    gone, _ = run(tmp_path, rows[:2], keep="quality:score")
    assert set(gone) == {1}
    same = [{"text": words(0), "score": 1}, {"text": words(0) + " w20", "score": 1.0}]
    assert set(run(tmp_path, same, keep="quality:score")[0]) == {0}  # then content: the longer one stays


@pytest.mark.parametrize("value", ["good", True, [1], {"a": 1}])
def test_a_quality_that_is_no_number_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(BadInputError, match="no number") as error:
        run(tmp_path, [{"text": "a", "score": 1}, {"text": "b", "score": value}], keep="quality:score")
    assert ":2" in str(error.value)
    with pytest.raises(BadInputError, match="no column"):
        run(tmp_path, ["a"], keep="quality:score")


def test_one_row_that_stands_for_many_is_an_alarm(tmp_path: Path) -> None:
    rows = [words(0)] * 102 + [words(30 * i) for i in range(1, 100)]
    _, extra = run(tmp_path, rows, keep="first")
    (alarm,) = extra["alarms"]
    assert (alarm["row"], alarm["absorbed"], alarm["share"]) == (0, 101, round(101 / 201, 6))
    assert run(tmp_path, rows[1:], keep="first")[1]["alarms"] == []  # 100 rows are none
    assert run(tmp_path, rows, keep="first", alarm_share=0.6)[1]["alarms"] == []


def chat(prompt: str, reply: str, system: str = "") -> dict:
    said = [{"role": "system", "content": system}] if system else []
    return {"messages": [*said, {"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]}


def test_the_same_prompt_with_another_answer_is_counted_and_stays(tmp_path: Path) -> None:
    rows = [chat(words(0), "Yes."), chat(words(0).upper(), "no"), chat(words(1), "yes. "), chat(words(50), "no")]
    gone, extra = run(tmp_path, rows, key="prompt+response", keep="first")
    assert set(gone) == {2}  # 19 words of 21, and the same answer but for case and blanks
    assert gone[2]["witness_row"] == 0
    assert extra["same_key_other_fields"] == {"key": "prompt", "fields": ["response"], "rows": 2}
    assert len(run(tmp_path, rows, key="prompt", keep="first")[0]) == 2


def test_fields_that_must_be_equal_hold_against_a_reference_and_a_column(tmp_path: Path) -> None:
    rows = [{"text": words(0), "lang": "de"}, {"text": words(0), "lang": "en"}, {"text": words(0), "lang": "en"}]
    gone, _ = run(tmp_path, rows, [{"text": words(0), "lang": "DE"}], key="text+lang", keep="first")
    assert {i: row["reason"] for i, row in gone.items()} == {0: "duplicate_of_reference", 2: "exact_duplicate"}


def test_a_row_without_the_second_field_is_put_aside(tmp_path: Path) -> None:
    dataset = open_rows(
        tmp_path / "in.jsonl", [{"text": words(0), "a": "x"}, {"text": words(0)}, {"text": words(0), "a": "x"}]
    )
    result = decide(dataset, DedupConfig(key="text+a", keep="first", workers=1), silent)
    assert result.decisions["row"].to_pylist() == [2]
    assert [(q.row, q.reason) for q in dataset.quarantined()] == [(1, "missing_field")]


def many_chats(rows: int, rng: random.Random) -> list[dict]:
    system = " ".join(f"rule{i}" for i in range(200))
    return [chat(" ".join(f"q{rng.randrange(10**6)}" for _ in range(12)), "fine", system) for _ in range(rows)]


def test_a_shared_system_prompt_makes_no_duplicates(tmp_path: Path) -> None:
    rows = many_chats(120, random.Random(3))
    rows.append({"messages": [dict(message) for message in rows[7]["messages"]]})
    rows[-1]["messages"][-1]["content"] = "fine !"
    gone, extra = run(tmp_path, rows, ngram=5, keep="first")
    assert {i: row["witness_row"] for i, row in gone.items()} == {120: 7}
    assert extra["templates"]["shingles_left_out"] == 196  # 200 words make 196 runs of five
    everything, _ = run(tmp_path, rows, ngram=5, keep="first", template_df=0.0)
    assert len(everything) == 120  # 196 of 217 shingles: without the rule, one row would stay


def test_templates_are_the_same_in_any_order_and_their_counts_exact(tmp_path: Path) -> None:
    rng = random.Random(4)
    # 2,000 rows are more than the sample; a shingle in exactly 100 of them is a template at 0.05, one in 99 is not.
    rows = []
    for i in range(2000):
        frame = "in a hundred rows precisely " if i < 100 else ("only in ninety nine of " if i < 199 else "")
        rows.append(frame + " ".join(f"x{rng.randrange(10**9)}" for _ in range(8)))
    for _ in range(2):
        rng.shuffle(rows)
        _, extra = run(tmp_path, rows, ngram=5, template_df=0.05)
        assert extra["templates"]["shingles_left_out"] == 1
        assert extra["templates"]["least_rows"] == 100


def test_copies_make_no_template_and_rows_of_nothing_else_are_compared_whole(tmp_path: Path) -> None:
    rows = [words(0)] * 60 + [words(100 + 30 * i) for i in range(60)]
    gone, extra = run(tmp_path, rows, ngram=5, template_df=0.05, keep="first")
    assert len(gone) == 59
    assert extra["templates"]["shingles_left_out"] == 0
    frame = words(0)
    rows = [f"{frame} {words(1000 + 30 * i)}" for i in range(60)] + [frame, frame.upper(), frame + " w20"]
    gone, extra = run(tmp_path, rows, ngram=5, template_df=0.05, keep="first")
    assert {i: row["reason"] for i, row in gone.items()} == {61: "normalized_duplicate"}
    assert extra["templates"]["rows_of_nothing_else"] == 2
    assert np.isfinite(extra["templates"]["share"])


def test_why_says_that_no_copy_stayed_and_names_the_row_of_a_reference(tmp_path: Path) -> None:
    dataset = open_rows(tmp_path / "in.jsonl", [words(0), words(0), words(50)])
    catalog, out = Catalog.open(tmp_path / "lpt"), tmp_path / "out.jsonl"
    config = DedupConfig(drop_all=True, keep="first", workers=1)
    report = run_stage("dedup", dataset, config, decide, output=out, catalog=catalog)
    assert report.body["removed"] == {"duplicated_row": 1, "exact_duplicate": 1}
    for row, said in ((1, "which went too"), (0, "others repeat it")):
        answer = why(catalog, f"{report.body['stage_id']}:{row}")
        assert (answer.fate, answer.survivor) == ("removed", "")
        assert said in str(answer)


def test_a_reference_is_part_of_what_was_done_and_is_never_written(tmp_path: Path) -> None:
    dataset = open_rows(tmp_path / "in.jsonl", [words(0), words(50)])
    catalog, out = Catalog.open(tmp_path / "lpt"), tmp_path / "out.jsonl"

    def against(rows: list[str]) -> Any:
        reference = open_rows(tmp_path / "ref.jsonl", rows)
        decided = partial(decide, reference=reference)
        config = DedupConfig(keep="first", workers=1)
        return run_stage("dedup", dataset, config, decided, output=out, catalog=catalog, references=reference.files)

    first, again, other = against([words(0)]), against([words(0)]), against([words(50)])
    assert (first.reused, again.reused, other.reused) == (False, True, False)
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == [words(0)]
    assert first.body["removed"] == {"duplicate_of_reference": 1}
    assert [entry["path"] for entry in first.body["references"]] == [str(tmp_path / "ref.jsonl")]
    assert "ref.jsonl, row 1" in str(why(catalog, f"{first.body['stage_id']}:0"))
    reference = Dataset.open([str(tmp_path / "ref.jsonl")])
    with pytest.raises(BadInputError, match="one of the inputs"):
        run_stage(
            "dedup",
            dataset,
            DedupConfig(),
            partial(decide, reference=reference),
            output=tmp_path / "ref.jsonl",
            catalog=catalog,
            references=reference.files,
        )
