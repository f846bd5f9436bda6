"""The data card, Croissant and the in-toto statement: what other programs read of an admission."""

import hashlib
import json
from dataclasses import replace

import pytest
import yaml
from report_world import HOSTILE

from lpt_data.report.attestation import statement
from lpt_data.report.card import size_category
from lpt_data.report.croissant import croissant
from lpt_data.report.write import default_name, rendered, write
from manifests.errors import BadInputError, UsageError


def card_of(story):
    text = rendered(story, "card").decode()
    _, head, rest = text.split("---\n", 2)
    return yaml.safe_load(head), rest


@pytest.mark.parametrize(
    ("rows", "name"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (99_999, "10K<n<100K"), (5_000_000, "1M<n<10M"), (10**13, "n>1T")],
)
def test_size_categories_are_those_of_the_hub(rows, name):
    assert size_category(rows) == name


def test_the_card_has_the_header_of_a_data_set_and_says_what_is_unknown(world):
    head, text = card_of(world.story("trees"))
    assert head["license"] == "unknown"
    assert head["size_categories"] == ["n<1K"]
    assert head["configs"][0]["data_files"] == [
        {"split": "train", "path": ["train-00000.parquet"]},
        {"split": "test", "path": ["test-00000.parquet"]},
    ]
    assert "verdict-accept" in head["tags"]
    for known in (
        "# trees@1",
        "## Where the rows went",
        "| dedup | 50 | 41 | exact\\_duplicate 3, near\\_duplicate 5 | 1 | 0 |",
    ):
        assert known in text
    assert "- Licence: no source states one here" in text
    assert "No decontamination stage is on record." in text
    for entry in world.good.body["splits"].values():
        assert entry["content_root"] in text


def test_the_card_of_rejected_data_names_the_verdict_first(world):
    _, text = card_of(world.story("bad"))
    assert text.index("**Rejected.**") < text.index("## Splits")
    assert "| failed | `leakage.keys` | 1 | \\<= 0 |" in text


def test_the_files_of_the_card_load_as_the_splits_they_are(world):
    """What the hub does with the header: read each path as Parquet."""
    import pyarrow.parquet as pq

    head, _ = card_of(world.story("trees"))
    for entry in head["configs"][0]["data_files"]:
        rows = sum(pq.read_metadata(world.good.folder / path).num_rows for path in entry["path"])
        assert rows == world.good.body["splits"][entry["split"]]["rows"]


def test_markdown_of_a_stage_shows_rows_that_cannot_leave_their_block(world):
    text = rendered(world.story("dedup"), "md").decode()
    assert "# dedup" in text
    assert "⟦one⟧" in text
    assert "⟦two⟧" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    outside = "".join(part for number, part in enumerate(text.split("\n```")) if number % 2 == 0)
    assert "<script>" not in outside


def test_croissant_describes_files_and_splits(world):
    found = croissant(world.story("trees"))
    assert found["@type"] == "sc:Dataset"
    assert found["conformsTo"][0] == "http://mlcommons.org/croissant/1.1"
    assert found["version"] == "1.0.0"
    files = {entry["@id"]: entry for entry in found["distribution"]}
    assert set(files) == {"train-00000.parquet", "test-00000.parquet"}
    for path, entry in files.items():
        data = (world.good.folder / path).read_bytes()
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["contentSize"] == f"{len(data)} B"
    splits, train, test = found["recordSet"]
    assert splits["dataType"] == "cr:Split"
    assert splits["data"] == [{"splits/name": "train"}, {"splits/name": "test"}]
    assert [field["name"] for field in train["field"]] == ["record_id", "text"]
    for records in (train, test):
        assert records["key"] == {"@id": f"{records['@id']}/record_id"}
        for field in records["field"]:
            assert field["source"]["fileObject"]["@id"] in files
            assert field["@id"].startswith(f"{records['@id']}/")
    assert found["rai:dataPreprocessingProtocol"][0].startswith("dedup: 50 rows in, 8 removed")
    json.dumps(found, allow_nan=False)


def test_croissant_reads_messages_member_by_member(world):
    from lpt_data.report.story import ColumnStory

    story = world.story("trees")
    columns = (
        ColumnStory("record_id", "string"),
        ColumnStory("messages", "list<element: struct<role: string, …>>", (("role", "string"), ("content", "string"))),
        ColumnStory("nums", "list<element: int64>"),
        ColumnStory("score", "double"),
        ColumnStory("ok", "bool"),
    )
    story = replace(story, splits=tuple(replace(split, columns=columns) for split in story.splits))
    fields = {field["name"]: field for field in croissant(story)["recordSet"][1]["field"]}
    assert fields["messages"]["isArray"]
    assert [inner["source"]["transform"] for inner in fields["messages"]["subField"]] == [
        {"jsonPath": "role"},
        {"jsonPath": "content"},
    ]
    assert (fields["nums"]["dataType"], fields["nums"]["arrayShape"]) == ("sc:Integer", "-1")
    assert (fields["score"]["dataType"], fields["ok"]["dataType"]) == ("sc:Float", "sc:Boolean")


def test_the_statement_names_every_file_by_its_digest(world):
    found = statement(world.story("bad"))
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in found["subject"]}
    for path in world.bad.folder.iterdir():
        if path.name != "SHA256SUMS":
            assert subjects.pop(path.name) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert subjects == {}
    predicate = found["predicate"]
    assert predicate["result"] == "FAILED"
    assert "leakage.keys" in predicate["failedTests"]
    assert set(predicate["passedTests"]).isdisjoint(predicate["lpt"]["skippedTests"])
    assert statement(world.story("trees"))["predicate"]["result"] == "PASSED"


def test_a_hostile_name_of_a_reason_stays_in_its_cell(world):
    story = world.story("dedup")
    text = rendered(replace(story, reasons=(("remove", f"{HOSTILE} | a\n# b", 1),)), "md").decode()
    (line,) = [line for line in text.splitlines() if "nul \\| a" in line]
    assert "\\<script\\>" in line
    assert "<script>" not in line.replace("\\<script\\>", "")


@pytest.mark.parametrize("name", ["croissant", "in-toto"])
def test_a_stage_is_no_data_set(world, name):
    with pytest.raises(UsageError, match="no data set"):
        rendered(world.story("dedup"), name)


def test_a_report_never_replaces_data(world, tmp_path):
    story = world.story("trees")
    for path in (
        world.good.folder / "manifest.json",
        world.good.folder / "train-00000.parquet",
        world.folder / "parts/train.jsonl",
    ):
        before = path.read_bytes()
        with pytest.raises(UsageError, match="replace a file of the data"):
            write(path, story, "html")
        assert path.read_bytes() == before
    with pytest.raises(UsageError):
        write(world.folder / "corpus.jsonl", world.story("dedup"), "html")
    with pytest.raises(BadInputError, match="folder of the report"):
        write(tmp_path / "no" / "r.html", story, "html")
    with pytest.raises(UsageError, match="no such format"):
        write(tmp_path / "r.pdf", story, "pdf")


def test_default_names(world):
    assert default_name(world.story("trees"), "html") == "trees@1.html"
    assert default_name(world.story("dedup"), "md") == f"dedup-{world.stages['dedup']}.md"
    assert default_name(world.story("trees"), "croissant") == "trees@1.croissant.json"
