"""What is printed: hostile text in data drives no terminal and breaks no format; streams that end are no error."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import LPT, invoke, jsonl, on_a_terminal, refused, spawn

from cli import output

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b32m"
HOSTILE = [
    f"escape {ESCAPE} and a bell \x07",
    "markup [red]warning[/red] [link=https://example.invalid]here[/link] [/]",
    "table | cells | and\nlines\r\nand\ttabs",
    "<script>alert(1)</script> & <b>bold</b>",
    '=HYPERLINK("https://example.invalid","x"), comma, \'quote\'',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "reversed \u202e txt.exe \u2066 and zero\u200bwidth",
]
LITERAL = " union all ".join(f"select '{text.replace(chr(39), chr(39) * 2)}' as t" for text in HOSTILE)
QUERY = f"select t, 1 as n from ({LITERAL})"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A folder with near-duplicates of hostile rows and a row that is put aside, deduplicated."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = []
    for n, text in enumerate(HOSTILE):
        words = " ".join(f"w{n}-{i}" for i in range(20 if "[red]" in text else 40))  # its removal is the weakest
        rows += [{"text": f"{words} {text} {end}"} for end in ("one", "two")]
    jsonl(folder / "in.jsonl", rows)
    with open(folder / "in.jsonl", "a") as file:
        file.write('{"text": "\x1b[31m broken \x1b[0m\n')
    return folder


def test_the_text_of_rows_drives_no_terminal(hostile):
    outcome = invoke("data", "dedup", "in.jsonl", "--out", "out.jsonl", "--threshold", 0.7, cwd=hostile)
    assert outcome.code == 0, outcome.stderr
    assert "weakest removals" in outcome.stderr
    assert "here[/link] [/] one" in outcome.said  # shown as it is, not obeyed
    assert not CONTROLS.search(outcome.stderr.replace("\n", ""))
    why = invoke("why", "in.jsonl:15", cwd=hostile)
    assert why.code == 0, why.stderr
    assert not CONTROLS.search(why.stdout.replace("\n", ""))
    audit = invoke("data", "audit", "in.jsonl", "--contract", "text", "--rows", "schema.quarantined_share", cwd=hostile)
    assert not CONTROLS.search(audit.stdout.replace("\n", ""))


def test_names_of_pictures_and_markup_are_text_in_talk_and_tables(capsys):
    """`chats@1:train:` is a split with a colon behind it."""
    output.say("chats@1:train: 3 rows [red]x[/red]")
    output.say_short("sums:test: 9 [bold]")
    output.table(["a:key:"], [["b:fire:" + "-" * 40]], title="chats:train: [red]t[/red]")
    seen = capsys.readouterr().err
    for text in ("chats@1:train: 3 rows [red]x[/red]", "sums:test: 9 [bold]", "chats:train: [red]t[/red]"):
        assert text in seen
    assert "a:key:" in seen
    assert "b:fire:" in seen


def test_a_task_that_has_just_begun_leaves_no_line_of_progress(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    progress = output.Progress_()
    for now, done, label in ((0, 0, "read"), (11, 5, "read"), (30, 60, "check"), (32, 70, "check")):  # noqa: B007
        progress(done, None, label)
    assert capsys.readouterr().err.splitlines() == ["read: 5 after 11 s", "check: 70 after 2 s"]


def test_hostile_names_drive_no_terminal(tmp_path):
    """Names of files and columns come from others, too."""
    name = "\x1b[31m[red]x.jsonl"
    outcome = refused(invoke("data", "dedup", name, "--out", "o.jsonl", cwd=tmp_path), 5, "[red]x.jsonl")
    assert "\x1b" not in outcome.stderr
    jsonl(tmp_path / name, [{"\x1b[2J[bold]": "a row"}])
    outcome = refused(invoke("data", "dedup", name, "--out", "o.jsonl", cwd=tmp_path), 5, "[bold]")
    assert "\x1b" not in outcome.stderr
    jsonl(tmp_path / name, [{"text": "a row"}])
    outcome = invoke("data", "dedup", name, "--out", "o.jsonl", cwd=tmp_path)
    assert outcome.code == 0
    assert "\x1b" not in outcome.stderr
    for command in ("stage", "v_stage where error = '\x1b[31m'"):
        outcome = invoke("sql", f"select * from {command}", cwd=tmp_path)
        assert outcome.code == 2
        assert "\x1b" not in outcome.stderr


def test_sql_table(hostile):
    outcome = invoke("sql", QUERY, cwd=hostile)
    assert outcome.code == 0, outcome.stderr
    assert not CONTROLS.search(outcome.stdout.replace("\n", ""))
    assert "[red]warning[/red]" in outcome.stdout
    assert "\\x1b" in outcome.stdout


def test_sql_csv_is_the_data_as_it_is(hostile):
    """A formula is data: quoting is for the format alone, and what reads the file back has what was there."""
    outcome = invoke("sql", QUERY, "--format", "csv", cwd=hostile)
    rows = list(csv.reader(io.StringIO(outcome.stdout, newline="")))
    assert rows == [["t", "n"], *([text, "1"] for text in HOSTILE)]


def test_sql_json(hostile):
    for option in (("--format", "json"), ("--json",)):
        body = invoke("sql", QUERY, *option, cwd=hostile).json
        assert body == {"columns": ["t", "n"], "rows": [{"t": text, "n": 1} for text in HOSTILE]}
    odd = "select 'nan'::double a, 'inf'::double b, null c, [1, 2] d, {'x': date '2020-01-02'} e, 'ab'::blob f, 1.5 g"
    (row,) = invoke("sql", odd, "--json", cwd=hostile).json["rows"]
    assert row == {"a": None, "b": None, "c": None, "d": [1, 2], "e": {"x": "2020-01-02"}, "f": "6162", "g": "1.5"}


def test_sql_md_keeps_its_cells(hostile):
    lines = invoke("sql", QUERY, "--format", "md", cwd=hostile).stdout.splitlines()
    assert lines[:2] == ["| t | n |", "| --- | --- |"]
    assert len(lines) == 2 + len(HOSTILE)
    for line in lines:
        assert len(re.split(r"(?<!\\)\|", line)) == 4, line
        assert not CONTROLS.search(line)
        assert "<" not in line


@pytest.mark.parametrize("format", ["table", "csv", "json", "md"])
def test_queries_without_rows_and_with_one_empty_cell(hostile, format):
    for query in ("select 1 as a where false", "select null as a", "select '' as a"):
        outcome = invoke("sql", query, "--format", format, cwd=hostile)
        assert outcome.code == 0, outcome.stderr
        assert "a" in outcome.stdout


def test_a_terminal_is_shown_controls_and_never_sent_them(hostile):
    """On a real terminal even csv and json have their control characters made visible."""
    for format in ("table", "csv", "json", "md"):
        code, seen = on_a_terminal("sql", QUERY, "--format", format, cwd=hostile)
        assert code == 0, seen
        text = re.sub("\x1b\\[[0-9;]*m", "", seen.decode())  # colours of the table itself
        assert not CONTROLS.search(text.replace("\r\n", "")), format
        assert b"\x1b]0;owned" not in seen
        assert b"\x1b[31mred" not in seen


# -- errors as JSON


def test_errors_as_json(tmp_path):
    commands = {
        ("data", "dedup", "absent.jsonl", "--out", "o.jsonl"): 5,
        ("data", "split", "absent.jsonl", "--test", 1, "--out", "s"): 5,
        ("data", "audit", "absent.jsonl", "--contract", "text"): 5,
        ("admit", "a", "--contract", "text", "--train", "absent.jsonl"): 5,
        ("admit", "../a", "--contract", "text", "--train", "absent.jsonl"): 2,
        ("manifest", "show", "a/manifest.json"): 5,
        ("manifest", "list"): 5,
        ("manifest", "verify", "a"): 5,
        ("why", "abcdef0123"): 5,
        ("sql", "select 1"): 5,
        ("catalog", "rebuild"): 5,
        ("train", "sft", "--model", "tiny", "--out", "r", "--set", "nonsense=1"): 2,
        ("eval", "--admitted", "a:test", "--model", "tiny"): 5,
    }
    for number, (command, code) in enumerate(commands.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = refused(invoke(*command, "--json", cwd=folder), code)
        assert set(outcome.json) == {"error"}, command
        assert set(outcome.json["error"]) == {"what", "seen", "next", "exit_code"}
        assert outcome.json["error"]["exit_code"] == code
        assert all(outcome.json["error"][part] for part in ("what", "seen", "next"))
        assert refused(invoke(*command, cwd=folder), code).stdout == ""


def test_what_to_type_next_is_on_one_line(tmp_path):
    """A command that is broken by the width of the console cannot be copied."""
    folder = tmp_path / ("long-" * 30) / ("name-" * 30)
    folder.mkdir(parents=True)
    (folder / "train.jsonl").touch()
    outcome = refused(invoke("data", "dedup", folder / "trian.jsonl", "--out", "o.jsonl", cwd=tmp_path), 5)
    assert f"did you mean {folder}/train.jsonl?" in outcome.stderr


# -- streams that end


@pytest.mark.parametrize("format", ["table", "csv", "json", "md"])
def test_a_reader_that_goes_away(hostile, format):
    """`lpt sql … | head -1`: quiet, exit 0, whether the reader has gone before or while lpt writes."""
    for lines in (0, 1):
        process = subprocess.Popen(
            [LPT, "sql", "select * from range(30000)", "--format", format],
            cwd=hostile, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error_and_talk_that_cannot_is_none(hostile):
    with open("/dev/full", "w") as full:
        for more in ((), ("--json",)):
            ran = subprocess.run([LPT, "sql", "select 1", *more], cwd=hostile, stdout=full, stderr=subprocess.PIPE)
            assert ran.returncode == 5
            assert ran.stderr.startswith(b"error: standard output cannot be written\n  seen: No space left")
            assert b"Traceback" not in ran.stderr
            assert b"Exception ignored" not in ran.stderr
        ran = subprocess.run([LPT, "manifest", "list", "--json"], cwd=hostile, stdout=subprocess.PIPE, stderr=full)
        assert (ran.returncode, json.loads(ran.stdout)) == (0, {"manifests": []})
        dedup = [LPT, "data", "dedup", "in.jsonl", "--out", "again.jsonl"]
        assert subprocess.run(dedup, cwd=hostile, stderr=full).returncode == 0
        assert (hostile / "again.jsonl").stat().st_size


def test_a_locale_that_knows_no_umlauts(hostile):
    environment = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    for format in ("table", "csv", "json", "md"):
        outcome = spawn("sql", "select 'ümläut 漢字' a", "--format", format, cwd=hostile, env=environment)
        assert outcome.code == 0, outcome.stderr
        assert "ümläut 漢字" in outcome.stdout
    outcome = spawn("data", "dedup", "ümläut.jsonl", "--out", "o.jsonl", cwd=hostile, env=environment)
    assert outcome.code == 5
    assert "Traceback" not in outcome.stderr


def test_ctrl_c(hostile):
    """Exit 130 and a line; no traceback."""
    process = subprocess.Popen([LPT, "sql", "-"], cwd=hostile, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)  # it is reading its standard input
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.startswith(b"interrupted")
    assert b"Traceback" not in said
