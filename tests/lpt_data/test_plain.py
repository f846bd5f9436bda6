"""Plain records as columns are, to the byte, what the converters make of the same rows: ids, keys, findings, facts."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_data.audit import audit
from lpt_data.contracts import CONTRACTS, replies
from lpt_data.contracts.common import Marked, strings
from lpt_data.contracts.survey import as_bytes, row_keys
from lpt_data.dataset import Dataset
from lpt_data.io import chats
from lpt_data.layouts import LAYOUTS
from lpt_data.literals import Matcher
from lpt_data.plain import Parsed, Slices
from lpt_data.plain_layouts import PLAIN, plain_of
from lpt_train.rewards import REWARDS
from manifests.canon import canonical_bytes, id_of

# Pieces that rules, keys and layouts look for, or stumble over.
BITS = (
    *(
        "",
        " ",
        "a",
        "7",
        "42",
        "1,000",
        "1,000,000",
        "3.5",
        "-",
        " - ",
        "x-y",
        "3 -2",
        "=",
        "...",
        ".",
        "yes",
        "(b)",
        "no .",
        "\u2019",
        "\u201cso\u201d",
        "3\u20144",
        "\u2013",
    ),
    *("\0", "\x08", "\x0b", "\x1f", "\x7f", "\x85", "\xa0", "\ufffd", "\u3000", "\u200b", "\ufeff", "\n\n", "\t", "\r"),
    *(
        "\xe9",
        "\xc3\xa9",
        "\xe2\u20ac\u2122",
        "\u0130",
        "\u017f",
        "\u212a",
        "\ue000",
        "\ue001",
        "\U0001f600",
        "\xb2",
        "\u0665",
    ),
    *('"', "\\\\", "\\u0041", "<|im_end|>", "[INST]", "<start_of_turn>", "I can't help with that.", "I cannot assist"),
    *(
        "As an AI language model, I",
        "I'm sorry, but I can\u2019t",
        "as an ai assistant",
        "I was trained by OpenAI",
        "Sorry, I won't",
    ),
    *(
        "[{",
        '[{"role":"user","content":"hi"}]',
        "\n\nHuman: a\n\nAssistant:",
        "#### 7",
        "#### 1,250",
        "####",
        "The end",
        "the end ",
    ),
    *(
        "I must respectfully decline",
        "My knowledge cutoff",
        "I am not able to do that",
        "{",
        "[1]",
        "falSe",
        "yeS.",
        "true\u3000.",
    ),
)
COLUMNS = {
    "text": ("text",),
    "gsm8k": ("question", "answer"),
    "alpaca": ("instruction", "input", "output"),
    "prompt_completion": ("prompt", "completion"),
    "preference": ("prompt", "chosen", "rejected"),
    "ultrafeedback": ("prompt", "chosen", "rejected"),
}
texts = st.lists(st.sampled_from(BITS) | st.text(max_size=6), max_size=6).map("".join)
turns = st.lists(st.tuples(st.sampled_from([*chats.ROLES, "judge"]), texts), min_size=1, max_size=5)


def _rows(draw, layout):
    if layout == "messages":
        made = draw(st.lists(turns, min_size=1, max_size=6))
        return [{"messages": [{"role": role, "content": text} for role, text in row]} for row in made]
    row = st.fixed_dictionaries({name: texts for name in COLUMNS[layout]})
    rows = draw(st.lists(row, min_size=1, max_size=6))
    if layout == "gsm8k":
        rows = [
            {**row, "answer": row["answer"] + "\n#### " + draw(st.sampled_from(("7", " 1,250 ", "x\u3000")))}
            for row in rows
        ]
    return rows


@st.composite
def tables(draw):
    layout, kind = draw(st.sampled_from(sorted(PLAIN)))
    return layout, kind, _rows(draw, layout)


def _table(layout, rows):
    if layout == "messages":
        kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
        return pa.table({"messages": pa.array([row["messages"] for row in rows], kind)})
    return pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in COLUMNS[layout]})


@settings(max_examples=100, deadline=None)
@given(tables())
def test_columns_say_what_the_converter_says(made):
    layout, kind, rows = made
    plain = plain_of(layout, kind, _table(layout, rows))
    if plain is None:
        return
    records = [LAYOUTS[layout].convert[kind](row) for row in rows]
    data = [canonical_bytes(kind, record) for record in records]
    assert list(Slices(plain.json, plain.bounds)) == data
    assert as_bytes(plain.ids) == [id_of(kind, written) for written in data]
    nothing = [{}] * len(rows)
    for normaliser in ("text", "math"):
        assert as_bytes(plain.keys(normaliser)) == row_keys(kind, normaliser, range(len(rows)), records, nothing)


@settings(max_examples=100, deadline=None)
@given(tables())
def test_what_columns_spare_a_rule_holds_nothing_for_it(made):
    layout, kind, rows = made
    plain = plain_of(layout, kind, _table(layout, rows))
    if plain is None:
        return
    records = Parsed(Slices(plain.json, plain.bounds))
    contract = CONTRACTS[kind]
    for name, rule in (*contract.rules.items(), *contract.text_rules.items()):
        assert isinstance(rule, Marked), name
        values = [strings(record) if name in contract.text_rules else record for record in records]
        if rule.suspects is not None:
            asked = rule.suspects(plain)
        else:
            assert rule.literals, name
            asked = Matcher.of([rule.literals]).find(plain.data, plain.starts, plain.ends, plain.first) != 0
        assert len(asked) == len(rows)
        for value, looked_at in zip(values, asked.tolist(), strict=True):
            assert looked_at or rule(value) is None, (name, value)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(alphabet="aB \t\n.\x1c\0\xe9", max_size=90) | texts, min_size=1, max_size=8))
def test_the_ends_of_replies_are_those_of_str_split(said):
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]} for text in said]
    plain = plain_of("messages", "sft", _table("messages", rows))
    assert plain is not None
    assert replies.look_plain(plain, np.arange(1, 2 * len(said), 2)) == replies.look(said)
    assert replies.look_plain(plain, np.full(2, -1)) == replies.look(["", ""])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=4), min_size=1, max_size=5), st.binary()
)
def test_a_matcher_finds_what_in_finds(groups, data):
    found = Matcher.of(groups).find(
        np.frombuffer(data, np.uint8), np.array([0]), np.array([len(data)]), np.array([0, 1])
    )
    expected = sum(1 << i for i, strings_ in enumerate(groups) if any(one in data for one in strings_))
    assert int(found[0]) == expected


LINES = (
    b'{"messages": [{"role": "user", "content": "a"}, {"content": "b", "role": "assistant"}]}',
    b' { "messages" :[ {"role":"tool","content":"\\u00e9\\n"} ] } ',
    b'{"messages": []}',
    b'{"messages": [{"role": "user"}]}',
    b'{"messages": [{"role": "user", "role": "user"}]}',
    b'{"messages": [{"role": "judge", "content": "a"}]}',
    b'{"messages": [{"role": "user", "content": null}]}',
    b'{"messages": [{"role": "user", "content": "a", "name": "n"}]}',
    b'{"messages": [{"role": "user", "content": "a"}], "tools": null}',
    b'{"messages": [{"role": "user", "content": "a"}]',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "\xff"}]}',
    b'{"messages": [{"role": "user", "content": "a"},]}',
    b'{"messages": [{"role": "user", "content": "a"}]} x',
    b"",
    b"   ",
)


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_taken_as_a_parser_takes_it_or_not_at_all(line):
    found = chats.scan(b"\n".join([LINES[0], line, LINES[0]]))
    rows = found.first[1:] > found.first[:-1]
    assert rows[0]
    assert rows[-1]
    if len(rows) == 3 and rows[1]:
        assert found.table(slice(1, 2), ()).to_pylist() == [orjson.loads(line)]
    elif len(rows) == 3:
        assert line not in LINES[:2]
    else:
        assert not line.strip()


def _hostile(layout, n):
    chance = random.Random(layout)

    def text():
        return "".join(chance.choice(BITS) for _ in range(chance.randint(1, 12)))

    rows = []
    while sum(map(len, rows)) < n:
        if layout == "messages":
            roles = chance.choice((("user", "assistant"), ("system", "user", "assistant"), ("user",), ("user", "tool")))
            row = {"messages": [{"role": role, "content": text()} for role in roles]}
        else:
            row = {name: text() for name in COLUMNS[layout]}
        if layout == "gsm8k":
            row["answer"] += "\n#### " + str(len(rows) % 50)
        if chance.random() < 0.002:
            row["note"] = 1
        rows.append(orjson.dumps(row))
        if chance.random() < 0.001:
            rows.append(chance.choice((b"{", b'{"text": 1}', b"null", b"", LINES[3])))
    return rows


CASES = [("text", "text"), ("messages", "sft"), ("gsm8k", "sft"), ("gsm8k", "rlvr"), ("preference", "preference")]


@pytest.mark.parametrize(("layout", "contract"), CASES)
def test_an_audit_of_a_large_file_says_what_it_says_of_its_parts_read_row_by_row(
    tmp_path, layout, contract, monkeypatch
):
    monkeypatch.setattr("lpt_data.dataset.MANY_RECORDS", 1_200_000)
    rows = _hostile(layout, 1_300_000)  # the parts are too small for a look at lines as columns
    (tmp_path / "large.jsonl").write_bytes(b"\n".join(rows))
    cut = len(rows) // 2
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.jsonl").write_bytes(b"\n".join(rows[:cut]))
    (tmp_path / "parts" / "b.jsonl").write_bytes(b"\n".join(rows[cut:]))

    def told(inputs: Path, kind: str):
        data = Dataset.open([str(inputs)], kind=kind, layout=layout)
        report = audit({"data": data}, contract, verifiers=REWARDS if contract == "rlvr" else None)
        found = {
            name: (
                outcome.value,
                outcome.status,
                outcome.reason,
                [(f.row, f.record_id, f.detail) for f in outcome.findings],
            )
            for name, outcome in report.outcomes.items()
        }
        return report.to_json()["splits"], found

    kind = CONTRACTS[contract].kind
    large = told(tmp_path / "large.jsonl", kind)
    batches = list(Dataset.open([str(tmp_path / "large.jsonl")], kind=kind, layout=layout).record_batches(plain=True))
    assert sum(batch.plain is not None for batch in batches) > 0
    splits, found = told(tmp_path / "parts", kind)
    assert large[0] == splits
    assert large[1] == found


def test_parquet_of_one_shape_is_plain_too(tmp_path, monkeypatch):
    monkeypatch.setattr("lpt_data.dataset.MANY_RECORDS", 1)
    rows = [{"prompt": f"What is {i}?", "chosen": "a" * 30, "rejected": f"b{i}"} for i in range(40_000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet", compression="none", use_dictionary=False)
    data = Dataset.open([str(tmp_path / "pairs.parquet")], kind="preference")
    names = [id_of("preference", written) for batch in data.record_batches() for written in batch.data]
    batches = list(data.record_batches(plain=True))
    assert all(batch.plain is not None for batch in batches)
    assert [name for batch in batches if batch.plain is not None for name in as_bytes(batch.plain.ids)] == names
