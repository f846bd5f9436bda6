"""Each layout by name: what a row of it becomes, what is refused, and how it is told by its columns."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpt_data.dataset import Dataset
from lpt_data.layouts import LAYOUTS, countdown_prompt, detect, named
from manifests.canon import canonical_bytes
from manifests.errors import BadInputError, RecordError, UsageError


def convert(layout, kind, row):
    record = LAYOUTS[layout].convert[kind](row)
    canonical_bytes(kind, record)  # has a canonical form, or raises
    return record


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a":1.50}'}}


@pytest.mark.parametrize(
    ("layout", "kind", "row", "record"),
    [
        ("text", "text", {"text": "t", "id": 1}, {"text": "t"}),
        (
            "messages",
            "sft",
            {"messages": turns(("user", "q"), ("assistant", "a")), "tools": None},
            {"messages": turns(("user", "q"), ("assistant", "a"))},
        ),
        (
            "messages",
            "sft",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.0}}}],
                    },
                ],
                "tools": [{"name": "f"}],
            },
            {
                "messages": [
                    {"role": "user", "content": "one two"},
                    {
                        "role": "assistant",
                        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"x":1.0}'}}],
                    },
                ],
                "tools": '[{"name":"f"}]',
            },
        ),
        ("messages", "sft", {"messages": json.dumps(turns(("user", "q")))}, {"messages": turns(("user", "q"))}),
        (
            "sharegpt",
            "sft",
            {
                "system": "be brief",
                "conversations": [
                    {"from": "human", "value": "q"},
                    {"from": "function_call", "value": '{"name": "add", "arguments": "{\\"a\\":1.50}"}'},
                    {"from": "observation", "value": "1.5"},
                    {"from": "gpt", "value": "a"},
                ],
            },
            {
                "messages": [
                    *turns(("system", "be brief"), ("user", "q")),
                    {"role": "assistant", "tool_calls": [CALL]},
                    *turns(("tool", "1.5"), ("assistant", "a")),
                ]
            },
        ),
        (
            "alpaca",
            "sft",
            {"instruction": "add", "input": "1 2", "output": "3"},
            {"messages": turns(("user", "add\n\n1 2"), ("assistant", "3"))},
        ),
        (
            "alpaca",
            "sft",
            {"instruction": "add", "input": "", "output": "3"},
            {"messages": turns(("user", "add"), ("assistant", "3"))},
        ),
        (
            "gsm8k",
            "sft",
            {"question": "q", "answer": "so\n#### 7"},
            {"messages": turns(("user", "q"), ("assistant", "so\n#### 7"))},
        ),
        (
            "gsm8k",
            "rlvr",
            {"question": "q", "answer": "a #### 1\n#### -12,345 "},
            {"prompt": turns(("user", "q")), "answer": "-12345", "verifier": "integer"},
        ),
        (
            "prompt_completion",
            "sft",
            {"prompt": "p", "completion": "c"},
            {"messages": turns(("user", "p"), ("assistant", "c"))},
        ),
        (
            "prompt_completion",
            "sft",
            {"prompt": turns(("system", "s"), ("user", "p")), "completion": turns(("assistant", "c"))},
            {"messages": turns(("system", "s"), ("user", "p"), ("assistant", "c"))},
        ),
        (
            "prompt_answer",
            "rlvr",
            {"prompt": "p", "answer": 12},
            {"prompt": turns(("user", "p")), "answer": "12", "verifier": "integer"},
        ),
        (
            "prompt_answer",
            "rlvr",
            {"prompt": turns(("user", "p")), "answer": "x = 2", "verifier": "math"},
            {"prompt": turns(("user", "p")), "answer": "x = 2", "verifier": "math"},
        ),
        (
            "prompt_answer",
            "rlvr",
            {"prompt": "p", "answer": "x = 2"},
            {"prompt": turns(("user", "p")), "answer": "x = 2"},
        ),
        (
            "countdown",
            "rlvr",
            {"nums": [3, 1, 2], "target": 6},
            {
                "prompt": turns(("user", countdown_prompt([3, 1, 2], 6))),
                "answer": '{"numbers":[3,1,2],"target":6}',
                "verifier": "countdown",
            },
        ),
        (
            "countdown",
            "sft",
            {"numbers": "[3, 1]", "target": "4", "solution": "3 + 1"},
            {"messages": turns(("user", countdown_prompt([3, 1], 4)), ("assistant", "<answer>3 + 1</answer>"))},
        ),
    ],
)
def test_what_a_row_becomes(layout, kind, row, record):
    assert convert(layout, kind, row) == record


@pytest.mark.parametrize(
    ("layout", "kind", "row", "reason"),
    [
        ("gsm8k", "rlvr", {"question": "q", "answer": "no mark"}, "missing_gold_answer"),
        ("gsm8k", "rlvr", {"question": "q", "answer": "x #### "}, "missing_gold_answer"),
        ("gsm8k", "sft", {"question": "q"}, "missing_field"),
        ("gsm8k", "sft", {"question": 5, "answer": "a"}, "wrong_type"),
        ("messages", "sft", {"messages": "hello"}, "wrong_type"),
        ("messages", "sft", {"messages": [{"content": "no role"}]}, "missing_field"),
        ("messages", "sft", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content_not_text"),
        ("messages", "sft", {"messages": [{"role": "user", "content": 5}]}, "wrong_type"),
        ("messages", "sft", {"messages": [{"role": "user", "content": "q", "weight": 1}]}, "unknown_field"),
        ("sharegpt", "sft", {"conversations": [{"from": "narrator", "value": "x"}]}, "unknown_role"),
        ("sharegpt", "sft", {"conversations": [{"from": "function_call", "value": "no json"}]}, "wrong_type"),
        ("alpaca", "sft", {"instruction": "i", "input": ["x"], "output": "o"}, "wrong_type"),
        ("prompt_answer", "rlvr", {"prompt": "p", "answer": 0.5}, "wrong_type"),
        ("prompt_answer", "rlvr", {"prompt": "p", "answer": True}, "wrong_type"),
        ("countdown", "rlvr", {"nums": [1, 2.0], "target": 3}, "wrong_type"),
        ("countdown", "rlvr", {"nums": [], "target": 3}, "wrong_type"),
        ("countdown", "sft", {"nums": [1, 2], "target": 3}, "missing_field"),
    ],
)
def test_what_is_refused_and_under_which_reason(layout, kind, row, reason):
    with pytest.raises(RecordError) as caught:
        convert(layout, kind, row)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("columns", "kind", "name"),
    [
        (["id", "text"], None, "text"),
        (["messages", "source"], None, "messages"),
        (["conversations"], "sft", "sharegpt"),
        (["instruction", "input", "output", "text"], "sft", "alpaca"),
        (["question", "answer"], "rlvr", "gsm8k"),
        (["prompt", "completion"], None, "prompt_completion"),
        (["prompt", "answer", "verifier"], None, "prompt_answer"),
        (["nums", "target"], None, "countdown"),
        (["record_id", "prompt", "answer", "verifier", "nums", "target"], "rlvr", "prompt_answer"),  # written by us
        (["record_id", "messages", "nums", "target", "solution"], "sft", "messages"),
    ],
)
def test_a_layout_is_told_by_its_columns(columns, kind, name):
    assert detect(columns, kind).name == name


def test_what_cannot_be_told_is_an_error_with_the_columns_seen():
    with pytest.raises(
        BadInputError, match=r"several layouts: alpaca, prompt_completion\n.*instruction, output, prompt"
    ):
        detect(["instruction", "output", "prompt", "completion"])
    with pytest.raises(BadInputError, match="no known layout"):
        detect(["body", "title"])
    with pytest.raises(BadInputError, match="next: name the text with --text-column COLUMN, or rename .*alpaca"):
        detect(["body", "title"])
    with pytest.raises(BadInputError, match="lpt data pairs --responses .*one of: preference") as found:
        detect(["question", "model_a", "model_b"], "preference")
    assert "alpaca" not in found.value.next
    assert "--text-column" not in found.value.next
    with pytest.raises(BadInputError, match="no rlvr records"):
        detect(["messages"], "rlvr")
    with pytest.raises(UsageError, match="did you mean sharegpt"):
        named("share_gpt")
    with pytest.raises(BadInputError, match="no rlvr records"):
        named("alpaca", "rlvr")


def test_other_columns_pass_through_and_bad_rows_are_put_aside(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"question": "q1", "answer": "#### 1", "level": 3},
        {"question": "q2", "answer": "none"},
        {"question": "q3", "answer": "#### 3", "level": "high"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    data = Dataset.open([str(path)], kind="rlvr")
    assert [(row, record["answer"], extra) for row, record, extra in data.records()] == [
        (0, "1", {"level": 3}),
        (2, "3", {"level": "high"}),
    ]
    assert [(q.row, q.line, q.reason) for q in data.quarantined()] == [(1, 2, "missing_gold_answer")]


def test_json_lines_and_parquet_give_the_same_records(tmp_path):
    rows = [
        {"messages": turns(("user", "q"), ("assistant", "a"))},
        {"messages": [*turns(("user", "call")), {"role": "assistant", "tool_calls": [{**CALL, "id": "1"}]}]},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = [[r[3] for r in Dataset.open([str(tmp_path / n)]).identified()] for n in ("a.jsonl", "a.parquet")]
    assert found[0] == found[1]
    assert len(set(found[0])) == 2


def test_two_passes_at_the_same_time_do_not_disturb_each_other(tmp_path):
    rows = [{"question": f"q{i}", "answer": "" if i % 3 == 0 else f"a{i}"} for i in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Dataset.open([str(tmp_path / "a.jsonl")])
    for prompt, response in zip(data.texts("prompt"), data.texts("response"), strict=True):
        assert prompt.texts.to_pylist() == [f"q{i}" for i in range(30)]
        assert response.rows.tolist() == [i for i in range(30) if i % 3]
    assert [q.row for q in data.quarantined()] == list(range(0, 30, 3))


def test_the_text_under_each_key(tmp_path):
    row = {
        "id": "x",
        "messages": turns(("system", "s"), ("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2")),
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    data = Dataset.open([str(tmp_path / "a.jsonl")])
    said = {key: next(data.texts(key)).texts.to_pylist()[0] for key in ("text", "prompt", "response", "id", "row")}
    assert said.pop("row").startswith('{"messages":[{"content":"s","role":"system"}')
    assert said == {"text": "s\nq1\na1\nq2\na2", "prompt": "q1\na1\nq2", "response": "a2", "id": "x"}


def test_a_layout_is_told_by_the_first_rows_alone(tmp_path):
    rows = [{"text": "a row of words " * 30}] * 3000
    rows[2500] = {"messages": [], "text": "both"}  # behind the first half MiB
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Dataset.open(str(path)).layout == "text"
    rows[100] = rows[2500]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadInputError, match="layouts"):
        Dataset.open(str(path))


def test_a_file_of_another_layout_is_named(tmp_path):
    """The first file settles the layout; the second is no broken one but one of another kind."""
    (tmp_path / "a.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    (tmp_path / "b.jsonl").write_text('{"instruction": "say one", "output": "one"}\n')
    (tmp_path / "c.jsonl").write_text('{"question": "1 + 1?", "answer": 5}\n')
    with pytest.raises(BadInputError, match="it looks like alpaca, and was read as gsm8k .*lpt data mix"):
        list(Dataset.open([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], kind="sft").records())
    with pytest.raises(BadInputError, match=r"choose another layout with --layout \(it was read as gsm8k\)"):
        list(Dataset.open([str(tmp_path / "c.jsonl")], kind="sft").records())
