"""What 80 columns show: names stay whole, a table that is too wide becomes a list, a step keeps to one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import invoke, jsonl, on_a_terminal, refused
from rich.cells import cell_len

from cli.clean import show_example
from cli.options import HELP_WIDTH, examples
from cli.output import disjoint, most_first
from cli.run_shown import step_text

DIGEST = "0123456789abcdef" * 4


def on_a_screen(*arguments: object, cwd: Path, columns: int = 80) -> list[str]:
    """The lines that a terminal of so many columns is sent, without colours."""
    _, seen = on_a_terminal(*arguments, cwd=cwd, columns=columns)
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", seen.decode()).replace("\r", "").splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A catalog with one stage, and ten chats of which one has no reply."""
    found = tmp_path_factory.mktemp("narrow")
    chats = [
        {"messages": [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": f"reply {n}"}]}
        for n in range(10)
    ]
    chats[3]["messages"][1]["content"] = " "
    jsonl(found / "chats.jsonl", chats)
    invoke("data", "dedup", "chats.jsonl", "--out", "out.jsonl", cwd=found)
    return found


def test_a_result_that_is_too_wide_is_a_list_with_whole_values(folder):
    fields = ", ".join(f"'a_long_name_of_a_value_{n}' as column_{n}" for n in range(6))
    one = f"select {fields}, '{DIGEST}' as digest"
    assert on_a_screen("sql", one, cwd=folder)[0] == "column_0  a_long_name_of_a_value_0"
    lines = on_a_screen("sql", f"{one} union all {one}", cwd=folder)
    assert (lines[0], lines[9]) == ("row 1", "row 2")
    assert "column_5  a_long_name_of_a_value_5" in lines
    assert f"digest    {DIGEST[:16]}…" in lines


def test_a_result_that_fits_with_short_digests_stays_a_table(folder):
    lines = on_a_screen("sql", f"select 'x' as a, '{DIGEST}' as b, '{DIGEST}' as c", cwd=folder)
    assert lines[2].split() == ["x", "│", f"{DIGEST[:16]}…", "│", f"{DIGEST[:16]}…"]
    assert DIGEST in on_a_screen("sql", f"select '{DIGEST}' as b", cwd=folder)[2]  # where there is room, whole


def test_heads_are_broken_between_words_before_names_are(folder):
    fields = ", ".join(f"'v{n}' as \"name and more words {n}\"" for n in range(6))
    lines = on_a_screen("sql", f"select {fields}, 'a_name_of_a_value_without_a_space' as name", cwd=folder)
    assert any("a_name_of_a_value_without_a_space" in line for line in lines)
    assert all(cell_len(line) <= 80 for line in lines)
    assert "words" in lines[1] or "words" in lines[2]


def test_a_pipe_gets_a_row_a_line_however_wide(folder):
    fields = ", ".join(f"'{DIGEST}' as column_{n}" for n in range(6))
    lines = invoke("sql", f"select {fields}", cwd=folder).stdout.splitlines()
    assert len(lines) == 3
    assert lines[2].count(DIGEST) == 6


def test_names_of_checks_are_whole_and_what_did_not_run_is_told_by_reason(folder):
    lines = on_a_screen("data", "audit", "chats.jsonl", "--contract", "sft", cwd=folder)
    text = "\n".join(lines)
    assert re.search(r"^fail +│ sft\.turns\.empty_share +│ 0\.1 +│ <= 0", text, re.MULTILINE)
    assert not re.search(r"^skipped", text, re.MULTILINE)
    assert "not checked, no benchmark was given: contamination.rows" in lines
    table = [line for line in lines if " │ " in line]
    assert len(table) > 5
    assert all(cell_len(line) <= 80 for line in table)
    assert [line for line in lines if line.startswith("verdict: ")] == ["verdict: reject"]


def test_no_row_behind_a_check_is_said(folder):
    outcome = invoke("data", "audit", "chats.jsonl", "--contract", "sft", "--rows", "leakage.near", cwd=folder)
    assert outcome.said == "no row is behind this check"
    outcome = invoke("data", "audit", "chats.jsonl", "--contract", "sft", "--rows", "sft.turns.empty_share", cwd=folder)
    assert outcome.said == "the first of them: sed -n 4p chats.jsonl"


def test_a_step_says_first_what_one_waits_for():
    metrics = {
        "grad_norm": 2.354,
        "loss": 5.564,
        "tokens_per_second": 1533.4,
        "eta_seconds": 4370.0,
        "memory_gib": 0.97,
    }
    assert step_text(1, 200, metrics) == (
        "step 1/200  loss 5.564  1 h 12 min left  1,533 tokens/s  1.0 GiB  grad_norm 2.354"
    )
    assert step_text(200, 200, {"loss": 1.0, "eta_seconds": 0.0}) == "step 200/200  loss 1"


def test_examples_can_be_pasted():
    line = (
        "lpt data dedup chats.jsonl --out clean.jsonl --key prompt+response --keep quality:rating --benchmark a=b.jsonl"
    )
    shown = examples(
        line, "lpt sql \"select 'a --b' from v_run where this_is_a_name_so_long = 'that nothing fits'\"   # why"
    )
    assert all(len(part) <= HELP_WIDTH for part in shown.split("\n") if "lpt sql" not in part)
    pasted = shown.split("\b\n")[1].replace("\\\n", " ")
    assert pasted.split() == line.split()
    assert shown.split("\b\n")[2].splitlines()[0] == "  # why"
    assert "'a --b'" in shown


def test_every_example_of_the_help_fits_or_is_one_command(folder):
    for line in on_a_screen("data", "dedup", "--help", cwd=folder):
        assert cell_len(line) <= 80, line


def test_what_splits_share(capsys):
    disjoint([("train", "test", "key", 0), ("train", "test", "record", 0), ("train", "validation", "key", 0)])
    assert capsys.readouterr().err == "recomputed: two splits share no key, no record\n"
    disjoint([("train", "test", "key", 3)])
    assert capsys.readouterr().err == "train ∩ test by key: 3\n"


def test_the_most_frequent_reason_comes_first():
    assert most_first({"b": 1, "c": 7, "a": 1}) == [("c", 7), ("a", 1), ("b", 1)]


def test_an_example_begins_where_the_text_was_changed(capsys):
    text = " ".join(f"word{n}" for n in range(30))
    show_example("white_space_tidied", {"row": 7, "before": text + " end", "after": text + " End"})
    first, before, after = capsys.readouterr().err.splitlines()
    assert first == "white_space_tidied, row 7"
    assert (before[:5], before[-4:]) == ("  - …", " end")
    assert (after[:5], after[-4:]) == ("  + …", " End")


def test_splits_say_how_they_are_admitted(tmp_path):
    jsonl(tmp_path / "in.jsonl", [{"text": f"text number {n} of many"} for n in range(40)])
    outcome = invoke("data", "split", "in.jsonl", "--test", 5, "--validation", 5, "--out", "s", cwd=tmp_path)
    assert (
        "next: lpt admit NAME --contract text --train s/train.jsonl --validation s/validation.jsonl --test s/test.jsonl"
    ) in outcome.said


def test_a_setting_typed_as_an_option_is_told_how(tmp_path):
    asked = ("train", "sft", "--admitted", "a:train", "--model", "tiny", "--out", "r")
    refused(invoke(*asked, "--learning_rate", "1e-4", cwd=tmp_path), 2, "next: --set learning_rate=1e-4")
    refused(invoke(*asked, "--max-steps=20", cwd=tmp_path), 2, "next: --set max_steps=20")
    refused(invoke(*asked, "--packing", "--json", cwd=tmp_path), 2, "next: --set packing=true")
    assert invoke(*asked, "--no-such-thing", "1", cwd=tmp_path).code == 2
