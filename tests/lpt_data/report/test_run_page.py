"""The page of a training run: its curves are its metrics, hostile names are text, a damaged record is named."""

from __future__ import annotations

import html
import json
import re
import shlex
from html.parser import HTMLParser

import duckdb
import pytest
from report_world import HOSTILE

from lpt_data.report.find import manifest_of, story_of
from lpt_data.report.parts import command, literal, sql
from lpt_data.report.run_evaluations import MOST
from lpt_data.report.run_story import CURVES, STRETCHES, run_story
from lpt_data.report.write import default_name, rendered, write
from manifests.catalog import Catalog
from manifests.errors import BadInputError, UsageError

BODY = {
    "type": "lpt.run/1", "run_id": "sft-1", "algorithm": "sft", "status": "done", "split": "chats@1:train", "steps": 4,
    "config": {"model": "tiny", "optim": {"learning_rate": 0.1}}, "model": {"name": "tiny", "digest": "d" * 64},
    "proof": {"verdict": "effective", "start": "a" * 64}, "seconds": 3.0, "failures": [], "tainted": False,
}  # fmt: skip
ROWS = [{"step": 0, "eval_loss": 4.0}] + [
    {"step": n, "loss": 5.0 - n, "eval_loss": 4.0 - n / 2, "grad_norm": "nan" if n == 2 else 1.0, "tokens": 9}
    for n in range(1, 5)
]


def folder(tmp_path, body=BODY, rows=ROWS):
    made = tmp_path / "run"
    made.mkdir()
    (made / "run.json").write_text(json.dumps(body))
    (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def test_dropped_rows_and_the_evaluation_split_are_named(tmp_path):
    data = {"rows": 7, "dropped": {"too_long": 2, "no_supervised_token": 1}}
    body = BODY | {"data": data, "eval": {"ref": "chats@1:<b>", "content_root": "c" * 64}}
    page = rendered(story_of(None, str(folder(tmp_path, body))), "html").decode()
    assert "3 rows of chats@1:train dropped before training: too_long 2, no_supervised_token 1." in page
    assert "Evaluated on chats@1:&lt;b&gt;." in page


def test_curves_are_the_metrics_and_what_is_measured_lies_beside_its_name(tmp_path):
    made = folder(tmp_path, rows=[*ROWS, {"step": 5, "loss": 0.5, "skipped": 1.0}])
    story = story_of(None, str(made))
    assert [curve.name for curve in story.curves] == ["loss", "grad_norm"]
    assert story.curves[0].lines == {
        "loss": ((1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0), (5, 0.5)),
        "eval_loss": ((0, 4.0), (1, 3.5), (2, 3.0), (3, 2.5), (4, 2.0)),
    }
    assert story.curves[1].lines["grad_norm"] == ((1, 1.0), (3, 1.0), (4, 1.0))  # what is not finite has no place
    assert story.skipped == (5,)
    assert story_of(None, str(made / "run.json")) == story
    page = rendered(story, "html").decode()
    assert page.count("<polyline") == 3
    assert page.count("dots") - page.count(".dots") == 3  # few measurements are marked as what they are
    axes = re.search(r'<div class="upright n">(.*?)</div>.*?<div class="axis n">(.*?)</div>', page, re.DOTALL)
    assert [re.findall(r"<span>(.*?)</span>", axis) for axis in axes.groups()] == [
        ["4", "2.25", "0.5"],
        ["0", "step", "5"],
    ]
    assert page.count('class="mark"') == 1  # the steps of the gradient norm end before it
    assert "chats@1:train" in page
    assert rendered(story, "md").decode().startswith("# sft-1\n")
    assert json.loads(rendered(story, "json"))["body"]["run_id"] == "sft-1"


def test_a_long_run_is_thinned_and_keeps_its_spikes(tmp_path):
    rows = [{"step": n, "loss": 100.0 if n == 7_777 else 1.0 + n / 1e6} for n in range(1, 10_001)]
    (curve,) = story_of(None, str(folder(tmp_path, rows=rows))).curves
    points = curve.lines["loss"]
    assert len(points) <= 2 * STRETCHES < curve.steps == 10_000
    assert (7_777, 100.0) in points
    assert points == tuple(sorted(points))
    assert (points[0][0], points[-1][0]) == (1, 10_000)


def test_hostile_text_is_text_wherever_it_stands(tmp_path):
    body = BODY | {
        "algorithm": HOSTILE, "split": HOSTILE, "failures": [HOSTILE], "status": "failed",
        "config": {HOSTILE: HOSTILE}, "model": {"name": HOSTILE}, "stopped_early": HOSTILE, "best": {"path": HOSTILE},
        "quarantined": [{"step": HOSTILE, "reason": HOSTILE, "suspect": HOSTILE, "loss": HOSTILE}], "tainted": True,
        "proof": {HOSTILE: HOSTILE}, "env": {"lpt": HOSTILE},
    }  # fmt: skip
    page = rendered(story_of(None, str(folder(tmp_path, body, [{"step": 1, HOSTILE: 1.0}]))), "html").decode()
    seen: list[tuple[str, dict]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: seen.append((tag, dict(attrs)))
    parser.feed(page)
    assert not {tag for tag, _ in seen} & {"img", "iframe", "object", "base", "link", "form"}
    assert [tag for tag, _ in seen].count("script") == 1  # ours
    for _, attributes in seen:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")]
        assert attributes.get("href", "#").startswith("#")
    assert "default-src &#39;none&#39;" in page


def test_what_cannot_be_shown_is_said(tmp_path):
    made = folder(tmp_path, rows=[{"step": 1, **{f"m{n}": n for n in range(CURVES + 2)}}])
    with open(made / "metrics.jsonl", "a") as file:
        file.write('[]\n{"step": "x"}\n{"step": 2, "m1"')  # somebody else's line, and a kill in one
    story = story_of(None, str(made))
    assert len(story.curves) == CURVES
    assert [note.split(" ", 1)[0] for note in story.notes] == ["3", "2", "evaluations:"]
    assert not run_story(Catalog.open(tmp_path / "catalog"), str(made)).evaluations
    (made / "metrics.jsonl").unlink()
    alone = story_of(None, str(made))
    assert "is not here" in alone.notes[0]
    assert b'id="curves"' not in rendered(alone, "html")


@pytest.mark.parametrize("run_id", ["x'\" ; touch pwned #", "x' or '1' = '1", "$(id)", "a\n", "", HOSTILE])
def test_an_id_that_could_end_up_in_a_shell_is_refused(tmp_path, run_id):
    with pytest.raises(BadInputError, match="the record of the run is damaged") as refused:
        run_story(None, str(folder(tmp_path, BODY | {"run_id": run_id})))
    assert refused.value.seen.endswith("run.json: .run_id")
    assert refused.value.next


@pytest.mark.parametrize("text", ["x'\" ; touch pwned #", "it's", "$(id)", "`id`", "a\\", "!!", "plain"])
def test_a_value_in_a_query_is_one_value_to_the_shell_and_to_the_database(text):
    shown = re.search(r"<code>(.*?)</code>", str(sql(f"select {literal(text)}")), re.S).group(1)
    lpt, word, query = shlex.split(html.unescape(shown))
    assert (lpt, word, duckdb.sql(query).fetchall()) == ("lpt", "sql", [(text,)])


@pytest.mark.parametrize(
    ("line", "copied"),
    [
        ("lpt data dedup 'a b.jsonl' --out x.jsonl", True), ("lpt sql \"select 'a' where n > 1\"", True),
        ("sha256sum -c SHA256SUMS", True), ("lpt why a ; touch pwned", False), ("lpt why $(id)", False),
        ("lpt why \"$(id)\"", False), ("lpt why `id`", False), ("curl example.org", False), ("lpt a > b", False),
        ("lpt why a\nid", False), ("lpt why 'a", False), ("lpt why x & id", False),
        ("lpt why a  # do: lpt b | sh", True),
    ],
)  # fmt: skip
def test_only_one_command_of_ours_has_a_button(line, copied):
    assert str(command(line)).count("<button") == copied


@pytest.mark.parametrize("line", ['{"step": 5, "loss": 1%s}', '{"step": 1%s, "loss": 1}', '{"step": -1, "loss": 1}'])
def test_a_number_of_400_digits_is_a_line_that_cannot_be_read(tmp_path, line):
    made = folder(tmp_path)
    with open(made / "metrics.jsonl", "a") as file:
        file.write((line.replace("%s", "0" * 400)) + "\n")
    story = story_of(None, str(made))
    assert [note for note in story.notes if "could not be read" in note][0].startswith("1 lines")
    assert story.curves[0].lines["loss"][-1] == (4, 1.0)
    rendered(story, "html")


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 10**400},
        {"steps": 10**400},
        {"tokens_per_second": float("inf")},
        {"run_id": 7},
        {"status": None},
        {"config": []},
        {"failures": "x"},
        {"steps": "4"},
    ],
)
def test_a_damaged_record_is_named(tmp_path, wrong):
    with pytest.raises(BadInputError, match="damaged"):
        story_of(None, str(folder(tmp_path, BODY | wrong)))


def test_a_record_that_is_no_record(tmp_path):
    made = folder(tmp_path)
    for text in ("{", "[]", '"x"'):
        (made / "run.json").write_text(text)
        with pytest.raises(BadInputError, match="record of the run"):
            story_of(None, str(made))


def test_a_run_is_found_by_its_id_and_has_no_format_of_data_sets(tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    made = folder(tmp_path)
    object_id = catalog.put(BODY | {"metrics_path": str(made / "metrics.jsonl")})
    story = story_of(catalog, "sft-1")
    assert story.id == object_id
    assert [curve.name for curve in story.curves] == ["loss", "grad_norm"]
    assert run_story(catalog, "sft-2") is None
    assert default_name(story, "html") == "sft-1.html"
    with pytest.raises(UsageError, match="a run is no data set, so it has no croissant"):
        rendered(story, "croissant")
    with pytest.raises(UsageError, match="a run is no data set"):
        manifest_of(catalog, "sft-1")
    with pytest.raises(UsageError, match="replace a file"):
        write(made / "metrics.jsonl", story, "html")


def measure(name, value, low=None, high=None, domain="", n=8):
    low, high = (value if bound is None else bound for bound in (low, high))
    return {"name": name, "value": value, "low": low, "high": high, "n": n, "domain": domain}


def evaluation(made_from, measures, **more):
    model = {"name": "runs/sft", "digest": "e" * 64, "made_from": made_from} | more.pop("model", {})
    body = {"type": "lpt.eval/1", "model": model, "split": "chats@1:test", "content_root": "c" * 64, "n": 8}
    return body | {"measures": measures, "items": [{"record_id": "r" * 64}], "created": "2026-02-03T04:05:06Z"} | more


MINE = {"run_id": "sft-1", "step": 4}
LOSSES = [measure("loss", 1.25, 1.0, 1.5), measure("perplexity", 3.49, 2.72, 4.48), measure("tokens", 90.0)]


def test_evaluations_of_the_checkpoints_of_a_run_are_on_its_page(tmp_path):
    """Told apart by the digest of what was measured: a checkpoint or an export of this run, not what only names it."""
    catalog, last = Catalog.open(tmp_path / "catalog"), "a" * 64
    made = folder(tmp_path, BODY | {"checkpoint": {"path": "x", "sha256": last}})
    of_last = {"checkpoint_sha256": last}
    base = catalog.put(evaluation(None, LOSSES, max_length=4096, model={"name": "./base"}))
    domains = [measure("loss", 0.75, 0.5, 1.0, "de", 3), measure("loss", 1.75, 1.5, 2.0, "en", 5)]
    older = [found | {"value": 9.0} for found in LOSSES + domains]
    catalog.put(evaluation(MINE, older, max_length=4096, model=of_last, dropped={"x": 2}))  # made again below
    mine = catalog.put(evaluation(MINE, LOSSES + domains, max_length=4096, model=of_last, dropped={"too_long": 2}))
    catalog.put(evaluation(MINE, LOSSES, max_length=4096, model=of_last | {"digest": "f" * 64}))
    early = MINE | {"step": 2}
    sampled = {"temperature": 0.7, "k": 8, "max_completion_length": 64, "reward": "record", "unscorable": 1}
    passes = [measure("accuracy", 0.25, 0.125, 0.5), measure("pass@8", 0.625, 0.375, 0.875)]
    early_model = {"checkpoint_sha256": "b" * 64, "digest": "1" * 64}
    catalog.put(evaluation(early, passes, split="sums@1:test", model=early_model, truncated_share=0.5, **sampled))
    catalog.put({"type": "lpt.export/1", "run_id": "sft-1", "digest": "2" * 64})
    catalog.put(evaluation(MINE, passes[:1], split="sums@1:test", model={"digest": "2" * 64}))
    catalog.put(evaluation(MINE, passes, model={"digest": "3" * 64}))  # an adapter of somebody else's over it
    catalog.put(evaluation({"run_id": "sft-2", "step": 4}, passes, model={"checkpoint_sha256": "4" * 64}))
    paired = {"name": "loss", "before": 1.5, "after": 1.25, "difference": -0.25, "low": -0.375, "high": -0.125, "n": 8}
    paired |= {"gained": 7, "lost": 1, "p_value": None}
    kl = [measure("kl", 0.0625, 0.03125, 0.125)]
    catalog.put({"type": "lpt.comparison/1", "before": base, "after": mine, "paired": [paired], "measures": kl})
    catalog.put({"type": "lpt.comparison/1", "before": base, "after": base, "paired": [paired], "measures": []})

    story = run_story(catalog, str(made))
    assert [(one.split, one.weights, one.how) for one in story.evaluations] == [
        ("sums@1:test", "export of step 4", "8 items"),
        (
            "sums@1:test",
            "step 2",
            "8 items, temperature 0.7, 8 samples each, at most 64 tokens of a completion, scored by record, "
            "50 % of the completions cut, 1 that could not be scored",
        ),
        ("chats@1:test", "step 4, the last", "8 items, at most 4,096 tokens of a row"),
        ("chats@1:test", "step 4, the last", "8 items, at most 4,096 tokens of a row, 2 rows left out"),
    ]
    assert list(story.notes) == [
        "older evaluations that were made again in the same way: 1; lpt sql shows them",
        "evaluations that name the run, but no digest of what it wrote: 1",
    ]
    (one,) = story.comparisons
    assert (one.split, one.before, one.after) == ("chats@1:test", "./base", "step 4, the last")
    page = rendered(story, "html").decode()
    table = re.search(r"Measures on chats@1:test.*?</table>", page[page.index("2 rows left out") :], re.S).group(0)
    cells = [re.findall(r"<t[hd][^>]*data-label[^>]*>(.*?)</t[hd]>", row) for row in table.split("<tr>")[2:]]
    assert cells == [
        ["loss", "all", "1.25", "1 to 1.5", "8"], ["perplexity", "all", "3.49", "2.72 to 4.48", "8"],
        ["tokens", "all", "90", "", "8"], ["loss", "de", "0.75", "0.5 to 1", "3"],
        ["loss", "en", "1.75", "1.5 to 2", "5"],
    ]  # fmt: skip
    against = page[page.index("step 4, the last against ./base") :]
    assert "-0.375 to -0.125" in against
    assert "0.03125 to 0.125" in against
    assert "from v_measure where run_id = 'sft-1'" in page
    lines = rendered(story, "md").decode()
    assert "| pass@8 | all | 0.625 | 0.375 to 0.875 | 8 |" in lines
    assert "| loss | 1.5 | 1.25 | -0.25 | -0.375 to -0.125 | 7 | 1 | – | 8 |" in lines
    assert json.loads(rendered(story, "json"))["evaluations"][0]["measures"] == passes[:1]


def test_evaluations_of_other_draws_and_measures_stand_beside_each_other(tmp_path):
    catalog, made = Catalog.open(tmp_path / "catalog"), folder(tmp_path)
    of_last = {"checkpoint_sha256": "a" * 64}
    domains = [measure("loss", 0.75, domain="de"), measure("loss", 1.75, domain="en")]
    for seed, value in ((0, 9.0), (0, 1.0), (1, 2.0)):  # the first is made again
        catalog.put(evaluation(MINE, [measure("loss", value)], n=7, rows=8, seed=seed, model=of_last))
    catalog.put(evaluation(MINE, [measure("loss", 3.0), *domains], n=7, rows=8, seed=1, model=of_last))
    catalog.put(evaluation(MINE, [measure("loss", 4.0)], seed=1, model=of_last))
    story = run_story(catalog, str(made))
    assert [(one.measures[0]["value"], one.how) for one in story.evaluations] == [
        (4.0, "8 items, seed 1"),
        (3.0, "7 items, 8 rows drawn by seed 1"),
        (2.0, "7 items, 8 rows drawn by seed 1"),
        (1.0, "7 items, 8 rows drawn by seed 0"),
    ]
    assert story.notes == ("older evaluations that were made again in the same way: 1; lpt sql shows them",)


def test_a_damaged_export_is_named_and_the_others_count(tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    for digest in ([], "2" * 64, {"x": 1}):
        catalog.put({"type": "lpt.export/1", "run_id": "sft-1", "digest": digest})
    catalog.put(evaluation(MINE, LOSSES, model={"digest": "2" * 64}))
    story = run_story(catalog, str(folder(tmp_path)))
    assert [one.weights for one in story.evaluations] == ["export of step 4"]
    assert [note.endswith(": the record is damaged (.digest)") for note in story.notes] == [True, True]


def test_hostile_evaluations_are_text_and_damaged_ones_are_named(tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    bad = [measure(HOSTILE, 1.0, domain=HOSTILE)]
    mine = catalog.put(
        evaluation(MINE, bad, split=HOSTILE, reward=HOSTILE, created=HOSTILE, model={"checkpoint_sha256": HOSTILE})
    )
    other = catalog.put(evaluation(None, bad, model={"name": HOSTILE}))
    paired = [{"name": HOSTILE, "before": 1, "after": 2, "p_value": 0.5}]
    both = {"type": "lpt.comparison/1", "before": other, "after": mine, "paired": paired, "measures": bad}
    catalog.put(both)
    for wrong in (
        {"model": {"name": "m", "digest": 7}},
        {"measures": [{"name": 1}]},
        {"n": "8"},
        {"dropped": {"x": "y"}},
    ):
        catalog.put(evaluation(MINE, []) | wrong)
    catalog.put(both | {"paired": [{"name": "x", "n": 1.5}]})
    story = run_story(catalog, str(folder(tmp_path)))
    assert len(story.evaluations) == len(story.comparisons) == 1
    assert sum("the record is damaged (" in note for note in story.notes) == 5
    page, lines = rendered(story, "html").decode(), rendered(story, "md").decode()
    assert page.count("weights against") + page.count("step 4 against") == 1
    for mark in ("<script>window", "<img", "<iframe", "<svg onload", "\x1b"):
        assert mark not in page
    assert "<" not in re.sub(r"\\.|`[^`]*`", "", lines)
    assert "\x00" not in lines


def test_many_evaluations_are_counted(tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    for n in range(MOST + 3):
        catalog.put(evaluation(MINE, LOSSES, split=f"chats@{n + 1}:test", model={"checkpoint_sha256": "b" * 64}))
    story = run_story(catalog, str(folder(tmp_path)))
    assert [one.split for one in story.evaluations][:2] == [f"chats@{MOST + 3}:test", f"chats@{MOST + 2}:test"]
    assert (len(story.evaluations), story.notes[-1]) == (MOST, "earlier evaluations: 3; lpt sql shows them")
