"""`lpt data decontaminate` as a user types it: hits both ways, reports, bad input, rows that are hostile."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import invoke

from cli.options import benchmark_paths
from lpt_data.benchmarks import add
from manifests.catalog import Catalog
from manifests.errors import UsageError

SHARED = Path(__file__).parents[3] / "shared" / "data"
QUESTION = "A baker sells nine loaves before noon and four after it; how many loaves is that over six days?"
ROWS = [
    {"text": f"Solve this. {QUESTION} Thirteen a day makes 78."},
    {"text": "Nothing to see in this row but a few words of no weight at all."},
    {"text": "A baker sells nine loaves before noon, the rest is another story of another town."},
]


def put(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.name


@pytest.fixture
def files(tmp_path):
    put(tmp_path / "rows.jsonl", ROWS)
    put(
        tmp_path / "bench.jsonl",
        [{"question": QUESTION, "answer": "#### 78"}, {"question": "Why?", "answer": "#### 0"}],
    )
    return tmp_path


def run(folder, *more, rows="rows.jsonl", bench="b=bench.jsonl"):
    return invoke("data", "decontaminate", rows, "--benchmark", bench, "--out", "out.jsonl", *more, cwd=folder)


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.said = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.said.append(data)


def test_hits_both_ways_and_the_decision(files):
    body = run(files, "--json").json
    assert (body["rows_in"], body["rows_out"], body["removed"]) == (3, 2, {"benchmark_overlap": 1})
    told = body["benchmarks"][0]
    assert (told["name"], told["items"], told["items_hit"], told["rows_hit"]) == ("b", 2, 1, 1)
    hit = told["compromised"][0]
    assert (hit["item"], hit["row"], hit["coverage"], hit["rows"]) == (0, 0, 1.0, 1)
    assert told["undetectable_items"][0]["reason"] == "too_short"
    decision = pq.read_table(files / body["decisions"]).to_pylist()[0]
    assert (decision["row"], decision["score"], decision["witness_id"]) == (0, 1.0, hit["record_id"])
    assert json.loads(decision["detail"])["benchmark"] == "b"
    assert [json.loads(line) for line in (files / "out.jsonl").read_text().splitlines()] == ROWS[1:]


def test_what_people_read(files):
    ran = run(files)
    assert ran.code == 0
    assert ran.stdout == ""
    for word in ("benchmark_overlap", "undetectable", "canary recall", "embedded", "1 too_short", "paraphrases"):
        assert word in ran.said


def test_the_canaries_are_never_written(files):
    run(files)
    for path in files.rglob("*"):
        if path.is_file() and path.suffix in (".jsonl", ".json", ".parquet"):
            assert b"filler" not in path.read_bytes()


def test_work_is_reused_and_another_benchmark_is_other_work(files):
    first = run(files, "--json").json
    again = run(files, "--json", "--report", "r.md")
    assert again.json["reused"]
    assert again.json["stage_id"] == first["stage_id"]
    assert "row 0 and b item 0" in (files / "r.md").read_text()
    put(files / "bench.jsonl", [{"question": "Quite another question of ten words, is it not, my friend?"}])
    other = run(files, "--json").json
    assert not other["reused"]
    assert other["stage_id"] != first["stage_id"]
    assert other["rows_out"] == 3


def test_hostile_rows_reach_no_terminal_and_no_browser(tmp_path):
    evil = "<script>alert(1)</script> \x1b[31mred\x1b[0m <img src=x onerror=alert(2)> ``` | <!-- &amp; \u202eevil ]]>"
    put(tmp_path / "rows.jsonl", [{"text": f"{evil} {QUESTION} {evil}"}, {"text": "fine"}])
    put(tmp_path / "bench.jsonl", [{"question": f"{QUESTION} {evil}", "answer": evil}])
    for form in ("html", "md", "json"):
        ran = run(tmp_path, "--report", f"r.{form}", bench="<b>\x1b[1m=bench.jsonl")
        assert ran.code == 0
        assert "\x1b" not in ran.stderr + ran.stdout
        assert "\x1b" not in (tmp_path / f"r.{form}").read_text()
    page = Page((tmp_path / "r.html").read_text())
    names = [tag for tag, _ in page.tags]
    assert not set(names) & {"img", "b\x1b", "link", "iframe", "object", "form"}
    assert names.count("script") == 1
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") or name == "src" for name in attrs)]
    assert all(attrs["href"].startswith("#") for _, attrs in page.tags if "href" in attrs)
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    said = "".join(page.said)
    assert "<script>alert(1)</script>" in said
    assert "U+001B[31mred" in said
    assert "\u202e" not in said
    markdown = (tmp_path / "r.md").read_text()
    fence = re.search(r"^(`{4,})$", markdown, re.MULTILINE)
    assert fence
    assert json.loads((tmp_path / "r.json").read_text())["examples"][0]["coverage"] > 0.5


def test_spans_of_the_report_are_what_matched(files):
    run(files, "--report", "r.json")
    example = json.loads((files / "r.json").read_text())["examples"][0]
    assert example["row_text"] == [
        ["Solve this. ", False],
        [QUESTION[:-1], True],
        ["? Thirteen a day makes 78.", False],
    ]
    assert example["item_text"] == [[QUESTION[:-1], True], ["?", False]]


def test_weakest_evidence_comes_first(files):
    put(files / "rows.jsonl", [*ROWS, {"text": " ".join(QUESTION.split()[:10])}])
    run(files, "--report", "r.json")
    examples = json.loads((files / "r.json").read_text())["examples"]
    assert [(one["row"], one["coverage"] < 1) for one in examples] == [(3, True), (0, False)]


def test_a_benchmark_that_is_the_training_file(files):
    ran = run(files, rows="bench.jsonl", bench="b=bench.jsonl")
    assert ran.code == 0
    assert "the benchmark b is a file of the input itself" in ran.said
    put(files / "same.jsonl", [{"question": QUESTION, "answer": "other"}])
    put(files / "one.jsonl", [{"text": QUESTION}])
    assert "is it the data itself?" in run(files, rows="one.jsonl", bench="b=same.jsonl").said


def test_a_benchmark_of_two_word_items(files):
    put(files / "bench.jsonl", [{"question": f"item {n}", "answer": "x"} for n in range(40)])
    put(files / "rows.jsonl", [{"text": "Item 7!"}, {"text": "an item 7 in a row"}])
    ran = run(files)
    assert ran.code == 0
    assert "40 too_short" in ran.said
    assert "the data is not checked against it" in ran.said
    assert (files / "out.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "a file is empty"),
        ("\n\n", "no items that could be read"),
        ('{"question": 3}\n', "no items that could be read"),
        ('{"unknown": "words"}\n', "no items that could be read"),
    ],
)
def test_empty_and_unreadable_benchmarks(files, content, words):
    (files / "bench.jsonl").write_text(content)
    ran = run(files)
    assert ran.code == 5
    assert words in ran.said
    assert not (files / "out.jsonl").exists()


def test_usage(files):
    cases = [
        ((), {"bench": "bench.jsonl"}, 2, "--benchmark takes NAME=PATH"),
        ((), {"bench": "b=missing.jsonl"}, 5, "missing.jsonl"),
        (("--report", "r.pdf"), {}, 2, "a report is .md, .json or .html"),
        (("--report", "r.md", "--dry-run"), {}, 2, "a dry run writes no report"),
        (("--report", "rows.jsonl"), {}, 2, "would replace the output, an input or a benchmark"),
        (("--report", "none/r.md"), {}, 5, "the folder of the report is not there"),
        (("--coverage", "0"), {}, 2, "coverage is a share"),
        (("--longest", "3"), {}, 2, "from 8 words on"),
        (("--out", "bench.jsonl"), {}, 2, "the output is a benchmark"),
    ]
    for more, given, code, words in cases:
        ran = run(files, *more, **given)
        assert (ran.code, words in ran.said) == (code, True), ran.said
    assert not (files / "out.jsonl").exists()
    put(files / "x.json", [{"question": QUESTION}])
    assert "would replace" in run(files, "--report", "x.json", bench="b=x.json").said


def test_an_added_benchmark_may_have_a_dot_in_its_name_and_is_named_once(files):
    catalog = Catalog.open(files / ".lpt")
    add("my.v1", [str(files / "bench.jsonl")], catalog)
    assert list(benchmark_paths(["my.v1"], files / ".lpt")) == ["my.v1"]
    with pytest.raises(UsageError, match="with a file and without one"):
        benchmark_paths(["my.v1", "my.v1=bench.jsonl"], files / ".lpt")


def test_a_dry_run_writes_nothing(files):
    before = sorted(path.name for path in files.iterdir())
    body = run(files, "--dry-run", "--json").json
    assert body["removed"] == {"benchmark_overlap": 1}
    assert [name for name in sorted(path.name for path in files.iterdir()) if name != ".lpt"] == before


def test_unread_rows_of_a_benchmark_are_listed(files):
    (files / "bench.jsonl").write_text(json.dumps({"question": QUESTION, "answer": "#### 78"}) + "\nnot json\n")
    body = run(files, "--json").json["benchmarks"][0]
    assert (body["items"], body["unread"]) == (1, 1)
    assert body["undetectable_items"] == [{"item": 1, "record_id": None, "reason": "unreadable: invalid_json"}]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data")
def test_gsm8k_train_against_test(tmp_path):
    """Four rows of train are siblings of three test questions: the same wording around other numbers."""
    ran = run(tmp_path, "--json", rows=SHARED / "gsm8k/train.jsonl", bench=f"gsm8k={SHARED / 'gsm8k/test.jsonl'}")
    told = ran.json["benchmarks"][0]
    assert [(one["item"], one["row"], one["rows"]) for one in told["compromised"]] == [
        (581, 406, 1),
        (632, 20, 1),
        (602, 1314, 2),
    ]
    assert (told["rows_with_any_8gram"], told["items_with_any_8gram"]) == (97, 82)  # as plain Python counts them
    assert told["any_13gram"] == {"items": 3, "rows": 4}
    assert all(one["found"] == one["planted"] == 1319 for one in told["canaries"].values())
