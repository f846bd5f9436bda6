"""Deduplication and decontamination in one read give what the one gives after the other."""

import json
from pathlib import Path

import pytest

from lpt_data.config import DedupConfig
from lpt_data.report.story import contamination_of
from lpt_data.works import Source, decontaminate, dedup
from manifests import decisions
from manifests.catalog import Catalog
from manifests.errors import UsageError

ITEMS = [
    {
        "question": f"A gardener plants {n} rows of beans and twice as many rows of peas along the north wall of house "
        f"number {n * 3}; how many rows are there in all when the frost has taken {n % 4} of them?",
        "answer": f"{3 * n - n % 4}",
    }
    for n in range(3, 40)
]


def write(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def files(tmp_path):
    """Rows that repeat each other, rows that repeat items, rows that do both, and rows that do neither."""
    said = [
        f"Note {n}: the {n * 13}th letter of the archive speaks of ships, of salt and of the price of rope."
        for n in range(60)
    ]
    asked = [item["question"] for item in ITEMS[:12]]
    rows = said + said[:10] + asked + [f"{text} Answer it at once, please." for text in asked[:5]] + asked[:3]
    write(tmp_path / "rows.jsonl", [{"text": text} for text in rows])
    write(tmp_path / "bench.jsonl", ITEMS)
    return tmp_path


@pytest.mark.parametrize(("key", "workers"), [("text", 1), ("text", 2), ("row", 1)])
def test_one_read_or_two_stages(files, key, workers):
    catalog = Catalog.open(files / ".lpt")
    source, bench = Source((str(files / "rows.jsonl"),)), {"b": [str(files / "bench.jsonl")]}
    config = DedupConfig(key=key, workers=workers, threshold=0.7)
    both = dedup(source, config, files / "both.jsonl", benchmarks=bench).run(catalog)
    first = dedup(source, config, files / "first.jsonl").run(catalog)
    second, _ = decontaminate(Source((str(files / "first.jsonl"),)), bench, files / "second.jsonl", workers=workers)
    then = second.run(catalog)
    assert (files / "both.jsonl").read_bytes() == (files / "second.jsonl").read_bytes()
    assert both.body["content_root"] == then.body["content_root"]
    assert then.body["removed"] == {"benchmark_overlap": 12}
    assert both.body["removed"] == {**first.body["removed"], **then.body["removed"]}
    told, alone = both.extra["decontamination"]["benchmarks"][0], then.extra["benchmarks"][0]
    for name in ("items_hit", "rows_hit", "any_13gram", "canaries", "undetectable"):
        assert told[name] == alone[name]
    assert told["any_50_characters"] is None
    mine = [name for name in first.extra if name not in ("alarms", "memory")]  # what the machine had is no result
    assert {name: both.extra[name] for name in mine} == {name: first.extra[name] for name in mine}
    rows = decisions.read(catalog.decisions_path(both.body["stage_id"])).to_pylist()
    assert len({row["row"] for row in rows}) == len(rows)  # one decision a row


def test_benchmarks_are_part_of_what_was_done(files):
    source = Source((str(files / "rows.jsonl"),))
    catalog = Catalog.open(files / ".lpt")
    config = DedupConfig(workers=1)
    bench = {"b": [str(files / "bench.jsonl")]}
    before = dedup(source, config, files / "out.jsonl", benchmarks=bench).run(catalog)
    assert dedup(source, config, files / "out.jsonl", benchmarks=bench).run(catalog).reused
    write(files / "bench.jsonl", ITEMS[:5])
    after = dedup(source, config, files / "out.jsonl", benchmarks=bench).run(catalog)
    assert before.body["stage_id"] != after.body["stage_id"]
    assert not after.reused


def test_the_output_is_no_benchmark(files):
    bench = str(files / "bench.jsonl")
    with pytest.raises(UsageError, match="the output is a benchmark"):
        dedup(Source((str(files / "rows.jsonl"),)), DedupConfig(), files / "bench.jsonl", benchmarks={"b": [bench]})


def test_a_report_tells_of_it_as_of_decontamination(files):
    catalog = Catalog.open(files / ".lpt")
    source, bench = Source((str(files / "rows.jsonl"),)), {"b": [str(files / "bench.jsonl")]}
    body = dedup(source, DedupConfig(workers=1), files / "both.jsonl", benchmarks=bench).run(catalog).body
    found = contamination_of(body)
    assert found["extra"]["benchmarks"][0]["rows_hit"] == body["removed"]["benchmark_overlap"]
    plain = dedup(source, DedupConfig(workers=1), files / "plain.jsonl").run(catalog).body
    assert contamination_of(plain) is None
