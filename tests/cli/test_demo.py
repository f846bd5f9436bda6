"""The demo's chapters without its training, on less of the same data, and what it says when nothing was gained."""

from __future__ import annotations

import pytest

from cli import demo
from lpt_train.answers import Evaluation, ItemScore
from manifests.catalog import Catalog
from manifests.errors import RefusedError
from manifests.sql import query


@pytest.fixture
def journey(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "PROBLEMS", 600)
    monkeypatch.setattr(demo, "HELD_OUT", 60)
    folder = demo._emptied(tmp_path / "demo")
    return demo.Journey(folder, Catalog.open(folder / ".lpt"), seed=0)


def test_the_chapters_before_the_training_show_what_they_say(journey, capsys):
    from lpt_train.admitted import load_split

    demo.deduplicate(journey, max_bytes=300_000)
    demo.plant_and_catch(journey)
    demo.admit_both(journey)
    demo.ask(journey)
    demo.write_pages(journey)
    assert "Rejected" in (journey.folder / "reports" / "leaky@1.html").read_text()
    assert len(list((journey.folder / "reports").iterdir())) == 3
    said = " ".join("".join(capsys.readouterr()).split())
    assert "three removals with the kept row they were compared with" in said
    assert "150 exact copies" in said
    assert "and the trainer: leaky@1 was rejected" in said
    rows = query(journey.catalog, "SELECT name, verdict FROM v_manifest ORDER BY name").rows
    assert dict(rows)["leaky"] == "reject"
    assert {dict(rows)[name] for name in ("format", "sums")} <= {"accept", "tune"}
    removed = query(journey.catalog, "SELECT removed FROM v_stage WHERE stage = 'dedup' ORDER BY created, rows_in").rows
    copies = [count for (count,) in removed]
    assert 150 in copies  # every planted copy, and no other row
    for name, contract in (("format", "sft"), ("sums", "rlvr")):
        split = load_split(f"{name}:test", catalog=journey.catalog)
        assert (split.contract, len(split) >= 60) == (contract, True)
    with pytest.raises(RefusedError):
        load_split("leaky:train", catalog=journey.catalog)


def evaluation(scores):
    """An evaluation with these scores of problems 0, 1, …"""
    items = tuple(ItemScore(str(n), float(score), "") for n, score in enumerate(scores))
    return Evaluation(items, sum(scores) / len(scores), 0.0, 1.0, len(scores), 0, 0.0, {})


NONE, HALF, ALL = [0] * 100, [0, 1] * 50, [1] * 100
ONE = [1] + [0] * 99  # a difference of 0.01, for which McNemar's p is 1


@pytest.mark.parametrize(
    ("sampled", "greedy", "gained"),
    [
        ((NONE, HALF), (NONE, HALF), True),
        ((NONE, HALF), (ALL, NONE), True),  # greedy decides nothing
        ((NONE, ONE), (NONE, ALL), False),  # better, and by no more than chance
        ((HALF, HALF), (NONE, ALL), False),  # no difference
        ((HALF, NONE), (NONE, ALL), False),
    ],
)
def test_a_gain_is_one_when_it_is_larger_than_chance(sampled, greedy, gained, capsys):
    before, after = ({"sampled": evaluation(sampled[i]), "greedy": evaluation(greedy[i])} for i in (0, 1))
    assert demo.show_gain("grpo", before, after) is gained
    said = " ".join(capsys.readouterr().err.split())
    assert ("grpo shows no gain at temperature 1" in said) is not gained


@pytest.mark.parametrize(("gained", "code"), [(True, 0), (False, 1)])
def test_a_demo_without_a_gain_exits_1(tmp_path, monkeypatch, gained, code):
    from command_line import invoke

    for name in ("deduplicate", "plant_and_catch", "admit_both", "ask", "write_pages"):
        monkeypatch.setattr(demo, name, lambda journey: None)
    monkeypatch.setattr(demo, "train_and_measure", lambda journey: gained)
    outcome = invoke("demo", "--dir", "d", cwd=tmp_path)
    assert outcome.code == code
    assert ("done in" in outcome.said) is gained
    assert ("does not show what it says" in outcome.said) is not gained


def test_a_demo_that_is_stopped_in_its_training_measures_nothing_and_says_so(journey, monkeypatch):
    from types import SimpleNamespace

    import typer

    told = {"algorithm": "sft", "metrics_path": "runs/sft/metrics.jsonl", "steps": 3}
    stopped = SimpleNamespace(body={"status": "stopped", "stopped_by": "SIGTERM", **told})
    monkeypatch.setattr("lpt_train.tiny.make_tiny", lambda folder, **options: None)
    monkeypatch.setattr("lpt_train.admitted.load_split", lambda ref, catalog: None)
    monkeypatch.setattr("lpt_train.sft.train", lambda *given, **named: stopped)
    measured = []
    monkeypatch.setattr(demo, "measure", lambda journey, model: measured.append(model))
    with pytest.raises(typer.Exit) as end:
        demo.train_and_measure(journey)
    assert end.value.exit_code == 143
    assert len(measured) == 1  # the model before the training
