"""How replies are written: planted refusals and habits with recall and precision, outliers, languages, samples."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lpt_data.audit import AuditReport, audit
from lpt_data.contracts import CONTRACTS
from lpt_data.contracts.common import Marked, strings
from lpt_data.contracts.replies import refusal, self_reference
from lpt_data.contracts.sample import Sample
from lpt_data.dataset import Dataset
from manifests.canon import canonical_bytes
from manifests.errors import UsageError


def chat(answer: str, question: str = "How do I do it?") -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def report_of(tmp_path: Path, answers: list[str], **options) -> AuditReport:
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(chat(a, f"question {i}")) for i, a in enumerate(answers)))
    return audit({"train": Dataset.open([str(path)], kind="sft")}, "sft", **options)


def metric(report: AuditReport, name: str):
    return next(m for m in report.metrics if m.id == name)


REFUSALS = [
    "I'm sorry, but I can't help with that request.",
    "I\u2019m sorry, but I can\u2019t assist with that.",
    "I am sorry, but I am unable to provide medical advice.",
    "I cannot assist with this request as it may be harmful.",
    "I can't provide instructions for that.",
    "Sorry, I can't do that.",
    "Sorry, but I cannot help you there.",
    "I'm afraid I can't discuss that topic.",
    "I must decline to answer this.",
    "I respectfully decline to write that.",
    "Thank you for asking, but I cannot generate such content.",
    "I won't help with breaking into a car.",
    "I'm unable to browse the web.",
    "I'm very sorry, but that I cannot do; please ask a lawyer.",
    "I'm sorry, as an AI I have no opinions on that.",
]
ANSWERS = [
    "You cannot divide by zero, so the limit does not exist.",
    "If the socket is closed, the client can't help but retry.",
    "The variable cannot be provided twice.",
    "She said she was sorry to hear the news and could not come.",
    "A man walks into a bar. 'Sorry,' says the barman, 'we are closed.'",
    "I can help with that: first open the file.",
    "Apologies are due where a promise was broken.",
    "You will not need a refund; the order was refused by the bank.",
    "Not able to see the menu? Press F10.",
    "The proof is by induction. I cannot stress enough that the base case matters.",
    "He was afraid of the dark until he turned nine.",
    "Use `try`/`except`: the function can't assume that the file exists.",
]


def test_planted_refusals_are_found_and_answers_are_not():
    assert [text for text in REFUSALS if refusal(chat(text)) is None] == []  # recall 1
    assert [text for text in ANSWERS if refusal(chat(text)) is not None] == []  # precision 1


def test_a_refusal_is_told_at_the_start_of_any_reply_and_only_there():
    late = "word " * 60 + "I'm sorry, but I can't help with that."
    assert refusal(chat(late)) is None
    turns = [*chat("I can't help with that.")["messages"], *chat("Fine, here it is.")["messages"]]
    assert refusal({"messages": turns}) is not None
    assert refusal({"messages": chat("ok", "I'm sorry, but I can't help with that.")["messages"]}) is None


@pytest.mark.parametrize(
    "text",
    [
        "As an AI language model, I have no feelings.",
        "As a large language model I only know text.",
        "I'm an AI, so I do not eat.",
        "I am ChatGPT.",
        "I was trained by OpenAI on public text.",
        "My knowledge cutoff is 2021.",
        "as an AI assistant I would say yes",
    ],
)
def test_talk_about_oneself(text):
    assert self_reference(chat(text)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "As an AI researcher she reads many papers.",
        "A language model assigns probabilities to words.",
        "I was created by the author as the villain of the book.",
        "OpenAI released the paper in 2020.",
        "My training at the gym starts at six.",
        "I'm an aircraft engineer.",
    ],
)
def test_talk_about_models_is_no_talk_about_oneself(text):
    assert self_reference(chat(text)) is None


def test_what_a_mark_misses_no_rule_finds():
    """The bytes that spare rows a rule must never hide one: every rule with marks, on texts made to find faults."""
    rng = random.Random(7)
    pieces = [
        *REFUSALS, "As an AI language model", "As a language assistant", "As an ai, I", "I'm Qwen", "I\u2019m an AI",
        "I was built by Meta", "My knowledge cuts off", "My training data cutoff", "Ã©", "â€œ", "Â ", "\x00", "\x01",
        "\x08", "\x0b", "\x1b[31m", "\x7f", "\x85", "\ufffd", "\\u0000", "<|im_end|>", "<|eot_id|>", "[INST]",
        "[/INST]", "<end_of_turn>", "é", "漢", "plain", "\n", '"tool', "wont", "I cant help",
    ]  # fmt: skip
    tables = [
        (name, rule) for name, rule in CONTRACTS["sft"].rules.items() if isinstance(rule, Marked) and rule.patterns
    ]
    texts = [(name, rule) for name, rule in CONTRACTS["sft"].text_rules.items() if isinstance(rule, Marked)]
    assert len(tables) == 4
    assert len(texts) == 3
    found: set[str] = set()
    for _ in range(3000):
        record = chat("".join(rng.choices(pieces, k=rng.randrange(1, 4))), rng.choice(pieces))
        if rng.random() < 0.2:
            record["messages"][1]["tool_calls"] = [
                {"type": "function", "function": {"name": rng.choice(["", "f"]), "arguments": "{"}}
            ]
        data = canonical_bytes("sft", record)
        for name, rule in [*tables, *texts]:
            value = strings(record) if name.startswith("characters") else record
            if rule.rule(value) is not None:
                found.add(name)
                seen = any(pc.match_substring_regex(pa.array([data.decode()]), p)[0].as_py() for p in rule.patterns)
                assert seen or any(mark in data for mark in rule.marks), (name, record)
    assert found == {name for name, _ in [*tables, *texts]}


VERBS = "open close move copy sort read write join split merge count print"


def varied(rng: random.Random) -> str:
    return " ".join(rng.choices(VERBS.split(), k=12)) + "."


def test_a_common_opening_and_a_common_ending_are_found_with_their_rows(tmp_path):
    rng = random.Random(1)
    answers = [varied(rng) for _ in range(160)]
    for i in range(40):
        answers[4 * i] = "Certainly! Here is the answer: " + answers[4 * i]
        answers[4 * i + 1] += " Let me know if you need anything else!"
    report = report_of(tmp_path, answers)
    opening, ending = (metric(report, f"sft.style.same_{end}_share") for end in ("opening", "ending"))
    assert (opening.value, opening.n) == (0.25, 160)
    assert (ending.value, ending.n) == (0.25, 160)
    assert [r["row"] for r in report.rows("sft.style.same_opening_share")] == list(range(0, 160, 4))
    assert [r["row"] for r in report.rows("sft.style.same_ending_share")] == list(range(1, 160, 4))
    assert opening.reason.startswith("'certainly! here is the' 40 times")
    near_miss = report_of(tmp_path, [varied(rng) for _ in range(160)])
    assert metric(near_miss, "sft.style.same_opening_share").value < 0.05
    few = report_of(tmp_path, ["Certainly! Here is the answer: " + varied(rng) for _ in range(99)])
    assert metric(few, "sft.style.same_opening_share").status == "skipped"
    short = report_of(tmp_path, ["Yes."] * 200)
    assert metric(short, "sft.style.same_opening_share").status == "skipped"


def test_length_outliers_are_the_planted_ones(tmp_path):
    rng = random.Random(2)
    answers = ["x" * rng.randrange(80, 120) for _ in range(200)]
    answers[7], answers[8], answers[9] = "x" * 4000, "x", "x" * 135  # the last is long, but not by that much
    report = report_of(tmp_path, answers)
    assert [r["row"] for r in report.rows("sft.length.outlier_share")] == [7, 8]
    assert metric(report, "sft.length.outlier_share").value == 2 / 200
    equal = report_of(tmp_path, ["x" * 100] * 150)
    assert metric(equal, "sft.length.outlier_share").value == 0.0
    mostly = report_of(tmp_path, [*["x" * 100] * 150, "x" * 3000])  # the median deviation is 0, the mean is not
    assert [r["row"] for r in mostly.rows("sft.length.outlier_share")] == [150]


ENGLISH = "The committee will meet again next week to discuss the budget and the plans for the coming year, number {}."
GERMAN = "Der Ausschuss trifft sich in der nächsten Woche wieder, um über den Haushalt zu beraten, Nummer {}."
SUMS = "Let U = {} * 3\nU = {} / 2\nTotal = <<30*7=210>>210"


def test_replies_in_a_language_that_nobody_declared(tmp_path):
    pytest.importorskip("py3langid")
    answers = [ENGLISH.format(i) for i in range(90)] + [GERMAN.format(i) for i in range(10)]
    answers += [SUMS.format(i, i) for i in range(40)]  # near miss: sums are told as no language
    mixed = report_of(tmp_path, answers, languages=("en",))
    found = metric(mixed, "sft.language.other_share")
    assert (found.value, found.n) == (0.1, 100)
    assert [r["row"] for r in mixed.rows("sft.language.other_share")] == list(range(90, 100))
    assert all(r["detail"] == "in de" for r in mixed.rows("sft.language.other_share"))
    assert metric(report_of(tmp_path, answers, languages=("en", "de")), "sft.language.other_share").value == 0.0
    undeclared = metric(report_of(tmp_path, answers), "sft.language.other_share")
    assert (undeclared.status, undeclared.reason) == ("skipped", "no language was declared")
    with pytest.raises(UsageError, match="no such language"):
        report_of(tmp_path, answers, languages=("english",))


def test_a_sample_depends_on_content_alone():
    rng = random.Random(3)
    rows = [(rng.randbytes(32), {"text": str(i)}) for i in range(5000)]
    expected = sorted(record["text"] for _, record in sorted(rows, key=lambda row: row[0])[:100])
    for _ in range(3):
        rng.shuffle(rows)
        sample = Sample(lambda record: record["text"], size=100)
        for start in range(0, len(rows), 700):
            part = rows[start : start + 700]
            sample.add(start, [name for name, _ in part], [record for _, record in part])
        texts = sample.texts()
        assert sorted(text for _, text in texts) == expected
        assert all(rows[position][1]["text"] == text for position, text in texts)
