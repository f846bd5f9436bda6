"""Pairs in every form that public sets have, read as one canonical record; the cut lies at the last shared turn."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_data.dataset import Dataset
from lpt_data.layouts import detect
from lpt_data.preference_layouts import divided, labelled, pair, transcript
from lpt_data.write import write_jsonl
from manifests.canon import canonical_bytes, record_id
from manifests.errors import BadInputError, RecordError


def talk(*turns):
    """`"u:hello"` is a turn of the user."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


def record(prompt, chosen, rejected):
    return {"prompt": talk(*prompt), "chosen": talk(*chosen), "rejected": talk(*rejected)}


ONE = record(["u:q"], ["a:good"], ["a:bad"])
LONG = record(["u:q", "a:r", "u:q2"], ["a:good"], ["a:bad"])
HH = "\n\nHuman: q\n\nAssistant: r\n\nHuman: q2\n\nAssistant: "


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "q", "chosen": "good", "rejected": "bad"}, ONE),
        ({"prompt": talk("u:q"), "chosen": talk("a:good"), "rejected": talk("a:bad")}, ONE),
        ({"chosen": talk("u:q", "a:good"), "rejected": talk("u:q", "a:bad")}, ONE),
        ({"prompt": "q", "chosen": talk("u:q", "a:good"), "rejected": talk("u:q", "a:bad")}, ONE),
        ({"chosen": json.dumps(talk("u:q", "a:good")), "rejected": json.dumps(talk("u:q", "a:bad"))}, ONE),
        ({"chosen": HH + "good", "rejected": HH + "bad"}, LONG),
        ({"prompt": HH.rstrip(), "chosen": "good", "rejected": "bad"}, LONG),
        (
            {"chosen": talk("u:q", "a:r", "u:q2", "a:good"), "rejected": talk("u:q", "a:r", "u:q2", "a:bad")},
            LONG,
        ),
        (  # the prompt column holds the first turn alone
            {
                "prompt": "q",
                "chosen": talk("u:q", "a:r", "u:q2", "a:good"),
                "rejected": talk("u:q", "a:r", "u:q2", "a:bad"),
            },
            LONG,
        ),
        (
            {"prompt": "q", "chosen": talk("s:x", "u:q", "a:good"), "rejected": talk("s:x", "u:q", "a:bad")},
            record(["s:x", "u:q"], ["a:good"], ["a:bad"]),
        ),
        # answers that begin alike are still two answers, and explicit ones are left as they are
        (
            {"prompt": "q", "chosen": talk("a:let me see", "a:1"), "rejected": talk("a:let me see", "a:2")},
            record(["u:q"], ["a:let me see", "a:1"], ["a:let me see", "a:2"]),
        ),
        (
            {"chosen": talk("u:q", "a:see", "a:1"), "rejected": talk("u:q", "a:see", "a:2")},
            record(["u:q"], ["a:see", "a:1"], ["a:see", "a:2"]),
        ),
        # sides that never diverge: the last reply stays on both sides, and the prompt ends with the user
        (
            {"chosen": talk("u:q", "a:r", "u:q2", "a:x"), "rejected": talk("u:q", "a:r", "u:q2", "a:x")},
            record(["u:q", "a:r", "u:q2"], ["a:x"], ["a:x"]),
        ),
        (
            {"chosen": talk("u:q", "a:x"), "rejected": talk("u:q", "a:x", "u:q2", "a:y")},
            record(["u:q"], ["a:x"], ["a:x", "u:q2", "a:y"]),
        ),
        # two prompts: what is not shared stays where it was
        (
            {"chosen": talk("u:q", "a:x"), "rejected": talk("u:other", "a:y")},
            record([], ["u:q", "a:x"], ["u:other", "a:y"]),
        ),
        (
            {"prompt": "q", "chosen": talk("u:q", "a:x"), "rejected": talk("u:other", "a:y")},
            record(["u:q"], ["a:x"], ["u:other", "a:y"]),
        ),
        (
            {"prompt": "q", "chosen": talk("s:1", "u:q", "a:x"), "rejected": talk("s:2", "u:q", "a:y")},
            record([], ["s:1", "u:q", "a:x"], ["s:2", "u:q", "a:y"]),
        ),
        (  # a tool's result is part of the history when both sides have it
            {"chosen": talk("u:q", "a:c", "t:1", "a:x"), "rejected": talk("u:q", "a:c", "t:1", "a:y")},
            record(["u:q", "a:c", "t:1"], ["a:x"], ["a:y"]),
        ),
        ({"prompt": "q", "chosen": talk("u:q"), "rejected": talk("u:q", "a:y")}, record(["u:q"], [], ["a:y"])),
    ],
)
def test_each_form_of_a_pair(row, expected):
    assert pair(row) == expected
    canonical_bytes("preference", expected)


def test_a_prompt_that_quotes_a_transcript_is_no_transcript():
    quoted = "Human: hi\n\nAssistant: hello\n\nWhich of the two is polite?"
    assert pair({"prompt": quoted, "chosen": "a", "rejected": "b"})["prompt"] == talk(f"u:{quoted}")


def test_transcripts():
    assert transcript("Human: q\nmore\n\nAssistant:  r \n", "chosen") == talk("u:q\nmore", "a: r \n")
    assert transcript("\n\nHuman: q\n\nAssistant:", "chosen") == talk("u:q")
    assert transcript("\n\nHuman: say\nAssistant: no", "chosen") == talk("u:say\nAssistant: no")
    for text in ("plain words", "Preface\n\nHuman: q", ""):
        with pytest.raises(RecordError) as error:
            transcript(text, "chosen")
        assert error.value.reason == "no_shared_prompt"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "q", "chosen": "x"}, "missing_field"),
        ({"prompt": "q", "chosen": "x", "rejected": 3}, "wrong_type"),
        ({"prompt": 5, "chosen": "x", "rejected": "y"}, "wrong_type"),
        ({"chosen": "a b", "rejected": "a c"}, "no_shared_prompt"),
        ({"prompt": "q", "completion": "x", "label": "yes"}, "wrong_type"),
    ],
)
def test_what_is_refused(row, reason):
    with pytest.raises(RecordError) as error:
        labelled(row) if "completion" in row else pair(row)
    assert error.value.reason == reason


def test_labelled_completions():
    expected = {"prompt": talk("u:q"), "completion": talk("a:x"), "label": False}
    for label in (False, "false"):
        assert labelled({"prompt": "q", "completion": "x", "label": label}) == expected
    canonical_bytes("kto", expected)


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ("prompt chosen rejected", "preference"),
        ("chosen rejected id", "chosen_rejected"),
        ("prompt chosen rejected score_chosen score_rejected", "ultrafeedback"),
        ("chosen rejected score_chosen score_rejected", "ultrafeedback"),
        ("record_id prompt chosen rejected", "preference"),
        ("prompt completion label", "kto"),
        ("prompt completion", "prompt_completion"),  # near miss: no label
        ("prompt completion tools", "prompt_completion"),
    ],
)
def test_each_layout_is_told_by_its_columns(columns, name):
    assert detect(columns.split()).name == name


def test_a_conversation_beside_the_pair_is_ambiguous_until_the_kind_is_named():
    columns = ["prompt", "chosen", "rejected", "score_chosen", "score_rejected", "messages"]
    with pytest.raises(BadInputError, match="several layouts"):
        detect(columns)
    assert detect(columns, "preference").name == "ultrafeedback"
    assert detect(columns, "sft").name == "messages"


def test_scores_stay_beside_the_record(tmp_path):
    row = {"prompt": "q", "chosen": "x", "rejected": "y", "score_chosen": 8.5, "score_rejected": 3}
    write_jsonl(tmp_path / "p.jsonl", [row])
    ((_, read, extra),) = Dataset.open([str(tmp_path / "p.jsonl")]).records()
    assert read == record(["u:q"], ["a:x"], ["a:y"])
    assert extra == {"score_chosen": 8.5, "score_rejected": 3}


turns = st.lists(st.sampled_from(["s:x", "u:q", "u:r", "a:q", "a:r", "t:1"]), max_size=6).map(lambda t: talk(*t))


@given(chosen=turns, rejected=turns)
@settings(max_examples=300, deadline=None)
def test_the_cut_loses_and_moves_no_message(chosen, rejected):
    cut = divided(chosen, rejected)
    assert cut["prompt"] + cut["chosen"] == chosen
    assert cut["prompt"] + cut["rejected"] == rejected
    assert not chosen or not rejected or (cut["chosen"] and cut["rejected"])
    assert not cut["prompt"] or cut["prompt"][-1]["role"] != "assistant"


@given(prompt=turns, chosen=turns, rejected=turns)
@settings(max_examples=300, deadline=None)
def test_a_canonical_row_is_read_as_it_stands(prompt, chosen, rejected):
    first = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    name = record_id("preference", first)
    assert pair({"record_id": name.hex(), **first}) == first
