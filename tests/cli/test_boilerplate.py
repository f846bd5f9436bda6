"""`lpt data boilerplate` as a user sees it: what was cut, hostile lines made harmless, and the way there."""

import json

from command_line import invoke, refused

LINE = "This line \x1b[31mof some words\x1b[0m is everywhere."


def test_what_was_cut_is_told_without_driving_the_terminal(tmp_path):
    texts = [f"Page {n}\n{LINE}" for n in range(8)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    ran = invoke("data", "boilerplate", "in.jsonl", "--out", "out.jsonl", cwd=tmp_path)
    assert ran.code == 0, ran.stderr
    assert ran.stdout == ""
    assert "in 7 pieces; 7 documents rewritten, of 0 nothing was left" in ran.stderr
    assert "\x1b[31m" not in ran.stderr
    assert "\\x1b[31mof some words" in ran.stderr
    assert sum(LINE in json.loads(line)["text"] for line in (tmp_path / "out.jsonl").read_text().splitlines()) == 1


def test_dedup_sends_parts_of_documents_to_their_own_command(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "one row"}\n')
    for method in ("lines", "exact,substring"):
        ran = invoke("data", "dedup", "in.jsonl", "--out", "out.jsonl", "--method", method, cwd=tmp_path)
        refused(ran, 2, f"lpt data boilerplate IN --out OUT --method {method.split(',')[-1]}")


def test_a_passage_too_short_is_a_usage_error(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "one row"}\n')
    options = ("--method", "substring", "--length", 5)
    refused(invoke("data", "boilerplate", "in.jsonl", "--out", "o.jsonl", *options, cwd=tmp_path), 2, "20 characters")
