"""Rewritten documents through formats and columns: new ids, the rest untouched, nothing lost, `why` follows."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from boilerplate_cases import Ran, rows

from lpt_data.boilerplate import decide
from lpt_data.config import BoilerplateConfig
from lpt_data.dataset import Dataset
from lpt_data.progress import silent
from lpt_data.stage import run_stage
from manifests.canon import record_id
from manifests.catalog import Catalog
from manifests.digests import content_root
from manifests.why import why

SHARED = Path(__file__).parents[4] / "shared" / "data"
FOOT = "This site uses cookies to make your visit better."
TWO = BoilerplateConfig(least_documents=2)


def run(source, output, config=TWO, **options):
    catalog = Catalog.open(output.parent / ".lpt")
    data = Dataset.open([str(source)], **options)
    return run_stage("boilerplate", data, config, decide, output=output, catalog=catalog), catalog


def root(texts):
    return content_root(np.array([list(record_id("text", {"text": text})) for text in texts], np.uint8)).root


def test_other_columns_stay_and_a_record_id_follows(tmp_path):
    given = [
        {"n": 1.5, "text": f"mine\n{FOOT}", "record_id": "old"},
        {"text": f"{FOOT}\nthe longer one of the two", "record_id": "kept"},
        {"text": "neither"},
    ]
    ran = Ran(tmp_path, given, least_documents=2)
    new = record_id("text", {"text": "mine"}).hex()
    assert ran.rows == [{"n": 1.5, "text": "mine", "record_id": new}, *given[1:]]
    assert ran.report["content_root"] == root(ran.texts)


def test_parquet_and_another_text_column(tmp_path):
    table = pa.table(
        {"body": [f"mine\r\n{FOOT}", f"{FOOT}\nthe longer one of the two"], "n": pa.array([1, 2], pa.int8())}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    report, catalog = run(tmp_path / "in.parquet", tmp_path / "out.parquet", text_column="body")
    out = pq.read_table(tmp_path / "out.parquet")
    assert out.schema.equals(table.schema)
    assert out["body"].to_pylist() == ["mine", f"{FOOT}\nthe longer one of the two"]
    assert report.body["content_root"] == root(out["body"].to_pylist())
    again, _ = run(tmp_path / "in.parquet", tmp_path / "out.parquet", text_column="body")
    assert again.reused
    answer = why(catalog, f"{report.body['stage_id']}:0")
    assert "repeated_line" in str(answer)
    assert answer.survivor == record_id("text", {"text": "mine"}).hex()


def test_rows_that_cannot_be_read_are_put_aside(tmp_path):
    lines = [
        json.dumps({"text": f"mine\n{FOOT}"}),
        '{"text": "cut',
        '{"text": "   "}',
        '{"text": "\\ud800 half a pair"}',
        '{"text": 7}',
        json.dumps({"text": f"{FOOT}\nthe longer one of the two"}),
    ]
    (tmp_path / "in.jsonl").write_text("\r\n".join(lines) + "\r\n")
    report, _ = run(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert report.body["quarantined"] == 4
    assert report.body["rows_out"] == 2
    assert report.body["rewritten"] == {"repeated_line": 1}
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0]) == {"text": "mine"}


def test_what_is_private_is_not_shown(tmp_path):
    line = "Write to ann.lee@uni.org with all of your questions"
    ran = Ran(tmp_path, rows(*(f"{n}\n{line}" for n in range(7))))
    (shown,) = ran.report["most_repeated"]
    assert "ann.lee" not in json.dumps(ran.report)
    assert shown["documents"] == 7


@pytest.mark.parametrize("method", ["lines", "substring"])
def test_a_row_as_long_as_rows_may_be_and_one_of_a_hundred_megabytes(tmp_path, method):
    chosen = random.Random(0)
    block = "\n".join(" ".join(chosen.choices(["alpha", "beta", "gamma", "delta", "rho"], k=30)) for _ in range(600))
    plain = "Another line of some ordinary words here.\n" * 8
    size = 50_000_000 // (len(block) + 1)
    with (tmp_path / "in.jsonl").open("w") as out:
        out.write('{"text": "')
        out.writelines(block.replace("\n", "\\n") + "\\n" for _ in range(size))
        out.write('"}\n' + json.dumps({"text": f"{plain}{block[:4000]}"}) + "\n")
        out.write('{"text": "' + 100_000_000 * "x" + '"}\n')
    data = Dataset.open([str(tmp_path / "in.jsonl")])
    result = decide(data, BoilerplateConfig(method, least_documents=2), silent)
    assert [(found.row, found.reason) for found in data.quarantined()] == [(2, "line_too_long")]
    (told,) = result.decisions.to_pylist()
    assert (told["row"], told["action"], told["witness_row"]) == (1, "rewrite", 0)
    left = json.loads(result.rewritten["columns"][0].as_py())["text"]
    assert left.startswith(plain.rstrip())
    assert len(left) < len(plain) + 200


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here")
@pytest.mark.parametrize("method", ["lines", "paragraphs", "substring"])
def test_no_language_loses_its_short_pages(tmp_path, method):
    """Pages of a command reference in ten languages: what goes is their common sentences, not the pages."""
    pages = [json.loads(line) for line in (SHARED / "tldr" / "tldr.jsonl").open(encoding="utf-8")]
    data = Dataset.open([str(SHARED / "tldr" / "tldr.jsonl")])
    result = decide(data, BoilerplateConfig(method, length=100), silent)
    gone = set(result.decisions.filter(pa.compute.not_equal(result.decisions["action"], "rewrite"))["row"].to_pylist())
    new = {row["row"]: json.loads(row["columns"])["text"] for row in result.rewritten.to_pylist()}
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for number, page in enumerate(pages):
        before[page["lang"]] = before.get(page["lang"], 0) + len(page["text"])
        after[page["lang"]] = after.get(page["lang"], 0) + (0 if number in gone else len(new.get(number, page["text"])))
    assert not gone
    assert len(before) == 10
    for language, chars in before.items():
        assert after[language] > 0.7 * chars, language
