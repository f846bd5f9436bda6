"""The self test of verifiers, on planted ones and on the trainer's own with the rows that the reader makes."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from lpt_data.audit import audit
from lpt_data.batches import RecordBatch
from lpt_data.contracts.rlvr import blank_answer, judge, perturbed
from lpt_data.dataset import Dataset


@pytest.mark.parametrize(
    ("answer", "other"),
    [
        ("7", "8"),
        ("-1", "0"),
        (" 12 ", "13"),
        ('{"numbers":[6,4],"target":24}', '{"numbers":[7,5],"target":25}'),
        ("[true, 1]", "[false,2]"),
        ("Paris", "siraP"),
        ("level", "level not"),
        ("1/2", "2/1"),
        ("[18446744073709551615]", "]51615590737044764481["),
        ("12" * 2500, "21" * 2500),
    ],
)
def test_a_perturbed_answer_means_something_else(answer, other):
    assert perturbed(answer) == other


def _batch(*records):
    n = len(records)
    return RecordBatch(range(n), records, [{}] * n, [b""] * n, range(1, n + 1), 0)


def test_blank_answers():
    assert blank_answer({"answer": " \u200b"}) == "the answer is empty"
    assert blank_answer({"answer": "0"}) is None


def test_a_verifier_that_raises_on_a_wrong_answer_is_named_not_passed():
    class Fragile:
        def parse_gold(self, answer):
            return True

        def score(self, completion, answer):
            if not completion:
                raise IndexError("empty")
            return 0.0

    record = {"prompt": [{"role": "user", "content": "q"}], "answer": "7", "verifier": "fragile"}
    found = judge(_batch(record), {"fragile": Fragile()}, {})
    faults = {check: detail for _, check, detail in found.faults}
    assert faults["rlvr.verifier.empty_accepted_share"] == "empty completion: raises IndexError: empty"
    assert "rlvr.verifier.wrong_accepted_share" not in faults
    assert found.asked["rlvr.verifier.wrong_accepted_share"] == 1
    assert "rlvr.verifier.gold_rejected_share" not in found.asked  # it cannot write a completion: not asked


def test_what_hangs_on_the_answer_alone_is_asked_once_and_each_prompt_is_scored():
    calls = []

    class Counting:
        def parse_gold(self, answer):
            calls.append(("parse_gold", answer))
            return answer != "x"

        def score(self, completion, answer):
            calls.append((completion, answer))
            return 1.0 if completion == "say 7" else 0.0

    def record(prompt, answer):
        return {"prompt": [{"role": "user", "content": prompt}], "answer": answer, "verifier": "counting"}

    known = {}
    first = [record("a", "7"), record("say 7", "7"), record("b", "x")]
    told = judge(_batch(*first), {"counting": Counting()}, known)
    later = judge(_batch(record("c", "7")), {"counting": Counting()}, known)
    assert [call for call in calls if call[0] == "parse_gold"] == [("parse_gold", "7"), ("parse_gold", "x")]
    assert [call for call in calls if call[0] in ("a", "say 7", "b", "c")] == [("a", "7"), ("say 7", "7"), ("c", "7")]
    echo = "rlvr.verifier.echo_accepted_share"
    assert told.faults == [
        (1, echo, "prompt repeated as the answer: scores 1"),
        (2, "rlvr.gold.unparsed_share", "counting cannot read 'x'"),
    ]
    assert told.asked[echo] == 2
    assert told.asked["rlvr.gold.unparsed_share"] == 3
    assert later.faults == []
    assert later.asked == {check: 1 for check in told.asked}


def test_rows_of_a_verifier_that_is_not_given_are_counted_and_the_others_judged():
    class Kind:
        def parse_gold(self, answer):
            return True

        def score(self, completion, answer):
            return float(completion == answer)

    rows = [("7", "kind"), ("8", "other"), ("9", None), ("echo", "kind")]
    records = [
        {"prompt": [{"role": "user", "content": "echo"}], "answer": answer, "verifier": name} for answer, name in rows
    ]
    found = judge(_batch(*records), {"kind": Kind()}, {})
    assert found.missing == {"other": 1, "(no verifier named)": 1}
    assert found.faults == [(3, "rlvr.verifier.echo_accepted_share", "prompt repeated as the answer: scores 1")]
    assert set(found.asked.values()) == {2}


def test_a_prompt_that_the_verifier_says_it_cannot_pay_is_not_sent_and_counts_as_tested():
    scored = []

    class Looking:
        def parse_gold(self, answer):
            return True

        def score(self, completion, answer):
            scored.append(completion)
            return float(self.may_pay(completion, answer) and completion.endswith(answer))

        def may_pay(self, completion, answer):
            return answer in completion

    prompts = ["is it 7", "no number", "7 it is"]
    records = [
        {"prompt": [{"role": "user", "content": text}], "answer": "7", "verifier": "looking"} for text in prompts
    ]
    found = judge(_batch(*records), {"looking": Looking()}, {})
    assert [text for text in scored if text in prompts] == ["is it 7", "7 it is"]
    echo = "rlvr.verifier.echo_accepted_share"
    assert found.faults == [(0, echo, "prompt repeated as the answer: scores 1")]
    assert found.asked[echo] == 3


def test_could_not_score_is_no_acceptance():
    class Unsure:
        def parse_gold(self, answer):
            return True

        def score(self, completion, answer):
            return None

        def gold_completion(self, answer):
            return answer

    record = {"prompt": [{"role": "user", "content": "q"}], "answer": "7", "verifier": "unsure"}
    found = judge(_batch(record), {"unsure": Unsure()}, {})
    assert found.faults == [(0, "rlvr.verifier.gold_rejected_share", "gold scores None on itself")]
    assert found.asked["rlvr.verifier.wrong_accepted_share"] == 1


def test_countdown_and_integer_rows_pass_the_verifiers_that_will_score_them(tmp_path: Path):
    from lpt_train.rewards import REWARDS

    problems = [([6, 4], 24), ([9, 5], 14), ([8, 2], 4), ([3, 7, 2], 42), ([30, 12], 18)]
    rows = [{"nums": numbers, "target": target} for numbers, target in problems]
    path = tmp_path / "countdown.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    report = audit({"train": Dataset.open([str(path)], kind="rlvr")}, "rlvr", verifiers=REWARDS, key="countdown")
    assert report.verdict == "accept", [c for c in report.checks if c.status in ("fail", "warn", "error")]
    judged = {m.id: (m.value, m.n) for m in report.metrics if m.id.startswith(("rlvr.gold", "rlvr.verifier"))}
    assert set(judged.values()) == {(0.0, 5)}

    mixed = tmp_path / "mixed.jsonl"
    mixed.write_bytes(path.read_bytes() + b"\n" + orjson.dumps({"nums": [5, 1], "target": 900}))
    again = audit({"train": Dataset.open([str(mixed)], kind="rlvr")}, "rlvr", verifiers=REWARDS, key="countdown")
    assert again.verdict == "tune"
    assert [r["row"] for r in again.rows("rlvr.gold.unsolved_share")] == [5]
    (gold,) = [m for m in again.metrics if m.id == "rlvr.verifier.gold_rejected_share"]
    assert (gold.value, gold.n) == (0.0, 5)  # there is no gold completion of the unsolvable one to try
