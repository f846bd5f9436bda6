"""Rewritten rows through every layout and format: new ids, other columns untouched, nothing lost, `why` follows."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpt_data.clean import clean_text, config_of, decide
from lpt_data.clean.plan import make_plan
from lpt_data.config import CleanConfig
from lpt_data.conservation import check_conservation
from lpt_data.dataset import Dataset
from lpt_data.stage import StageResult, run_stage
from manifests import decisions
from manifests.canon import record_id
from manifests.catalog import Catalog
from manifests.digests import content_root
from manifests.errors import BadInputError, LptError, UsageError
from manifests.why import why

MAIL = "write to ann@uni.org"
MASKED = "write to <EMAIL_ADDRESS>"
KEY = "AKIA" + "QYLPMN5HXZ3VTR2D"
SFT = CleanConfig(preset="sft")


@pytest.fixture
def catalog(tmp_path):
    return Catalog.open(tmp_path / ".lpt")


def clean(source, output, catalog, config=SFT, **options):
    data = Dataset.open([str(source)], **options)
    return run_stage("clean", data, config, decide, output=output, catalog=catalog)


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def root(kind, rows):
    return content_root(np.array([list(record_id(kind, row)) for row in rows], np.uint8)).root


def test_only_rewritten_lines_are_serialised_again(tmp_path, catalog):
    big = "123456789012345678901234567890"
    lines = [
        '{"text": "plain",   "n": 1.50}',
        f'{{"n": {big}, "text": "{MAIL}", "z": [1, 2]}}',
        '{"text": NaN}',
        f'{{"text": "{KEY}"}}',
    ]
    report = clean(write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl", catalog).to_json()
    assert (tmp_path / "out.jsonl").read_text().splitlines() == [
        lines[0],
        f'{{"n":{big},"text":"{MASKED}","z":[1,2]}}',
    ]
    assert (report["rows_in"], report["rows_out"], report["quarantined"]) == (4, 2, 1)
    assert report["removed"] == {"holds_aws_access_key": 1}
    assert report["rewritten"] == {"email_address_masked": 1}
    assert report["content_root"] == root("text", [{"text": "plain"}, {"text": MASKED}])


def test_a_rewrite_names_old_and_new_record(tmp_path, catalog):
    source = write(tmp_path / "in.jsonl", [{"text": MAIL + "\0"}])
    report = clean(source, tmp_path / "out.jsonl", catalog)
    old, new = (record_id("text", {"text": text}).hex() for text in (MAIL + "\0", MASKED))
    told = decisions.read(report.decisions_path).to_pylist()
    assert {d["reason"] for d in told} == {"control_characters_removed", "email_address_masked"}
    assert {(d["action"], d["record_id"], d["detail"]) for d in told} == {("rewrite", old, f"{old} -> {new}")}


def test_why_follows_a_rewrite_from_both_ends_and_through_later_stages(tmp_path, catalog):
    source = write(tmp_path / "in.jsonl", [{"text": "keep"}, {"text": MAIL}, {"text": MAIL + "  and go"}])
    first = clean(source, tmp_path / "mid.jsonl", catalog)
    clean(tmp_path / "mid.jsonl", tmp_path / "out.jsonl", catalog, CleanConfig(preset="none", rules=("space", "empty")))
    old, new = (record_id("text", {"text": text}).hex() for text in (MAIL, MASKED))
    for ref in (old, new, f"{source}:2", f"{first.body['stage_id']}:1"):
        answer = why(catalog, ref)
        assert answer.fate == "kept", ref
        assert answer.survivor == new, ref
        assert [step.what for step in answer.steps] == ["rewritten", "kept"]


MESSAGES = [{"role": "user", "content": MAIL}, {"role": "assistant", "content": "done"}]
CLEANED = [{"role": "user", "content": MASKED}, {"role": "assistant", "content": "done"}]
LAYOUTS = {
    "messages": ({"messages": MESSAGES, "id": 7}, {"messages": CLEANED, "id": 7}),
    "parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": MAIL}]}, MESSAGES[1]]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": MASKED}]}, MESSAGES[1]]},
    ),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": MAIL}, {"from": "gpt", "value": "done"}]},
        {"conversations": [{"from": "human", "value": MASKED}, {"from": "gpt", "value": "done"}]},
    ),
    "alpaca": (
        {"instruction": "do", "input": MAIL, "output": "done", "note": MAIL},
        {"instruction": "do", "input": MASKED, "output": "done", "note": MAIL},
    ),
    "gsm8k": (
        {"question": MAIL, "answer": "1 + 1 = 2 #### 2"},
        {"question": MASKED, "answer": "1 + 1 = 2 #### 2"},
    ),
    "prompt_answer": (
        {"prompt": MAIL, "answer": "ann@uni.org"},
        {"prompt": MASKED, "answer": "ann@uni.org"},  # a gold answer is what a verifier compares with
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_row_keeps_its_layout(tmp_path, catalog, name):
    given, expected = LAYOUTS[name]
    kind = {"gsm8k": "sft"}.get(name)
    source = write(tmp_path / "in.jsonl", [given])
    report = clean(source, tmp_path / "out.jsonl", catalog, kind=kind)
    assert json.loads((tmp_path / "out.jsonl").read_text()) == expected
    again = Dataset.open([str(tmp_path / "out.jsonl")], kind=kind)
    ids = np.array([list(found) for _, _, found in again.as_written()], np.uint8)
    assert content_root(ids).root == report.body["content_root"]


def test_a_drop_in_any_message_drops_the_row_and_tool_calls_stay(tmp_path, catalog):
    call = {"type": "function", "function": {"name": "mail", "arguments": '{"to": "ann@uni.org"}'}}
    with_call = [MESSAGES[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    secret = [MESSAGES[0], {"role": "assistant", "content": f"use {KEY}"}]
    blank = [MESSAGES[0], {"role": "assistant", "content": "\u200b"}]
    rows = [{"messages": turns} for turns in (with_call, secret, blank)]
    report = clean(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", catalog).to_json()
    assert report["removed"] == {"holds_aws_access_key": 1, "empty_text": 1}
    kept = json.loads((tmp_path / "out.jsonl").read_text())["messages"]
    assert kept[0]["content"] == MASKED
    assert kept[1]["tool_calls"] == [call]


def test_a_row_without_an_optional_text_stays(tmp_path, catalog):
    """An Alpaca row whose input is empty is whole: half of all such rows are."""
    row = {"instruction": "Name a tree.", "input": "", "output": "Larch."}
    report = clean(write(tmp_path / "in.jsonl", [row]), tmp_path / "out.jsonl", catalog).to_json()
    assert report["removed"] == {}
    assert json.loads((tmp_path / "out.jsonl").read_text()) == row


@pytest.mark.parametrize("name", ["o.jsonl", "o.jsonl.gz", "o.jsonl.zst", "o.json", "o.csv", "o.tsv", "o.parquet"])
def test_every_format_holds_the_rewritten_rows(tmp_path, catalog, name):
    source = write(tmp_path / "in.jsonl", [{"messages": MESSAGES, "n": 1}, {"messages": MESSAGES[1:] * 2, "n": 2}])
    first = clean(source, tmp_path / name, catalog)
    keep = CleanConfig(preset="none", rules=("empty",))
    assert (
        clean(tmp_path / name, tmp_path / "again.jsonl", catalog, keep).body["content_root"]
        == first.body["content_root"]
    )
    csv = clean(tmp_path / name, tmp_path / "again.csv", catalog, keep)  # and cells of JSON text are cleaned as well
    assert csv.body["content_root"] == first.body["content_root"]


def test_cells_of_json_text_are_cleaned_inside(tmp_path, catalog):
    keep = CleanConfig(preset="none", rules=("empty",))
    clean(write(tmp_path / "in.jsonl", [{"messages": MESSAGES}]), tmp_path / "in.csv", catalog, keep)
    clean(tmp_path / "in.csv", tmp_path / "out.jsonl", catalog)
    assert json.loads(json.loads((tmp_path / "out.jsonl").read_text())["messages"]) == CLEANED


def test_parquet_keeps_every_type_and_mends_a_stale_id(tmp_path, catalog):
    old = record_id("text", {"text": MAIL}).hex()
    columns = {"text": ["a", MAIL], "when": pa.array([1, 2], pa.timestamp("ns")), "record_id": ["x", old]}
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    clean(tmp_path / "in.parquet", tmp_path / "out.parquet", catalog)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema == pq.read_schema(tmp_path / "in.parquet")
    assert table["text"].to_pylist() == ["a", MASKED]
    assert table["record_id"].to_pylist() == ["x", record_id("text", {"text": MASKED}).hex()]


def test_the_result_does_not_depend_on_the_order_of_the_rows(tmp_path, catalog):
    rows = [{"text": text} for text in ("a", MAIL, f"b {KEY}", "c\0d", "e")]
    reports = [
        clean(write(tmp_path / f"{n}.jsonl", order), tmp_path / f"{n}.out.jsonl", catalog).body
        for n, order in enumerate((rows, rows[::-1]))
    ]
    assert reports[0]["content_root"] == reports[1]["content_root"]
    assert reports[0]["rewritten"] == reports[1]["rewritten"]


def test_examples_show_neither_secrets_nor_addresses(tmp_path, catalog):
    source = write(tmp_path / "in.jsonl", [{"text": f"\0{MAIL}, call +49 228 7301234"}, {"text": f"{KEY} {MAIL}"}])
    config = CleanConfig(preset="sft", secrets="drop")
    shown = json.dumps(clean(source, tmp_path / "out.jsonl", catalog, config).to_json())
    assert "ann@uni.org" not in shown
    assert KEY not in shown
    assert "7301234" not in shown


def test_a_text_column_of_another_name(tmp_path, catalog):
    source = write(tmp_path / "in.jsonl", [{"body": MAIL, "text": "ann@uni.org"}])
    clean(source, tmp_path / "out.jsonl", catalog, text_column="body")
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"body": MASKED, "text": "ann@uni.org"}


def test_conservation_refuses_a_rewrite_without_new_values(tmp_path):
    new = record_id("text", {"text": "b"})
    ids = np.frombuffer(new, np.uint8).reshape(1, 32)
    told = {
        "row": [0],
        "action": ["rewrite"],
        "reason": ["x"],
        "detail": [decisions.rewrite_detail("a" * 64, new.hex())],
    }
    with pytest.raises(LptError, match="new values"):
        check_conservation(1, StageResult(decisions.table(told), ids), [])
    rows = pa.table({"row": pa.array([0], pa.int64()), "columns": pa.array([b"{}"], pa.large_binary())})
    check_conservation(1, StageResult(decisions.table(told), ids, rewritten=rows), [])
    with pytest.raises(LptError, match="new record id"):
        check_conservation(1, StageResult(decisions.table({**told, "detail": ["?"]}), ids, rewritten=rows), [])


def test_rows_without_prose_are_refused(tmp_path, catalog):
    source = write(tmp_path / "in.jsonl", [{"nums": [1, 2], "target": 3}])
    with pytest.raises(BadInputError, match="no prose"):
        clean(source, tmp_path / "out.jsonl", catalog)


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"rules": "gopher.word"}, "gopher.words"),
        ({"preset": "wbe"}, "web"),
        ({"secrets": "burn"}, "mask"),
        ({"langages": "en"}, "languages"),
        ({"languages": "english"}, "en"),
        ({"limits": {"gopher.words": {"minimum": 3}}}, "min"),
        ({"limits": {"gopher.words": {"min": "many"}}}, "min: 50"),
        ({"limits": {"gopher.words": {"min": float("nan")}}}, "min: 50"),
        ({"limits": [1]}, "limits:"),
        ({"rules": 3}, "rules:"),
        ({"preset": "none"}, "--rules"),
    ],
)
def test_a_config_that_means_nothing_is_refused_with_what_to_type(given, seen):
    with pytest.raises(UsageError) as error:
        make_plan(config_of(given))
    assert seen in error.value.next


def names(**given):
    return [rule.name for rule, _ in make_plan(config_of(given)).steps]


def test_options_choose_rules():
    assert "secrets.drop" in names()
    assert "secrets.mask" not in names()
    assert "secrets.mask" in names(secrets="mask")
    assert not [name for name in names(secrets="keep", pii="keep") if name.startswith(("secrets", "pii"))]
    assert names(rules="pii,-pii.ip") == ["pii.email", "pii.iban", "pii.card", "pii.phone"]
    assert names(rules="secrets.mask") == ["secrets.mask"]
    assert "gopher.bullets" not in names(rules="-gopher.bullets")
    assert names(preset="sft")[-1] == "empty"
    assert set(make_plan(config_of({})).skipped) == {"language", "gopher.stop_words"}
    assert {"language", "gopher.stop_words"} <= set(names(languages="en,zh"))
    limits = {"gopher.words": {"min": 3}}
    assert dict(make_plan(config_of({"limits": limits})).steps[-4][1]) != {}
    chosen = {rule.name: rule_limits for rule, rule_limits in make_plan(config_of({"limits": limits})).steps}
    assert chosen["gopher.words"] == {"min": 3, "max": 100_000}


DOCUMENT = """# Retry policy

The client retries a request that failed, at most three times, and waits longer before each attempt.

- `attempts`: how often
- `delay`: seconds before the first retry
- `factor`: what the delay is multiplied with

```python
for attempt in range(attempts):
    if send(request, {"attempt": attempt}):
        break
    sleep(delay * factor**attempt)
```

A server that answers with status 429 says when to come back. That time is kept, whatever the factor says.
"""


def test_technical_documents_have_a_preset_of_their_own():
    web, docs = (make_plan(config_of({"preset": name})) for name in ("web", "docs"))
    dropped = clean_text(DOCUMENT, web).drop
    assert dropped is not None
    assert dropped.reason == "curly_brackets"
    assert clean_text(DOCUMENT, docs).drop is None
    assert clean_text("Lorem ipsum. " + DOCUMENT, docs).drop is not None  # what no document holds still goes
    assert clean_text("too short", docs).drop is not None
