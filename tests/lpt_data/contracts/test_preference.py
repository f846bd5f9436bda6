"""Every check of the preference contract on planted pairs: the fault, its absence, and the nearest thing to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from lpt_data.admit import admit
from lpt_data.audit import AuditReport, audit
from lpt_data.contracts.pair_facts import margin
from lpt_data.contracts.preference import (
    empty_side,
    identical,
    mixed_prompts,
    prefix,
    role_fault,
)
from lpt_data.dataset import Dataset
from lpt_train.admitted import load_split, load_unadmitted
from manifests.canon import canonical_bytes
from manifests.catalog import Catalog
from manifests.errors import RecordError


def talk(*turns: str) -> list[dict[str, str]]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


def pair(prompt: list[str], chosen: list[str], rejected: list[str]) -> dict[str, Any]:
    return {"prompt": talk(*prompt), "chosen": talk(*chosen), "rejected": talk(*rejected)}


def of(chosen: str, rejected: str) -> dict[str, Any]:
    return pair(["u:q"], [f"a:{chosen}"], [f"a:{rejected}"])


CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}


# -- one row


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (of("x", "y"), None),
        (pair(["s:x", "u:q", "a:r", "u:q2"], ["a:x"], ["a:y"]), None),
        (pair([], ["a:x"], ["a:y"]), "chosen: turn 0: assistant after the start"),
        (pair(["u:q", "a:r"], ["a:x"], ["a:y"]), "chosen: turn 2: assistant after assistant"),
        (pair(["u:q"], ["a:x"], ["a:y", "u:more"]), "rejected: ends with user, not with assistant"),
        (pair(["u:q"], ["a:x"], []), "rejected: ends with user, not with assistant"),
    ],
)
def test_roles(record, fault):
    assert role_fault(record) == fault


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (of("x", "y"), None),
        (of("x", " \u200b"), "rejected: turn 1: assistant is empty"),
        (pair(["u:"], ["a:x"], ["a:y"]), "chosen: turn 0: user is empty"),
        (pair(["u:q"], [], ["a:y"]), "chosen has no turns"),
        ({"prompt": talk("u:q"), "chosen": [CALL], "rejected": talk("a:y")}, None),  # a call needs no words
    ],
)
def test_empty(record, fault):
    assert empty_side(record) == fault


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (of("x", "y"), None),
        (pair(["u:q"], ["u:q1", "a:x"], ["u:q2", "a:y"]), "chosen starts with a turn of the user"),
        (pair(["u:q"], ["a:x"], ["u:q2", "a:y"]), "rejected starts with a turn of the user"),
        (pair(["u:q"], ["a:x", "u:b", "a:y"], ["a:z"]), "chosen has a turn of the user of its own (turn 1"),
        (pair(["u:q", "a:r", "u:q2"], ["a:x", "a:more"], ["a:y"]), None),  # several messages, no question among them
        (pair([], ["a:x"], ["a:y"]), None),  # no prompt at all is a fault of roles
    ],
)
def test_mixed_prompts(record, fault):
    found = mixed_prompts(record)
    assert found is None if fault is None else found.startswith(fault)


@pytest.mark.parametrize(
    ("chosen", "rejected", "same"),
    [
        ("x y", "x y", True),
        (" x\n y ", "x y", True),
        ("x y", "x y.", False),
        ("x y", "X y", False),
        ("xy", "x y", False),
    ],
)
def test_identical(chosen, rejected, same):
    assert (identical(of(chosen, rejected)) is not None) == same


@pytest.mark.parametrize(
    ("chosen", "rejected", "fault"),
    [
        ("It is 4", "It is 4. Because two and two make four.", "chosen is the start of rejected: 7 of 39 characters"),
        ("Yes, it is.", "Yes", "rejected is the start of chosen: 3 of 11 characters"),
        ("4", "42", None),  # another number, not a shorter answer
        ("It is", "It isn", None),
        ("Yes", "Yes", None),  # identical is another check
        ("Yes", "yes, it is", None),
        ("it is 4", "So it is 4", None),  # the end of the other, not its start
    ],
)
def test_prefix(chosen, rejected, fault):
    assert prefix(of(chosen, rejected)) == fault


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"score_chosen": 8.5, "score_rejected": 8}, 0.5),
        ({"chosen_rating": 4, "rejected_rating": 5}, -1.0),
        ({"chosen_score": "7", "rejected_score": "7"}, 0.0),  # a format of text
        ({"margin": 2}, 2.0),
        ({"score_chosen": 1}, None),
        ({"score_chosen": "high", "score_rejected": "low"}, None),
        ({"score_chosen": float("nan"), "score_rejected": 1}, None),
        ({"score_chosen": True, "score_rejected": False}, None),
        ({}, None),
    ],
)
def test_margin(extra, expected):
    assert margin(extra) == expected


# -- rows among each other


def row(prompt: Any, chosen: Any, rejected: Any, **beside: Any) -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **beside}


def write(path: Path, rows: list[Any]) -> str:
    path.write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in rows))
    return str(path)


def check(tmp_path: Path, splits: dict[str, list[Any]], **options: Any) -> AuditReport:
    datasets = {n: Dataset.open([write(tmp_path / f"{n}.jsonl", r)], kind="preference") for n, r in splits.items()}
    return audit(datasets, "preference", **options)


def value(report: AuditReport, check_id: str) -> tuple[str, float | None, int]:
    metric = next(m for m in report.metrics if m.id == check_id)
    return metric.status, metric.value, metric.n


def found(report: AuditReport, check_id: str) -> list[tuple[str, int]]:
    return [(r["split"], r["row"]) for r in report.rows(check_id)]


def status(report: AuditReport, check_id: str) -> str:
    return next(c.status for c in report.checks if c.id == check_id)


def balanced(n: int) -> list[Any]:
    """Pairs without a fault, half of them with the longer side chosen; no two prompts alike."""
    return [
        row(f"number {i}?", "a longer one" if i % 2 else "short", "short" if i % 2 else "a longer one")
        for i in range(n)
    ]


def test_pairs_without_a_fault_are_accepted(tmp_path):
    report = check(tmp_path, {"train": balanced(10), "test": [row("another?", "one", "two")]})
    assert (report.verdict, report.exit_code) == ("accept", 0)
    assert "near-duplicates between splits" not in report.not_checked  # this contract does look for them
    assert any(line.startswith("preference.scores.tie_share: no scores") for line in report.not_checked)


def test_row_rules_are_shares_with_their_rows(tmp_path):
    rows = [
        *balanced(6),
        row("a", "x", "x"),
        row("b", "go on", "go on then"),
        row("c", "x", " "),
        {"prompt": talk("u:d"), "chosen": talk("u:e", "a:x"), "rejected": talk("a:y")},
    ]
    report = check(tmp_path, {"train": rows})
    for name, at in (("pairs.identical", 6), ("pairs.prefix", 7), ("turns.empty", 8), ("prompts.mixed", 9)):
        assert value(report, f"preference.{name}_share") == ("ok", 0.1, 10), name
        assert found(report, f"preference.{name}_share") == [("train", at)], name
    assert found(report, "preference.roles.bad_share") == [("train", 9)]
    assert report.verdict == "reject"


def test_duplicated_conflicting_and_cyclic_pairs(tmp_path):
    rows = [
        row("why?", "a", "b"),  # 0
        row("Why ?", "a", " b "),  # 1: the same pair by key and words, another record
        row("why?", "b", "a"),  # 2: the contradiction
        row("why?", "a", "d"),  # 3: near miss: another rejected
        row("who?", "b", "a"),  # 4: near miss: another prompt
        row("3 - 2?", "a", "b"),  # 5, 6: operators tell prompts apart
        row("3 + 2?", "b", "a"),
        row("what?", "a", "b"),  # 7, 8, 9: a cycle of three
        row("what?", "b", "c"),
        row("what?", "c", "a"),
        row("what?", "a", "z"),  # 10: leads out of the cycle
        row("which?", "a", "b"),  # 11, 12, 13: an order, no cycle
        row("which?", "b", "c"),
        row("which?", "a", "c"),
    ]
    report = check(tmp_path, {"train": rows})
    n = len(rows)
    assert value(report, "duplicates.exact_share") == ("ok", 0.0, n)
    assert value(report, "preference.pairs.duplicated_share") == ("ok", 1 / n, n)
    assert found(report, "preference.pairs.duplicated_share") == [("train", 1)]
    assert value(report, "preference.pairs.conflicting_share") == ("ok", 3 / n, n)
    assert found(report, "preference.pairs.conflicting_share") == [("train", 0), ("train", 1), ("train", 2)]
    assert report.rows("preference.pairs.conflicting_share")[2]["detail"] == "train row 0 prefers the other"
    assert value(report, "preference.pairs.cyclic_share") == ("ok", 6 / n, n)
    assert found(report, "preference.pairs.cyclic_share") == [("train", i) for i in (0, 1, 2, 7, 8, 9)]
    metric = next(m for m in report.metrics if m.id == "preference.pairs.cyclic_share")
    assert metric.reason == "6 rows on cycles, 3 of them in direct conflicts"


def test_a_contradiction_between_splits_is_one(tmp_path):
    report = check(tmp_path, {"train": [row("why?", "a", "b")], "test": [row("why?", "b", "a")]})
    assert value(report, "preference.pairs.conflicting_share") == ("ok", 1.0, 2)
    assert report.rows("preference.pairs.conflicting_share")[0]["detail"] == "test row 0 prefers the other"


def test_an_identical_pair_is_no_conflict_with_itself(tmp_path):
    report = check(tmp_path, {"train": [row("why?", "a", "a"), row("who?", "a", "b")]})
    assert value(report, "preference.pairs.conflicting_share")[1] == 0.0
    assert value(report, "preference.pairs.cyclic_share")[1] == 0.0


def test_length(tmp_path):
    rows = [row(f"p{i}", c, r) for i, (c, r) in enumerate([("aaa", "bb"), ("aaaa", "b"), ("a", "bbb"), ("aa", "bb")])]
    report = check(tmp_path, {"train": rows})
    assert value(report, "preference.length.chosen_longer_share") == ("ok", 0.5, 4)
    assert value(report, "preference.length.chosen_shorter_share") == ("ok", 0.25, 4)
    assert value(report, "preference.length.longer_wins_accuracy") == ("ok", 0.625, 4)  # the tie is half right
    assert found(report, "preference.length.chosen_longer_share") == [("train", 0), ("train", 1)]
    detail = report.rows("preference.length.chosen_shorter_share")[0]["detail"]
    assert detail == "chosen 1 characters, rejected 3"


@pytest.mark.parametrize(("longer", "expected"), [(13, "pass"), (14, "warn"), (16, "warn"), (17, "fail")])
def test_length_bias_by_policy(tmp_path, longer, expected):
    rows = [row(f"p{i}", "aaa" if i < longer else "a", "bb") for i in range(20)]
    report = check(tmp_path, {"train": rows})
    assert status(report, "preference.length.chosen_longer_share") == expected
    assert status(report, "preference.length.longer_wins_accuracy") == expected
    mirrored = [row(f"p{i}", "bb", "aaa" if i < longer else "a") for i in range(20)]
    assert status(check(tmp_path, {"train": mirrored}), "preference.length.chosen_shorter_share") == expected


def test_scores(tmp_path):
    scores = [(5, 5), (5, 4.999), (3, 4), (None, 4), (9, 1)]
    rows = [row(f"p{i}", "aa", "bb", score_chosen=c, score_rejected=r) for i, (c, r) in enumerate(scores)]
    report = check(tmp_path, {"train": rows})
    assert value(report, "preference.scores.tie_share") == ("ok", 0.25, 4)
    assert found(report, "preference.scores.tie_share") == [("train", 0)]
    assert value(report, "preference.scores.inverted_share") == ("ok", 0.25, 4)
    assert found(report, "preference.scores.inverted_share") == [("train", 2)]
    assert "1 rows have no scores" in next(m for m in report.metrics if m.id == "preference.scores.tie_share").reason


# -- isolation


def window(start: int) -> str:
    """60 words; moved by 5 its 5-grams have the Jaccard similarity 0.836, by 10 only 0.697."""
    return " ".join(f"w{i}" for i in range(start, start + 60))


def test_leakage_by_record_key_and_group_are_three_things(tmp_path):
    train = [
        row("same?", "a", "b"),  # the record itself
        row("Same key?", "a", "b"),  # the key
        row(window(0), "a", "b"),  # a near-duplicate prompt
        {"chosen": talk("u:one?", "a:x", "u:two?", "a:1"), "rejected": talk("u:one?", "a:x", "u:two?", "a:2")},
        row("nobody asks this", "a", "b"),
    ]
    train = [r if "prompt" in r else {"prompt": None, **r} for r in train]
    test = [row("same?", "a", "b"), row("same key", "c", "d"), row(window(5), "a", "b"), row("one?", "a", "b")]
    report = check(tmp_path, {"train": train, "test": test})
    assert value(report, "leakage.records") == ("ok", 1, 9)
    assert value(report, "leakage.keys") == ("ok", 2, 9)
    assert value(report, "leakage.groups") == ("ok", 4, 9)
    assert found(report, "leakage.groups") == [("train", 0), ("train", 1), ("train", 2), ("train", 3)]
    assert report.rows("leakage.groups")[3]["detail"] == "prompt connected with test row 3"
    assert status(report, "leakage.groups") == "fail"


def test_what_is_near_and_no_leak(tmp_path):
    train = [
        row(window(0), "a", "b"),
        {"prompt": talk("u:hello", "a:x", "u:two?"), "chosen": "a", "rejected": "b"},
    ]
    test = [
        row(window(10), "a", "b"),  # 0.697
        {
            "prompt": talk("u:hello", "a:y", "u:three?"),
            "chosen": "a",
            "rejected": "b",
        },  # begins alike, goes on otherwise
    ]
    report = check(tmp_path, {"train": train, "test": test})
    assert value(report, "leakage.groups") == ("ok", 0, 4)


def test_a_chain_through_a_third_split_is_a_leak(tmp_path):
    splits = {name: [row(window(at), "a", "b")] for name, at in (("train", 0), ("calibration", 5), ("hidden", 10))}
    report = check(tmp_path, splits)
    assert value(report, "leakage.groups") == ("ok", 1, 3)
    assert found(report, "leakage.groups") == [("train", 0), ("calibration", 0)]
    del splits["calibration"]
    assert value(check(tmp_path, splits), "leakage.groups") == ("ok", 0, 2)


def test_a_row_of_two_prompts_is_connected_with_both(tmp_path):
    mixed = {"prompt": None, "chosen": talk("u:one?", "a:x"), "rejected": talk("u:two?", "a:y")}
    test = [row("one?", "a", "b"), row("two?", "a", "b"), row("three?", "a", "b")]
    report = check(tmp_path, {"train": [mixed], "test": test})
    assert value(report, "leakage.groups") == ("ok", 1, 4)


def test_other_stages_data_is_read_as_what_it_is(tmp_path):
    sft = write(tmp_path / "sft.jsonl", [{"messages": talk("u:Taught?", "a:yes")}, {"messages": talk("u:x", "a:y")}])
    rlvr = write(tmp_path / "rl.jsonl", [{"question": "How many?", "answer": "two #### 2"}])
    pairs = write(tmp_path / "pairs.jsonl", [row("judged?", "a", "b"), row("judged too?", "a", "b")])
    train = [
        row("taught", "a", "b"),
        row("how many", "a", "b"),
        row("judged?", "a", "b"),
        row("judged  too", "c", "d"),
        row("new", "a", "b"),
    ]
    report = check(tmp_path, {"train": train}, against=[sft, rlvr, pairs])
    assert value(report, "against.records") == ("ok", 1, 5)
    assert value(report, "against.keys") == ("ok", 4, 5)
    assert found(report, "against.keys") == [("train", i) for i in range(4)]
    assert value(report, "against.groups") == ("ok", 4, 5)
    near = write(tmp_path / "near.jsonl", [{"messages": talk(f"u:{window(0)}", "a:x")}])
    report = check(tmp_path, {"train": [row(window(5), "a", "b"), row(window(10), "a", "b")]}, against=[near])
    assert value(report, "against.keys") == ("ok", 0, 2)
    assert value(report, "against.groups") == ("ok", 2, 2)  # the second through the first
    report = check(tmp_path, {"train": [row(window(10), "a", "b")]}, against=[near])
    assert value(report, "against.groups") == ("ok", 0, 1)


# -- tokens


@dataclass(frozen=True)
class Tokens:
    ids: list[int]
    loss_mask: list[int]


@dataclass(frozen=True)
class Words:
    """An encoder for tests: a token for each word (its length), a stop token (0) after each assistant turn."""

    name: str = "words"
    fingerprint: str = "f" * 64
    template_sha256: str = "0" * 64
    bos_token_id: None = None

    def encode(self, messages: list[dict], tools: str | None = None) -> Tokens:
        ids: list[int] = []
        mask: list[int] = []
        for message in messages:
            words = [len(word) for word in message["content"].split()]
            if 13 in words:
                raise RecordError("the template refuses this", reason="template_refused")
            learned = message["role"] == "assistant"
            ids += words + [0] * learned
            mask += [int(learned)] * (len(words) + learned)
        return Tokens(ids, mask)


def test_truncation(tmp_path):
    rows = [
        row("a bb", "ccc d", "ccc ee"),  # 0: differs in its 4th token
        row("a bb ccc", "dddd e", "dddd ff"),  # 1: the same 4 tokens
        row("a b c d", "x", "yy"),  # 2: the prompt fills the budget
        row("a b c d e", "x", "yy"),  # 3: the prompt is over the budget
        row("a", "x", "yy"),  # 4: fits
        row("a", "x" * 13, "y"),  # 5: the template refuses it
    ]
    report = check(tmp_path, {"train": rows}, encode=Words(), max_length=4)
    assert found(report, "preference.render.failed_share") == [("train", 5)]
    assert value(report, "preference.render.failed_share") == ("ok", 1 / 6, 6)
    assert found(report, "preference.truncation.identical_share") == [("train", 1), ("train", 2), ("train", 3)]
    assert found(report, "preference.prompt.over_budget_share") == [("train", 3)]
    assert found(report, "preference.completion.fully_truncated_share") == [("train", 2), ("train", 3)]
    assert found(report, "preference.truncation.rate") == [("train", i) for i in (0, 1, 2, 3)]
    assert value(report, "preference.truncation.rate") == ("ok", 4 / 5, 5)
    report = check(tmp_path, {"train": rows[:5]}, encode=Words(), max_length=9)
    for name in ("truncation.identical_share", "prompt.over_budget_share", "completion.fully_truncated_share"):
        assert value(report, f"preference.{name}") == ("ok", 0.0, 5)


def test_without_a_length_only_the_template_itself_can_make_sides_equal(tmp_path):
    report = check(tmp_path, {"train": [row("a", "x", "y"), row("a", "x", "yy")]}, encode=Words())
    assert found(report, "preference.truncation.identical_share") == [("train", 0)]  # one token each, of one length
    assert value(report, "preference.prompt.over_budget_share")[0] == "skipped"


# -- admission and the door of the trainer


def test_an_admitted_preference_split_is_read_by_the_trainer(tmp_path):
    beside = [{**r, "score_chosen": 2.0, "score_rejected": 1.0} for r in balanced(10)]
    path = write(tmp_path / "train.jsonl", beside)
    catalog = Catalog.open(tmp_path / ".lpt")
    admission = admit("prefs", "preference", {"train": [path]}, catalog=catalog)
    assert admission.verdict == "accept"
    split = load_split("prefs:train", catalog=catalog)
    assert split.contract == "preference"
    rows = list(split.rows())
    expected = pair(["u:number 1?"], ["a:a longer one"], ["a:short"])
    assert canonical_bytes("preference", rows[1]) == canonical_bytes("preference", expected)
    assert split.table["score_chosen"].to_pylist() == [2.0] * 10
    again = Dataset.open([str(admission.folder / "train-00000.parquet")], kind="preference")
    assert [name.hex() for _, _, _, name in again.identified()] == split.record_ids
    canonical = write(tmp_path / "canonical.jsonl", rows)
    assert load_unadmitted(canonical, "preference").record_ids == split.record_ids
