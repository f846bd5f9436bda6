"""Every check of a contract on planted rows: the exact value, the rows behind it, and near misses."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from lpt_data import audit as audit_module
from lpt_data.audit import AuditReport, audit
from lpt_data.contracts import CONTRACTS
from lpt_data.contracts.groups import COMMON_MEASURES
from lpt_data.dataset import Dataset
from manifests.errors import BadInputError, RecordError, UsageError
from manifests.policy import load_policy

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def write(path: Path, rows: list[Any]) -> str:
    path.write_bytes(b"".join((r if isinstance(r, bytes) else orjson.dumps(r)) + b"\n" for r in rows))
    return str(path)


def chat(question: str, answer: str = "fine") -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def sum_row(question: str, answer: str = "3", verifier: str = "digits") -> dict:
    return {"prompt": question, "answer": answer, "verifier": verifier}


def check(tmp_path: Path, contract: str, splits: dict[str, list[Any]], **options: Any) -> AuditReport:
    datasets = {n: Dataset.open([write(tmp_path / f"{n}.jsonl", rows)], kind=contract) for n, rows in splits.items()}
    return audit(datasets, contract, **options)


def value(report: AuditReport, check_id: str) -> tuple[str, float | None, int]:
    metric = next(m for m in report.metrics if m.id == check_id)
    return metric.status, metric.value, metric.n


def status(report: AuditReport, check_id: str) -> str:
    return next(c.status for c in report.checks if c.id == check_id)


def found(report: AuditReport, check_id: str) -> list[tuple[str, int]]:
    return [(r["split"], r["row"]) for r in report.rows(check_id)]


class Digits:
    """A verifier for tests: the last word of a completion must be the digits of the answer."""

    def parse_gold(self, answer: str) -> bool:
        if answer == "boom":
            raise ArithmeticError("boom")
        return answer.isdigit()

    def score(self, completion: str, answer: str) -> float | None:
        words = completion.split()
        return 1.0 if words and words[-1] == answer else 0.0

    def gold_completion(self, answer: str) -> str | None:
        return f"it is {answer}"


class Generous(Digits):
    """Pays everybody: the fault that a self test exists for."""

    def score(self, completion: str, answer: str) -> float | None:
        return 1.0


class Blind(Digits):
    """Pays nobody, and cannot write a completion for the answer 4."""

    def score(self, completion: str, answer: str) -> float | None:
        return 0.0

    def gold_completion(self, answer: str) -> str | None:
        return None if answer == "4" else "it is 3"


@dataclass(frozen=True)
class Tokens:
    ids: list[int]
    loss_mask: list[int]


@dataclass(frozen=True)
class Words:
    """An encoder for tests: BOS (1), one token (9) for each word, a stop token (2) after each assistant turn."""

    name: str = "words"
    fingerprint: str = "f" * 64
    template_sha256: str = "0" * 64
    bos_token_id: int = 1
    stop_ids: frozenset[int] = frozenset({2})
    bos_times: int = 1
    train_on_stop: int = 1

    def encode(self, messages: list[dict], tools: str | None = None) -> Tokens:
        ids, mask = [1] * self.bos_times, [0] * self.bos_times
        for message in messages:
            words = message["content"].split()
            if "forbidden" in words:
                raise RecordError("the template refuses this", reason="template_refused", seen="forbidden")
            if "endless" in words:
                raise RecordError("not closed", reason="no_stop_token")
            learned = int(message["role"] == "assistant")
            ids += [9] * len(words)
            mask += [learned] * len(words)
            if learned:
                ids.append(2)
                mask.append(self.train_on_stop)
        return Tokens(ids, mask)


# -- the tables


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_shipped_policy_judges_each_measurement_of_its_contract_and_no_other(contract):
    chosen = CONTRACTS[contract]
    measured = {*COMMON_MEASURES, *chosen.rules, *chosen.text_rules, *chosen.measures}
    assert {rule.id for rule in load_policy(None, contract).rules} == measured


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_red_line_of_a_shipped_policy_has_a_next_command(contract):
    for rule in load_policy(None, contract).rules:
        assert rule.tune or rule.reject
        commands = ("lpt data dedup ", "lpt data split ", "lpt data pairs ", "lpt data synth ", "lpt data mix ")
        assert rule.next.startswith(("{audit}", "{longer}", "{unleak}", *commands))


# -- reading


def test_a_clean_set_is_accepted_and_says_what_was_not_checked(tmp_path):
    report = check(tmp_path, "sft", {"train": [chat(f"question {i}") for i in range(10)]})
    assert (report.verdict, report.exit_code) == ("accept", 0)
    assert status(report, "leakage.keys") == "skipped"
    assert any(line.startswith("sft.truncation.rate: no tokenizer") for line in report.not_checked)
    assert any(line.startswith("sft.language.other_share: no language") for line in report.not_checked)
    assert "personal data and secrets" in report.not_checked


def test_quarantined_rows_are_counted_by_reason_and_listed_with_their_line(tmp_path):
    rows = [chat(f"q{i}") for i in range(18)] + [b"{broken", {"messages": 3}]
    report = check(tmp_path, "sft", {"train": rows})
    assert value(report, "schema.quarantined_share") == ("ok", 2 / 20, 20)
    assert status(report, "schema.quarantined_share") == "fail"
    metric = next(m for m in report.metrics if m.id == "schema.quarantined_share")
    assert "invalid_json 1" in metric.reason
    first = report.rows("schema.quarantined_share")[0]
    assert (first["row"], first["line"], first["record_id"]) == (18, 19, "")
    assert first["file"].endswith("train.jsonl")


@pytest.mark.parametrize(("bad", "expected"), [(0, "pass"), (1, "warn"), (5, "warn"), (6, "fail")])
def test_quarantine_is_tolerated_up_to_the_policy(tmp_path, bad, expected):
    rows = [chat(f"q{i}") for i in range(100 - bad)] + [b"{"] * bad
    assert status(check(tmp_path, "sft", {"train": rows}), "schema.quarantined_share") == expected


def test_findings_name_file_and_line_after_blank_and_broken_lines(tmp_path):
    rows = [chat("a"), b"", b"{", chat("b", " ")]
    report = check(tmp_path, "sft", {"train": rows})
    (row,) = report.rows("sft.turns.empty_share")
    assert (row["row"], row["line"]) == (2, 4)
    assert len(row["record_id"]) == 64


# -- rows of one split


def test_each_row_rule_is_a_share_of_the_records(tmp_path):
    rows = [chat(f"q{i}") for i in range(8)] + [
        {"messages": [{"role": "user", "content": "?"}]},
        chat("q9", "<|im_end|>"),
    ]
    report = check(tmp_path, "sft", {"train": rows})
    assert value(report, "sft.roles.bad_share") == ("ok", 0.1, 10)
    assert value(report, "sft.reserved_tokens.share") == ("ok", 0.1, 10)
    assert value(report, "sft.turns.empty_share") == ("ok", 0.0, 10)
    assert found(report, "sft.roles.bad_share") == [("train", 8)]
    assert (report.verdict, report.exit_code) == ("reject", 4)


def test_characters(tmp_path):
    rows = [{"text": "fine"}, {"text": "a\x00b"}, {"text": "a\ufffdb"}, {"text": "caf\u00c3\u00a9"}]
    report = check(tmp_path, "text", {"train": rows})
    for name, row in (("nul", 1), ("control", 2), ("mojibake", 3)):
        assert value(report, f"characters.{name}_share") == ("ok", 0.25, 4)
        assert found(report, f"characters.{name}_share") == [("train", row)]
    assert status(report, "characters.nul_share") == "fail"
    assert status(report, "characters.control_share") == "warn"


def test_exact_duplicates_duplicated_inputs_and_conflicts_are_three_things(tmp_path):
    rows = [chat("a", "1"), chat("a", "1"), chat("a", "2"), chat("b", "1"), chat("A", "3")]
    report = check(tmp_path, "sft", {"train": rows})
    assert value(report, "duplicates.exact_share") == ("ok", 1 / 5, 5)
    assert found(report, "duplicates.exact_share") == [("train", 1)]
    assert value(report, "sft.inputs.duplicated_share") == ("ok", 2 / 5, 5)
    assert found(report, "sft.inputs.duplicated_share") == [("train", 1), ("train", 2)]
    assert value(report, "sft.inputs.conflicting_share") == ("ok", 3 / 5, 5)
    assert found(report, "sft.inputs.conflicting_share") == [("train", 0), ("train", 1), ("train", 2)]
    assert report.rows("sft.inputs.conflicting_share")[2]["detail"] == "same input as row 0, another output"


def test_each_conflict_names_the_first_row_that_answers_otherwise(tmp_path):
    rows = [chat("why?", answer) for answer in ("a", "a", "b", "a", "b", "c")]
    report = check(tmp_path, "sft", {"train": rows})
    details = [row["detail"] for row in report.rows("sft.inputs.conflicting_share")]
    assert details == [f"same input as row {n}, another output" for n in (2, 2, 0, 2, 0, 0)]


def test_the_key_root_is_the_one_of_a_manifest(tmp_path):
    once = check(tmp_path, "sft", {"train": [chat("why?")]}).to_json()["splits"]["train"]
    twice = check(tmp_path, "sft", {"train": [chat("why?"), chat("why?", "other")]}).to_json()["splits"]["train"]
    assert once["key_root"] == twice["key_root"]


def test_the_same_row_in_two_splits_is_leakage_and_no_duplicate(tmp_path):
    report = check(tmp_path, "sft", {"train": [chat("a")], "test": [chat("a")]})
    assert value(report, "duplicates.exact_share") == ("ok", 0.0, 2)
    assert value(report, "leakage.records") == ("ok", 1, 2)


def test_a_tool_list_is_part_of_the_input(tmp_path):
    tools = {"tools": '[{"name": "add"}]'}
    report = check(tmp_path, "sft", {"train": [chat("a", "1"), {**chat("a", "2"), **tools}]})
    assert value(report, "sft.inputs.conflicting_share") == ("ok", 0.0, 2)


# -- between splits


def test_leakage_by_record_and_by_key(tmp_path):
    train = [chat("What is it?", "x"), chat("same row", "y"), chat("only here")]
    test = [chat("what  IS it", "z"), chat("same row", "y"), chat("only there")]
    report = check(tmp_path, "sft", {"train": train, "test": test})
    assert value(report, "leakage.records") == ("ok", 1, 6)
    assert found(report, "leakage.records") == [("train", 1)]
    assert value(report, "leakage.keys") == ("ok", 2, 6)
    assert found(report, "leakage.keys") == [("train", 0), ("train", 1)]
    assert report.rows("leakage.keys")[0]["detail"] == "same key as test row 0"
    assert (report.verdict, report.exit_code) == ("reject", 4)


def test_leakage_looks_at_every_pair_of_splits(tmp_path):
    splits = {"train": [chat("a")], "validation": [chat("b")], "test": [chat("a"), chat("b")]}
    report = check(tmp_path, "sft", splits)
    assert value(report, "leakage.records") == ("ok", 2, 4)
    assert found(report, "leakage.records") == [("train", 0), ("validation", 0)]


def test_leakage_counts_distinct_values_however_often_they_repeat(tmp_path):
    report = check(tmp_path, "sft", {"train": [chat("a")] * 3, "test": [chat("a")] * 2})
    assert value(report, "leakage.records") == ("ok", 1, 5)
    assert found(report, "leakage.records") == [("train", 0), ("train", 1), ("train", 2)]


def test_a_column_can_be_the_key(tmp_path):
    train, test = [{**chat("a"), "user": "u1"}], [{**chat("b"), "user": "u1"}]
    by_text = check(tmp_path, "sft", {"train": train, "test": test})
    by_user = check(tmp_path, "sft", {"train": train, "test": test}, key="user")
    assert value(by_text, "leakage.keys") == ("ok", 0, 2)
    assert value(by_user, "leakage.keys") == ("ok", 1, 2)


def test_a_row_without_a_key_is_an_error_because_it_could_leak_unseen(tmp_path):
    with pytest.raises(BadInputError, match="no canonical key 'user'") as caught:
        check(tmp_path, "sft", {"train": [{**chat("a"), "user": "u1"}, chat("b")]}, key="user")
    assert "row 1" in str(caught.value)
    assert caught.value.next


def test_operators_tell_arithmetic_prompts_apart(tmp_path):
    splits = {"train": [sum_row("3 - 2 = ?", "1")], "test": [sum_row("3 + 2 = ?", "5")]}
    report = check(tmp_path, "rlvr", splits, verifiers={"digits": Digits()})
    assert value(report, "leakage.keys") == ("ok", 0, 2)


# -- references and benchmarks


def test_rows_of_a_reference_are_found_by_record_and_by_key(tmp_path):
    reference = write(tmp_path / "held.jsonl", [chat("What is it?", "x"), chat("other")])
    report = check(
        tmp_path, "sft", {"train": [chat("what is it", "y"), chat("other"), chat("new")]}, against=[reference]
    )
    assert value(report, "against.records") == ("ok", 1, 3)
    assert found(report, "against.records") == [("train", 1)]
    assert value(report, "against.keys") == ("ok", 2, 3)
    assert found(report, "against.keys") == [("train", 0), ("train", 1)]
    assert report.verdict == "reject"


def test_a_benchmark_question_is_found_whole_in_any_user_turn(tmp_path):
    benchmark = write(
        tmp_path / "bench.jsonl", [{"question": "How many legs has a spider?", "answer": "Eight. #### 8"}]
    )
    deep = {"messages": [*chat("hello")["messages"], *chat("how many legs  has a SPIDER", "8")["messages"]]}
    near = chat("How many legs has a spider or an ant?")
    report = check(tmp_path, "sft", {"train": [deep, near, chat("x")]}, benchmarks={"legs": [benchmark]})
    assert value(report, "contamination.legs.key_hits") == ("ok", 1, 3)
    assert value(report, "contamination.rows") == ("ok", 1, 3)
    assert report.rows("contamination.rows")[0]["detail"] == "asks item 0 of legs"
    assert report.verdict == "reject"
    assert "lpt data audit" in next(c.next for c in report.checks if c.id == "contamination.rows")


def test_a_benchmark_of_an_unknown_layout_is_read_by_its_question_column(tmp_path):
    benchmark = write(tmp_path / "bench.jsonl", [{"task_id": 1, "prompt": "def f(x):", "test": "assert f(1)"}])
    report = check(tmp_path, "text", {"train": [{"text": "def f(x):"}]}, benchmarks={"code": [benchmark]})
    assert value(report, "contamination.code.key_hits") == ("ok", 1, 1)


def test_rows_of_a_benchmark_or_a_reference_that_could_not_be_read_are_said(tmp_path):
    half = write(tmp_path / "half.jsonl", [chat("why?"), b"{broken", b"[]"])
    report = check(tmp_path, "sft", {"train": [chat("who?")]}, benchmarks={"half": [half]}, against=[half])
    for check_id in ("against.keys", "contamination.rows", "contamination.half.key_hits"):
        said = next(m.reason for m in report.metrics if m.id == check_id)
        assert "1 rows of " in said
        assert ", 2 more could not be read" in said


def test_a_benchmark_that_cannot_be_read_is_an_error_and_not_a_zero(tmp_path):
    nothing = write(tmp_path / "bench.jsonl", [{"number": 1}])
    with pytest.raises(BadInputError, match="has no questions that could be read"):
        check(tmp_path, "sft", {"train": [chat("a")]}, benchmarks={"b": [nothing]})
    with pytest.raises(BadInputError):
        check(tmp_path, "sft", {"train": [chat("a")]}, benchmarks={"b": [str(tmp_path / "missing.jsonl")]})


# -- rlvr


def test_a_clean_rlvr_set_is_accepted(tmp_path):
    rows = [sum_row(f"what is {i} and one", str(i + 1)) for i in range(10, 30)]
    report = check(tmp_path, "rlvr", {"train": rows}, verifiers={"digits": Digits()})
    assert (report.verdict, report.exit_code) == ("accept", 0)
    assert value(report, "rlvr.gold.unparsed_share") == ("ok", 0.0, 20)
    assert value(report, "rlvr.verifier.gold_rejected_share") == ("ok", 0.0, 20)
    assert value(report, "rlvr.answers.most_common_share") == ("ok", 0.05, 20)


def test_gold_that_the_verifier_cannot_read_is_named(tmp_path):
    rows = [sum_row("a b", "12"), sum_row("c d", "twelve"), sum_row("e f", "boom"), sum_row("g h", "1 2")]
    report = check(tmp_path, "rlvr", {"train": rows}, verifiers={"digits": Digits()})
    assert value(report, "rlvr.gold.unparsed_share") == ("ok", 0.75, 4)
    details = [r["detail"] for r in report.rows("rlvr.gold.unparsed_share")]
    assert details[0] == "digits cannot read 'twelve'"
    assert details[1] == "digits raises ArithmeticError: boom on 'boom'"
    assert value(report, "rlvr.verifier.wrong_accepted_share") == ("ok", 0.0, 1)  # only what was read is tested further


@pytest.mark.parametrize("verifiers", [None, {}, {"other": Digits()}])
def test_without_its_verifier_the_required_checks_do_not_run_and_that_is_no_pass(tmp_path, verifiers):
    report = check(tmp_path, "rlvr", {"train": [sum_row("a b", "12")]}, verifiers=verifiers)
    assert status(report, "rlvr.gold.unparsed_share") == "skipped"
    assert (report.verdict, report.exit_code) == ("reject", 5)


def test_one_row_of_an_unknown_verifier_is_enough_to_skip(tmp_path):
    rows = [sum_row("a b", "12"), sum_row("c d", "13", verifier="unheard")]
    report = check(tmp_path, "rlvr", {"train": rows}, verifiers={"digits": Digits()})
    metric = next(m for m in report.metrics if m.id == "rlvr.gold.unparsed_share")
    assert (metric.status, metric.reason) == ("skipped", "no such verifier: 1 rows name 'unheard'")


def test_the_self_test_bites_both_ways(tmp_path):
    rows = [sum_row("what is 6 and 6", "12"), sum_row("now say 4", "4")]
    generous = check(tmp_path, "rlvr", {"train": rows}, verifiers={"digits": Generous()})
    for name in ("wrong", "empty", "echo"):
        assert value(generous, f"rlvr.verifier.{name}_accepted_share") == ("ok", 1.0, 2)
    assert value(generous, "rlvr.verifier.gold_rejected_share") == ("ok", 0.0, 2)
    blind = check(tmp_path, "rlvr", {"train": rows}, verifiers={"digits": Blind()})
    assert value(blind, "rlvr.verifier.gold_rejected_share") == ("ok", 1.0, 1)  # 4 has no gold completion to test
    assert value(blind, "rlvr.verifier.wrong_accepted_share") == ("ok", 0.0, 2)
    honest = check(tmp_path, "rlvr", {"train": rows}, verifiers={"digits": Digits()})
    assert value(honest, "rlvr.verifier.wrong_accepted_share") == ("ok", 0.0, 2)
    assert value(honest, "rlvr.verifier.echo_accepted_share") == ("ok", 0.5, 2)
    assert report_row(honest, "rlvr.verifier.echo_accepted_share") == (1, "prompt repeated as the answer: scores 1")


def report_row(report: AuditReport, check_id: str) -> tuple[int, str]:
    (row,) = report.rows(check_id)
    return row["row"], row["detail"]


def test_prompts_repeat_and_golds_conflict(tmp_path):
    rows = [sum_row("one two", "30"), sum_row("one  TWO", "30"), sum_row("one two", "31"), sum_row("else", "30")]
    report = check(tmp_path, "rlvr", {"train": rows}, verifiers={"digits": Digits()})
    assert value(report, "rlvr.prompts.rows_per_key") == ("ok", 2.0, 4)
    assert found(report, "rlvr.prompts.rows_per_key") == [("train", 1), ("train", 2)]
    assert value(report, "rlvr.answers.conflicting_share") == ("ok", 0.5, 4)
    assert found(report, "rlvr.answers.conflicting_share") == [("train", 0), ("train", 2)]
    assert value(report, "rlvr.answers.most_common_share") == ("ok", 0.75, 4)
    assert status(report, "rlvr.answers.most_common_share") == "warn"


@pytest.mark.parametrize(
    ("answer", "guess"),
    [("yes", True), ("No.", True), ("B", True), ("(c)", True), ("4", True), ("5", False), ("F", False), ("14", False)]
    + [("-1", False), ("maybe", False), ("1.5", False)],
)
def test_answers_that_a_blind_guess_hits(tmp_path, answer, guess):
    report = check(tmp_path, "rlvr", {"train": [sum_row("a b", answer)]}, verifiers={"digits": Digits()})
    assert value(report, "rlvr.answers.guessable_share") == ("ok", float(guess), 1)


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        ([], "the prompt has no turns"),
        ([{"role": "user", "content": " "}], "turn 0: user is empty"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            "ends with assistant, so nothing is asked",
        ),
        ([{"role": "system", "content": "a"}], "ends with system, so nothing is asked"),
        ([{"role": "narrator", "content": "a"}], "turn 0: unknown role 'narrator'"),
        ([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}], "turn 1: system after the start"),
    ],
)
def test_prompts_that_ask_nothing(tmp_path, prompt, fault):
    good = {**sum_row("x"), "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]}
    report = check(
        tmp_path, "rlvr", {"train": [good, {**sum_row("x"), "prompt": prompt}]}, verifiers={"digits": Digits()}
    )
    assert value(report, "rlvr.prompt.bad_share") == ("ok", 0.5, 2)
    assert report_row(report, "rlvr.prompt.bad_share") == (1, fault)


def test_prompt_budget(tmp_path):
    rows = [sum_row("w " * n, "30") for n in (1, 4, 5, 9)]  # with BOS: 2, 5, 6, 10 tokens
    report = check(tmp_path, "rlvr", {"train": rows}, verifiers={"digits": Digits()}, encode=Words(), max_length=5)
    assert value(report, "rlvr.prompt.over_budget_share") == ("ok", 0.5, 4)
    assert found(report, "rlvr.prompt.over_budget_share") == [("train", 2), ("train", 3)]
    assert report_next(report, "rlvr.prompt.over_budget_share").endswith("# estimated: 25.00% at 7, 0.00% at 10")


def report_next(report: AuditReport, check_id: str) -> str:
    return next(c.next for c in report.checks if c.id == check_id)


# -- with a tokenizer


def test_truncation_is_measured_and_the_next_length_is_estimated(tmp_path):
    # BOS + 1 word + answer + stop: 4, 8, 9, 20 tokens
    rows = [chat(f"q{n}", "w " * n) for n in (1, 5, 6, 17)]
    report = check(tmp_path, "sft", {"train": rows}, encode=Words(), max_length=8)
    assert value(report, "sft.truncation.rate") == ("ok", 0.5, 4)
    assert found(report, "sft.truncation.rate") == [("train", 2), ("train", 3)]
    assert value(report, "sft.truncation.tokens_lost_share") == ("ok", 13 / 41, 41)
    assert report_next(report, "sft.truncation.rate").endswith(
        "--max-length 16  # estimated: 25.00% at 12, 25.00% at 16"
    )
    assert value(report, "sft.supervised.share") == ("ok", (2 + 6 + 6 + 6) / (4 + 8 + 8 + 8), 28)
    assert value(report, "sft.supervised.zero_rows") == ("ok", 0, 4)


def test_rows_that_truncation_leaves_without_a_lesson(tmp_path):
    rows = [chat("w " * 7, "a"), chat("w " * 6, "a")]  # BOS + prompt: 8 and 7 tokens
    report = check(tmp_path, "sft", {"train": rows}, encode=Words(), max_length=8)
    assert value(report, "sft.supervised.zero_rows") == ("ok", 1, 2)
    assert report_row(report, "sft.supervised.zero_rows") == (0, "10 tokens, 2 supervised before truncation, 0 after")
    assert status(report, "sft.supervised.zero_rows") == "fail"


def test_without_a_length_only_truncation_is_skipped(tmp_path):
    report = check(tmp_path, "sft", {"train": [chat("a b")]}, encode=Words())
    assert status(report, "sft.truncation.rate") == "skipped"
    assert report_next(report, "sft.truncation.rate").endswith("--tokenizer words --max-length N")
    assert status(report, "sft.supervised.share") == "pass"


def test_stop_tokens_and_doubled_start_tokens(tmp_path):
    rows = {"train": [chat("a b"), chat("c", "two turns")]}
    good = check(tmp_path, "sft", rows, encode=Words())
    assert value(good, "sft.stop.unsupervised_share") == ("ok", 0.0, 2)
    assert value(good, "sft.bos.double_share") == ("ok", 0.0, 2)
    mute = check(tmp_path, "sft", rows, encode=Words(train_on_stop=0))
    assert value(mute, "sft.stop.unsupervised_share") == ("ok", 1.0, 2)
    assert mute.rows("sft.stop.unsupervised_share")[0]["detail"] == "1 assistant turns, 0 supervised stop tokens"
    twice = check(tmp_path, "sft", rows, encode=Words(bos_times=2))
    assert value(twice, "sft.bos.double_share") == ("ok", 1.0, 2)
    assert (twice.verdict, mute.verdict) == ("reject", "reject")


def test_rows_that_the_encoder_refuses_are_told_apart_by_reason(tmp_path):
    rows = [chat("a"), chat("a forbidden word"), chat("an endless turn")]
    report = check(tmp_path, "sft", {"train": rows}, encode=Words())
    assert value(report, "sft.render.failed_share") == ("ok", 1 / 3, 3)
    assert report_row(report, "sft.render.failed_share") == (1, "the template refuses this: forbidden")
    assert found(report, "sft.stop.unsupervised_share") == [("train", 2)]


def test_an_encoder_that_breaks_is_an_error_that_no_check_survives(tmp_path):
    class Broken(Words):
        def encode(self, messages, tools=None):
            raise KeyError("vocabulary")

    report = check(tmp_path, "sft", {"train": [chat("a")]}, encode=Broken(), max_length=8)
    for name in ("sft.render.failed_share", "sft.truncation.rate", "sft.supervised.zero_rows", "sft.bos.double_share"):
        assert status(report, name) == "error"
    assert (report.verdict, report.exit_code) == ("reject", 5)


def test_an_encoder_that_does_not_name_its_stop_tokens_is_not_believed(tmp_path):
    report = check(tmp_path, "sft", {"train": [chat("a")]}, encode=Words(stop_ids=None))
    assert status(report, "sft.stop.unsupervised_share") == "skipped"


# -- nothing is silently green


def test_a_rule_that_raises_is_an_error_with_the_row(tmp_path, monkeypatch):
    def breaks(record):
        raise ZeroDivisionError("rule")

    broken = dict(CONTRACTS["sft"].rules) | {"sft.roles.bad_share": breaks}
    contract = audit_module.replace(CONTRACTS["sft"], rules=broken)
    monkeypatch.setattr(audit_module, "CONTRACTS", {**CONTRACTS, "sft": contract})
    report = check(tmp_path, "sft", {"train": [chat("a")]})
    metric = next(m for m in report.metrics if m.id == "sft.roles.bad_share")
    assert (metric.status, metric.value, metric.reason) == ("error", None, "row 0: ZeroDivisionError: rule")
    assert (report.verdict, report.exit_code) == ("reject", 5)


def test_a_measure_that_raises_is_no_pass_even_where_the_policy_does_not_require_it(tmp_path, monkeypatch):
    def breaks(survey):
        raise MemoryError("measure")

    contract = CONTRACTS["sft"]
    measures = dict(contract.measures) | {"sft.truncation.rate": breaks}
    monkeypatch.setattr(
        audit_module, "CONTRACTS", {**CONTRACTS, "sft": audit_module.replace(contract, measures=measures)}
    )
    report = check(tmp_path, "sft", {"train": [chat("a")]})
    assert status(report, "sft.truncation.rate") == "error"
    assert (report.verdict, report.exit_code) == ("reject", 5)


def test_unknown_names_are_answered(tmp_path):
    with pytest.raises(UsageError, match="no such contract"):
        audit({}, "sfT")
    with pytest.raises(UsageError, match="nothing to audit"):
        audit({}, "sft")
    with pytest.raises(UsageError, match="no such check"):
        check(tmp_path, "sft", {"train": [chat("a")]}).rows("sft.nothing")


def test_the_command_that_shows_the_rows_makes_the_same_audit_again(tmp_path):
    reference = write(tmp_path / "a reference.jsonl", [{**chat("z"), "user": 3}])
    splits = {"train": [{**chat("a", " "), "user": 1}], "test": [{**chat("b"), "user": 2}]}
    report = check(tmp_path, "sft", splits, key="user", encode=Words(), max_length=9, against=[reference])
    words = shlex.split(report_next(report, "sft.turns.empty_share"), comments=True)
    assert words[:5] == ["lpt", "data", "audit", f"train={tmp_path}/train.jsonl", f"test={tmp_path}/test.jsonl"]
    for option, given in {"--contract": "sft", "--key": "user", "--tokenizer": "words", "--max-length": "9"}.items():
        assert words[words.index(option) + 1] == given
    assert words[words.index("--against") + 1] == reference
    assert words[-2:] == ["--rows", "sft.turns.empty_share"]


def test_leakage_is_answered_by_taking_the_rows_out_of_train_and_never_touches_the_test_set(tmp_path):
    report = check(tmp_path, "sft", {"train": [chat("a")], "test": [chat("a")]})
    wanted = f"lpt data drop {tmp_path}/train.jsonl --contract sft --against {tmp_path}/test.jsonl "
    assert report_next(report, "leakage.keys") == wanted + "--check against.keys --out clean.jsonl"
    assert report_next(report, "duplicates.exact_share").startswith(f"lpt data dedup {tmp_path}/train.jsonl ")


def test_the_report_is_one_json_object(tmp_path):
    report = check(tmp_path, "sft", {"train": [chat("a"), chat("b")], "test": [chat("c")]})
    body = orjson.loads(orjson.dumps(report.to_json()))
    assert body["verdict"] == "accept"
    assert set(body["checks"][0]) >= {"id", "status", "value", "op", "threshold", "n", "severity", "next"}
    assert body["splits"]["train"]["rows"] == 2
    assert len(body["splits"]["train"]["content_root"]) == 64


# -- real data


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not here")
@pytest.mark.parametrize("contract", ["rlvr", "sft"])
def test_gsm8k_shares_no_key_and_every_gold_parses(contract):
    class Integer(Digits):
        def parse_gold(self, answer):
            return answer.removeprefix("-").isdigit()

    datasets = {n: Dataset.open([str(SHARED / "gsm8k" / f"{n}.jsonl")], kind=contract) for n in ("train", "test")}
    report = audit(datasets, contract, verifiers={"integer": Integer()})
    assert value(report, "leakage.keys") == ("ok", 0, 8792)
    assert value(report, "leakage.records") == ("ok", 0, 8792)
    assert report.verdict == "accept"
    if contract == "rlvr":
        assert value(report, "rlvr.gold.unparsed_share") == ("ok", 0.0, 8792)
        assert value(report, "rlvr.verifier.gold_rejected_share") == ("ok", 0.0, 8792)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not here")
def test_gsm8k_test_questions_are_found_in_a_set_that_holds_them():
    rows = Dataset.open([str(SHARED / "gsm8k" / "test.jsonl")], kind="sft")
    report = audit({"train": rows}, "sft", benchmarks={"gsm8k": [str(SHARED / "gsm8k" / "test.jsonl")]})
    assert value(report, "contamination.gsm8k.key_hits") == ("ok", 1319, 1319)


def test_the_renderer_of_the_trainer_passes_every_gate_on_clean_rows(tmp_path):
    pytest.importorskip("transformers")
    from lpt_train.render import Renderer
    from lpt_train.tiny import byte_tokenizer

    encoder = Renderer(byte_tokenizer())
    chats = {"train": [chat(f"question {i}", "an answer") for i in range(5)]}
    report = check(tmp_path, "sft", chats, encode=encoder, max_length=200)
    for gate in ("render.failed_share", "stop.unsupervised_share", "bos.double_share"):
        assert value(report, f"sft.{gate}") == ("ok", 0.0, 5)
    assert report.verdict == "accept"
    prompts = {"train": [sum_row(f"ten and {i} please", str(i + 10)) for i in range(10, 15)]}
    asked = check(tmp_path, "rlvr", prompts, encode=encoder, max_length=200, verifiers={"digits": Digits()})
    assert value(asked, "rlvr.prompt.render_failed_share") == ("ok", 0.0, 5)
    assert asked.verdict == "accept"
    special = encoder.tokenizer.convert_ids_to_tokens(min(encoder.stop_ids))
    smuggled = check(tmp_path, "sft", {"train": [chat("q", f"a {special} b"), chat("q")]}, encode=encoder)
    assert value(smuggled, "sft.render.failed_share") == ("ok", 0.5, 2)


def test_a_split_that_changes_while_it_is_audited_has_no_report(tmp_path: Path) -> None:
    """Its rows are valid before and after, and of the same size."""
    path = Path(write(tmp_path / "train.jsonl", [chat("one"), chat("two")]))
    before = path.stat()

    def progress(done: int, total: int | None, label: str) -> None:
        path.write_bytes(path.read_bytes().replace(b"two", b"one"))
        os.utime(path, ns=(0, before.st_mtime_ns + 1))

    with pytest.raises(BadInputError, match="changed while it was read"):
        audit({"train": Dataset.open([str(path)], kind="sft")}, "sft", progress=progress)
