"""Each published layout, in a small file made by hand, read as its items."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpt_data.benchmarks import KNOWN, read_published
from lpt_data.benchmarks.layouts import LAYOUTS, STEM_WORDS, detect
from lpt_data.contamination import load_benchmarks
from manifests.canon import record_id
from manifests.errors import BadInputError

LONG_STEM = "Which of these four rivers carries the most water to the sea in a year of ordinary rain?"
CHOICES = ["the long one", "the wide one", "the deep one", "the brown one"]
CODE = "def area(side):\n    return side * side\n"


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def items(*paths, layout=None):
    published = read_published(list(paths), layout)
    return published.layout, [(e.index, e.question, e.answer, e.code) for e in published.entries]


def test_odd_input_is_read_or_refused_in_words(tmp_path):
    own = {"lpt_item": 0, "question": "How many?", "answer": "Two", "code": "", "record_id": "zz"}
    with pytest.raises(BadInputError, match="no row can be read"):
        items(lines(tmp_path / "t.jsonl", [own]))
    long = "a b " * 40_000
    (tmp_path / "long.csv").write_text(f'"{long}",1,2,3,4,A\n')
    assert items(str(tmp_path / "long.csv"))[1][0][1] == long


def test_gsm8k(tmp_path):
    rows = [{"question": "How many?", "answer": "Two.\n#### 2"}]
    assert items(lines(tmp_path / "t.jsonl", rows)) == ("gsm8k", [(0, "How many?", "Two.\n#### 2", "")])


def test_humaneval_has_code_as_its_answer(tmp_path):
    row = {"task_id": "HumanEval/0", "prompt": "def area(side):\n", "canonical_solution": "    return side * side\n"}
    row |= {"test": "def check(candidate): ...", "entry_point": "area"}
    solution = row["canonical_solution"]
    assert items(lines(tmp_path / "h.jsonl", [row])) == ("humaneval", [(0, row["prompt"], solution, solution)])


@pytest.mark.parametrize("column", ["text", "prompt"])
def test_mbpp_and_its_sanitized_form(tmp_path, column):
    row = {column: "Write a function for the area of a square.", "code": CODE, "task_id": 2, "test_list": ["assert 1"]}
    assert items(lines(tmp_path / "m.jsonl", [row])) == ("mbpp", [(0, row[column], CODE, CODE)])


def test_mmlu_as_the_hub_has_it(tmp_path):
    short = "Which is true?"
    table = {"question": [LONG_STEM, short], "subject": ["rivers"] * 2, "choices": [CHOICES] * 2, "answer": [1, 2]}
    pq.write_table(pa.table(table), tmp_path / "m.parquet")
    said = "\n".join(CHOICES)
    assert len(LONG_STEM.split()) >= STEM_WORDS
    assert items(str(tmp_path / "m.parquet")) == ("mmlu", [(0, LONG_STEM, said, ""), (1, f"{short}\n{said}", said, "")])


def test_mmlu_as_csv_without_a_head(tmp_path):
    """The published files have none: the first item must not be taken for the names of columns."""
    row = ",".join(f'"{cell}"' for cell in (LONG_STEM, *CHOICES, "B"))
    (tmp_path / "rivers_test.csv").write_text(f"{row}\n{row}\nonly,three,cells\n")
    published = read_published([str(tmp_path / "rivers_test.csv")])
    assert (published.layout, len(published.entries)) == ("mmlu", 2)
    assert published.entries[0].answer == "\n".join(CHOICES)
    assert published.unread == ((2, "wrong_columns"),)


def test_mmlu_as_csv_with_a_head(tmp_path):
    (tmp_path / "m.csv").write_text("question,A,B,C,D,answer\nIs it so?,yes,no,both,neither,A\n")
    assert items(str(tmp_path / "m.csv")) == (
        "mmlu",
        [(0, "Is it so?\nyes\nno\nboth\nneither", "yes\nno\nboth\nneither", "")],
    )


def test_math_as_a_folder_of_one_object_a_file(tmp_path):
    for n in range(3):
        body = {
            "problem": f"Find the value of ${n} + 1$.",
            "level": "Level 1",
            "type": "Algebra",
            "solution": f"{n + 1}",
        }
        (tmp_path / f"{n}.json").write_text(json.dumps(body, indent=2))
    layout, found = items(str(tmp_path))
    assert layout == "math"
    assert [(index, answer) for index, _, answer, _ in found] == [(0, "1"), (1, "2"), (2, "3")]


def test_bbh_with_its_examples_in_one_object(tmp_path):
    body = {"canary": "do not train", "examples": [{"input": "not ( True ) is", "target": "False"}] * 2}
    (tmp_path / "boolean.json").write_text(json.dumps(body))
    assert items(str(tmp_path / "boolean.json")) == (
        "bbh",
        [(0, "not ( True ) is", "False", ""), (1, "not ( True ) is", "False", "")],
    )


def test_json_lines_under_another_extension(tmp_path):
    assert items(lines(tmp_path / "m.json", [{"problem": "a", "solution": "b"}] * 2))[0] == "math"


def test_other_columns_tell_no_layout_and_bad_rows_are_named(tmp_path):
    assert read_published([lines(tmp_path / "a.jsonl", [{"text": "a"}])]) is None
    assert detect(["messages"]) is None
    path = lines(
        tmp_path / "b.jsonl", [{"problem": "a", "solution": "b"}, {"problem": 3, "solution": "b"}, {"problem": "x"}]
    )
    assert read_published([path]).unread == ((1, "wrong_type"), (2, "missing_field"))
    with pytest.raises(BadInputError, match="item of a benchmark in the layout math"):
        read_published([lines(tmp_path / "c.jsonl", [{"problem": 1, "solution": "b"}])], "math")


def test_an_audit_reads_the_layouts_that_are_no_rows_of_training(tmp_path):
    from lpt_data.audit import BENCHMARK_READERS
    from lpt_data.contracts.reference import read_benchmark

    row = ",".join(f'"{cell}"' for cell in (LONG_STEM, *CHOICES, "B"))
    (tmp_path / "rivers_test.csv").write_text(f"{row}\n{row.replace('year', 'month')}\n")
    read = read_benchmark("mmlu", [str(tmp_path / "rivers_test.csv")], BENCHMARK_READERS)
    assert (read.items, len(read.questions)) == (2, 2)
    (tmp_path / "boolean.json").write_text(json.dumps({"examples": [{"input": "not True is", "target": "False"}]}))
    assert read_benchmark("bbh", [str(tmp_path / "boolean.json")], BENCHMARK_READERS).items == 1


def test_every_name_has_a_layout():
    assert {known.layout for known in KNOWN.values()} <= set(LAYOUTS)
    assert all(len(known.sha256) in (0, 64) and len(known.content_root) in (0, 64) for known in KNOWN.values())


def test_the_scan_reads_the_same_items(tmp_path):
    """Record ids are those that the rows had before they were items of a layout."""
    path = lines(tmp_path / "m.jsonl", [{"problem": "Find the value of the sum of one and one.", "solution": "2"}])
    loaded = load_benchmarks({"math": [path]})
    assert loaded.benchmarks[0].layout == "math"
    assert loaded.items[0].record_id == record_id("text", {"text": "Find the value of the sum of one and one."})
