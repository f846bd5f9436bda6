"""What a report tells is what was recorded: counts, order, and what is missing."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from report_world import jsonl, rows

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import decide
from lpt_data.report.find import story_of
from lpt_data.report.manifest_page import manifest_page
from lpt_data.report.numbers import lengths_histogram, scores_histogram
from lpt_data.report.stage_page import stage_page
from lpt_data.report.stage_story import SURE, WEAKEST, stage_story, weakest
from lpt_data.report.write import rendered
from lpt_data.stage import run_stage
from manifests import decisions
from manifests.catalog import Catalog
from manifests.errors import BadInputError, UsageError


def text_of(pieces):
    return "".join(part for part, kind in pieces if kind != "gap")


# -- stages


def test_a_deduplication_tells_what_it_did(world):
    story = world.story("dedup")
    assert story.reasons == (
        ("remove", "exact_duplicate", 3),
        ("remove", "near_duplicate", 5),
        ("quarantine", "wrong_type", 1),
    )
    assert (story.flow.rows_in, story.flow.rows_out, story.flow.lost, story.flow.quarantined) == (50, 41, 8, 1)
    assert story.flow.balanced
    assert story.pairs_of == 8
    assert sum(story.lengths.series["kept"]) == 41
    assert sum(story.lengths.series["removed"]) == 8
    assert sum(map(sum, story.scores.series.values())) == 8
    (keeper,) = story.keepers  # of the first row and its four near copies
    assert keeper.row in {0, 43, 44, 45, 46}
    assert keeper.absorbed == 4
    assert rows()[keeper.row]["text"].startswith(keeper.excerpt)
    assert [aside.reason for aside in story.quarantine] == ["wrong_type"]
    assert story.notes == ()


def test_pairs_start_with_the_weakest_and_hold_the_rows_themselves(world):
    texts = [row["text"] for row in rows()]
    story = world.story("dedup")
    scores = [pair.score for pair in story.pairs]
    assert scores == sorted(scores)
    assert [pair.reason for pair in story.pairs][-3:] == ["exact_duplicate"] * 3
    for pair in story.pairs:
        if "gap" in {kind for _, kind in pair.left}:
            assert all(part in texts[pair.row] for part, kind in pair.left if kind != "gap")
        else:
            assert text_of(pair.left) == texts[pair.row]
            assert text_of(pair.right) in texts
        assert pair.why == f"lpt why {world.stages['dedup']}:{pair.row}"
    near = next(pair for pair in story.pairs if pair.row == 44)
    assert any("changed1" in part for part, kind in near.left if kind == "differs")
    hostile = next(pair for pair in story.pairs if pair.row in (47, 48))
    marked = [part for side in (hostile.left, hostile.right) for part, kind in side if kind == "differs"]
    assert sorted(marked) == ["one", "two"]


def test_the_same_rows_in_another_order_are_shown(world, tmp_path):
    """Which rows are shown follows content alone."""
    shuffled = [rows()[i] for i in np.random.default_rng(3).permutation(50)]
    catalog = Catalog.open(tmp_path / ".lpt")
    source = Dataset.open([str(jsonl(tmp_path / "s.jsonl", shuffled))])
    ran = run_stage("dedup", source, DedupConfig(threshold=0.7), decide, output=tmp_path / "o.jsonl", catalog=catalog)
    other = stage_story(catalog, ran.object_id, ran.body)
    assert [text_of(pair.left) for pair in other.pairs] == [text_of(pair.left) for pair in world.story("dedup").pairs]


def test_a_decontamination_shows_rows_beside_items(world):
    (pair,) = [one for one in world.story("decontaminate").pairs if one.row == 0]
    assert (pair.row, pair.reason, pair.right_name) == (0, "coverage", "item 0 of bakery")
    assert [part for part, kind in pair.right if kind == "matches"] == [
        "A baker sells nine loaves before noon and four after it; how many loaves is that over six days"
    ]


def test_what_cleaning_masked_is_not_shown(tmp_path):
    from lpt_data.clean import decide as clean
    from lpt_data.config import CleanConfig

    secret = "AKIA" + "Q3EGRIKX7PZT2NVW"
    data = [
        {"text": f"mail ann.smith@mapleworks.org now, row {n} of several" if n else f"key {secret} here"}
        for n in range(4)
    ]
    catalog = Catalog.open(tmp_path / ".lpt")
    source = Dataset.open([str(jsonl(tmp_path / "s.jsonl", data))])
    config = CleanConfig(preset="sft")
    ran = run_stage("clean", source, config, clean, output=tmp_path / "o.jsonl", catalog=catalog)
    assert ran.body["rewritten"] == {"email_address_masked": 3}
    assert len(ran.body["removed"]) == 1
    for name in ("html", "md", "json"):
        shown = rendered(stage_story(catalog, ran.object_id, ran.body), name).decode()
        assert "ann.smith" not in shown
        assert secret not in shown
        assert "email_address_masked" in shown.replace("\\", "")


def test_a_mixture_shows_asked_and_drawn(world):
    page = stage_page(world.story("mix"))
    assert "Mixture: asked and drawn" in page
    assert "trees" in page
    assert "75 %" in page


def test_files_that_changed_are_not_read_and_it_is_said(world, tmp_path):
    folder = tmp_path / "copy"
    source = jsonl(tmp_path / "c.jsonl", rows())
    catalog = Catalog.open(folder / ".lpt")
    ran = run_stage(
        "dedup", Dataset.open([str(source)]), DedupConfig(), decide, output=folder / "o.jsonl", catalog=catalog
    )
    source.write_text(source.read_text().replace("alder", "ALDER"))
    story = stage_story(catalog, ran.object_id, ran.body)
    assert story.notes == (f"{source} has changed since the stage read it; its rows are not shown",)
    assert all(pair.left == pair.right == () for pair in story.pairs)
    source.unlink()
    assert "is not there any more" in stage_story(catalog, ran.object_id, ran.body).notes[0]
    catalog.decisions_path(ran.body["stage_id"]).unlink()
    story = stage_story(catalog, ran.object_id, ran.body)
    assert story.pairs == ()
    assert any("decisions of a stage cannot be read" in note for note in story.notes)
    assert "Not on this page" in stage_page(story)


def test_a_million_decisions_fit_on_a_page(world, tmp_path):
    """The sample is the weakest of each reason, the counts stand beside it."""
    n = 1_000_000
    catalog = Catalog.open(tmp_path / ".lpt")
    rng = np.random.default_rng(5)
    scores = np.round(rng.uniform(0.8, 0.999, n), 6)
    ids = rng.integers(0, 256, (n, 32), np.uint8)
    table = decisions.table(
        {
            "row": np.arange(n),
            "record_id": ids,
            "action": pa.array(["remove"] * n),
            "reason": pa.array(["near_duplicate", "exact_duplicate"] * (n // 2)),
            "witness_row": pa.array(np.full(n, n)),
            "witness_id": ids[::-1].copy(),
            "score": np.where(np.arange(n) % 2, 1.0, scores),
        }
    )
    body = world.catalog.get(world.story("dedup").id) | {
        "stage_id": "f" * 16, "rows_in": n + 1, "rows_out": 1, "quarantined": 0, "quarantine": {}, "inputs": [],
        "removed": {"near_duplicate": n // 2, "exact_duplicate": n // 2},
    }  # fmt: skip
    decisions.write(catalog.decisions_path(body["stage_id"]), table)
    body["decisions"] = {
        "sha256": __import__("manifests.digests").digests.bytes_sha256(catalog.decisions_path("f" * 16))
    }
    story = stage_story(catalog, "0" * 64, body)
    assert (story.pairs_of, len(story.pairs)) == (n, WEAKEST + SURE)
    assert [pair.score for pair in story.pairs[:WEAKEST]] == sorted(scores[::2])[:WEAKEST]
    page = stage_page(story)
    assert f"{WEAKEST + SURE} of 1,000,000 decisions are shown" in page
    assert len(page.encode()) < 200_000


def test_rows_of_ten_megabytes_fit_on_a_page(tmp_path):
    base = "\u202e<b>\0" * 2_000_000
    data = [{"text": f"{base} one two three"}, {"text": f"{base} one two four"}]
    catalog = Catalog.open(tmp_path / ".lpt")
    source = Dataset.open([str(jsonl(tmp_path / "s.jsonl", data))])
    ran = run_stage("dedup", source, DedupConfig(threshold=0.5), decide, output=tmp_path / "o.jsonl", catalog=catalog)
    assert sum(ran.body["removed"].values()) == 1
    story = stage_story(catalog, ran.object_id, ran.body)
    assert len(stage_page(story).encode()) < 600_000
    assert "characters not looked at" in stage_page(story)


def test_the_weakest_of_a_reason_without_scores_are_the_smallest_ids():
    ids = np.arange(20 * 32, dtype=np.uint8).reshape(20, 32)[::-1].copy()
    table = decisions.table(
        {
            "row": np.arange(20),
            "record_id": ids,
            "action": pa.array(["remove"] * 20),
            "reason": pa.array(["short"] * 20),
        }
    )
    assert [one["row"] for one in weakest(table)] == sorted(range(20), key=lambda i: ids[i].tobytes())[:SURE]


# -- admissions


def test_an_admission_has_the_worst_first(world):
    story = world.story("bad")
    statuses = [one.check["status"] for one in story.checks]
    assert statuses == sorted(statuses, key=["fail", "warn", "skipped", "pass"].index)
    failed = {one.check["id"]: one for one in story.checks if one.check["status"] == "fail"}
    assert set(failed) >= {"characters.nul_share", "leakage.keys", "leakage.records"}
    assert failed["leakage.records"].rows_of == 1
    assert failed["leakage.records"].rows[0].excerpt
    assert [split.name for split in story.splits] == ["train", "test"]
    assert all(split.intact for split in story.splits)
    assert sum(story.lengths.series["train"]) == world.bad.body["splits"]["train"]["rows"]


def test_an_admission_shows_the_removals_of_all_stages_behind_it(world):
    story = world.story("trees")
    assert [flow.title for flow in story.flows] == ["dedup", "clean", "split", "admit train", "admit test"]
    assert all(flow.balanced for flow in story.flows)
    assert (len(story.pairs), story.pairs_of) == (8, 8)
    assert {pair.stage for pair in story.pairs} == {"dedup"}


def test_a_carried_folder_has_a_page_too_and_an_edited_one_says_so(world, tmp_path):
    carried = tmp_path / "carried"
    shutil.copytree(world.good.folder, carried)
    story = story_of(None, str(carried / "manifest.json"))
    assert story.pairs == ()
    assert any("catalog that made this is not here" in note for note in story.notes)
    assert story.splits[0].intact
    with open(carried / "train-00000.parquet", "ab") as file:
        file.write(b"x")
    (carried / "test-00000.parquet").unlink()
    story = story_of(None, str(carried / "manifest.json"))
    assert [split.intact for split in story.splits] == [False, None]
    assert story.lengths is None
    page = manifest_page(story)
    assert "NOT as admitted" in page
    assert "not here" in page


def test_versions_before_are_named(world, tmp_path):
    from lpt_data.admit import admit

    catalog = Catalog.open(tmp_path / ".lpt")
    for n in (3, 4):
        source = jsonl(tmp_path / f"{n}.jsonl", rows()[:n])
        admit("again", "text", {"train": [str(source)]}, catalog=catalog)
    assert [ref for ref, _, _ in story_of(catalog, "again").earlier] == ["again@1"]


def test_the_same_record_gives_the_same_bytes(world):
    for ref in (*world.stages, "bad", "trees"):
        for name in ("html", "md", "json"):
            assert rendered(world.story(ref), name) == rendered(world.story(ref), name)


def test_json_is_json(world):
    for ref in ("dedup", "bad"):
        assert json.loads(rendered(world.story(ref), "json"))["pairs"]


@pytest.mark.parametrize("ref", ["nosuch", "0123abcd", "trees@7", "no/such/manifest.json"])
def test_what_is_not_there(world, ref):
    with pytest.raises(BadInputError):
        story_of(world.catalog, ref)


def test_a_record_without_a_report(world):
    name = world.catalog.put({"type": "lpt.run/1", "run_id": "r1"})
    with pytest.raises(UsageError, match="no report of that kind"):
        story_of(world.catalog, name[:12])


# -- histograms, by hand


def test_lengths_between_powers_of_two():
    made = lengths_histogram("t", "u", {"a": np.array([1, 1, 2, 3, 1000]), "b": np.array([-1, 4])})
    assert made.edges == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    assert made.series == {"a": (2, 2, 0, 0, 0, 0, 0, 0, 0, 1), "b": (0, 0, 1, 0, 0, 0, 0, 0, 0, 0)}
    assert lengths_histogram("t", "u", {"a": np.array([-1])}) is None
    assert sum(lengths_histogram("t", "u", {"a": np.array([0, 0, 5])}).series["a"]) == 3


def test_scores_end_at_one():
    made = scores_histogram("t", "u", {"a": np.array([0.8, 0.81, 1.0, np.nan])})
    assert (made.edges[0], made.edges[-1], len(made.edges)) == (0.8, 1.0, 21)
    assert (made.series["a"][0], made.series["a"][1], made.series["a"][-1]) == (1, 1, 1)
    assert scores_histogram("t", "u", {"a": np.array([13.0])}) is None
    assert sum(scores_histogram("t", "u", {"a": np.ones(3)}).series["a"]) == 3


def test_rows_of_a_reference_are_found_by_their_id(tmp_path):
    """`--against`: the kept row is in no input of the stage."""
    from functools import partial

    texts = [row["text"] for row in rows()[:12]]
    reference = jsonl(tmp_path / "old.jsonl", [{"text": text} for text in texts[:5]])
    fresh = jsonl(tmp_path / "new.jsonl", [{"text": f"{text} anew"} for text in texts])
    against = Dataset.open([str(reference)])
    catalog = Catalog.open(tmp_path / ".lpt")
    ran = run_stage(
        "dedup", Dataset.open([str(fresh)]), DedupConfig(threshold=0.7), partial(decide, reference=against),
        output=tmp_path / "o.jsonl", catalog=catalog, references=against.files,
    )  # fmt: skip
    story = stage_story(catalog, ran.object_id, ran.body)
    assert len(story.pairs) == 5
    for pair in story.pairs:
        assert texts[pair.row].endswith(text_of(pair.right))
        assert len(text_of(pair.right)) > 100
        assert [part.strip() for part, kind in pair.left if kind == "differs"] == ["anew"]
        assert pair.right_name.startswith("kept row of the reference ")


def test_every_stage_has_its_share_of_the_weakest():
    """A stage whose scores are lower by nature does not push the others off the page."""
    from lpt_data.report.manifest_story import PAIRS, _a_share_of_each
    from lpt_data.report.story import Pair

    many = [Pair("a", "low", n, 0.1 + n / 1000, (), (), "", "") for n in range(100)]
    few = [Pair("b", "high", n, 0.9, (), (), "", "") for n in range(3)]
    none = [Pair("c", "unscored", n, None, (), (), "", "") for n in range(50)]
    shown = _a_share_of_each([*none, *few, *many])
    assert len(shown) == PAIRS
    assert [pair.row for pair in shown if pair.stage == "b"] == [0, 1, 2]
    assert sum(pair.stage == "c" for pair in shown) == PAIRS // 3
    assert [pair.row for pair in shown if pair.stage == "a"] == list(range(PAIRS - 3 - PAIRS // 3))


def test_sources_are_where_rows_come_in(world):
    flows = world.story("trees").flows
    assert flows[0].sources == (("corpus.jsonl", 50),)
    assert all(flow.sources == () for flow in flows[1:])
    assert [flow.sources for flow in world.story("bad").flows][-2:] == [(("leaky.jsonl", None),), ()]
