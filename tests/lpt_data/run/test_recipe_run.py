"""A recipe run: what stands is reused, what changed and what follows is not, and a kill changes no byte."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from recipe_cases import CHATS, LINE, TOOLS, files, folder, run_in

from lpt_data.run import load_recipe, planned
from manifests.catalog import Catalog
from manifests.errors import RefusedError, UsageError


@pytest.fixture
def place(tmp_path):
    return folder(tmp_path)


def stands(place, **more):
    found = planned(load_recipe(str(place / "recipe.yaml")), Catalog.open(place / ".lpt"), TOOLS, **more)
    return {spec.name: (stands.reused, stands.why) for spec, stands in found}


def test_rows_flow_through_the_stages_and_none_is_lost(place):
    report = run_in(place)
    body = report.to_json()
    assert [stage["as"] for stage in body["stages"]] == ["clean", "dedup", "split", "admit"]
    clean, dedup, split, admit = body["stages"]
    assert clean["rows_in"] == CHATS + 3
    assert dedup["rows_in"] == CHATS + 3
    assert dedup["removed"] == {"normalized_duplicate": 3}
    assert split["rows_out"] == CHATS
    assert admit["splits"]["train"]["rows"] + admit["splits"]["test"]["rows"] == CHATS
    assert admit["name"] == "chats"
    assert body["rows_in"] == CHATS + 3
    assert body["rows_out"] == CHATS
    assert body["removed"] == {"normalized_duplicate": 3}
    assert body["rows_in"] + body["repeated"] == body["rows_out"] + sum(body["removed"].values()) + body["quarantined"]
    assert body["output"] == split["output"]
    assert report.exit_code == admit["exit_code"]
    assert len(admit["stages"]) == 3  # the admission knows all the stages behind it


def test_what_stands_is_reused_and_a_changed_option_redoes_only_what_follows(place):
    before = files(place) if run_in(place) else {}
    again = run_in(place).to_json()
    assert again["reused"] == ["clean", "dedup", "split"]
    assert again["stages"][3]["reused"] is True  # the admission, too, which said the same
    assert files(place) == before
    recipe = place / "recipe.yaml"
    recipe.write_text(LINE.replace("test: 5", "test: 6"))
    assert stands(place)["dedup"] == (True, "")
    assert stands(place)["split"] == (False, "test was 5, is 6")
    assert run_in(place).to_json()["reused"] == ["clean", "dedup"]
    recipe.write_text(LINE.replace("unicode,space", "unicode").replace("test: 5", "test: 6"))
    told = stands(place)
    assert told["clean"][1].startswith("rules was")
    assert told["dedup"] == (False, "it reads clean, which is done anew")
    assert run_in(place).to_json()["reused"] == []


def test_a_stage_whose_input_came_out_the_same_stands(place):
    """Cached by content: another option that changes no row costs one stage."""
    run_in(place)
    (place / "recipe.yaml").write_text(LINE.replace("0.8", "0.85"))
    assert run_in(place).to_json()["reused"] == ["clean", "split"]


def test_never_stale(place):
    first = run_in(place).to_json()
    assert stands(place)["split"] == (True, "")
    kept = place / "recipe.work" / "dedup.jsonl"
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-10])
    assert stands(place)["dedup"][1].startswith("its output is gone or was edited")
    assert run_in(place).to_json()["reused"] == ["clean", "split"]
    assert kept.read_bytes() == whole
    kept.unlink()
    assert run_in(place).to_json()["content_root"] == first["content_root"]
    with open(place / "chats.jsonl", "a") as file:
        file.write(
            json.dumps({"messages": [{"role": "user", "content": "new"}, {"role": "assistant", "content": "x"}]})
        )
    assert stands(place)["clean"] == (False, "its input changed")
    assert run_in(place).to_json()["rows_out"] == CHATS + 1


def test_a_plan_writes_nothing(place):
    Catalog.open(place / ".lpt")
    before = sorted(place.rglob("*"))
    told = stands(place)
    assert [why for _, why in told.values()] == [
        "not done before", "it reads clean, which is done anew", "it reads dedup, which is done anew",
        "a gate is asked every time",
    ]  # fmt: skip
    assert sorted(place.rglob("*")) == before


def test_from_and_until(place):
    assert [ran.spec.name for ran in run_in(place, last="dedup").ran] == ["clean", "dedup"]
    with pytest.raises(RefusedError, match="does not stand") as error:
        run_in(place, first="admit")
    assert error.value.next == f"lpt data run {place}/recipe.yaml --until split, or leave out --from"
    assert [ran.spec.name for ran in run_in(place, first="split", last="split").ran] == ["split"]
    assert [ran.spec.name for ran in run_in(place, first="admit").ran] == ["admit"]
    for first, last in (("split", "clean"), ("spilt", None)):
        with pytest.raises(UsageError):
            run_in(place, first=first, last=last)


def test_the_order_of_files_and_of_rows_changes_no_content(place, tmp_path):
    root = run_in(place).to_json()["content_root"]
    lines = (place / "chats.jsonl").read_text().splitlines(keepends=True)
    (place / "b.jsonl").write_text("".join(reversed(lines[:20])))
    (place / "a.jsonl").write_text("".join(lines[20:]))
    (place / "recipe.yaml").write_text(LINE.replace("chats.jsonl", "[b.jsonl, a.jsonl]"))
    assert run_in(place).to_json()["content_root"] == root


BRANCHES = """
inputs: {chats: chats.jsonl, more: more.jsonl}
stages:
  - clean: {from: chats, as: first, rules: "space"}
  - clean: {from: more, as: second, rules: "space"}
  - dedup: {from: [first, second], workers: 1}
  - dedup: {from: second, against: first, as: fresh, workers: 1}
  - mix:
      domains: {a: {from: first, weight: 1}, b: {from: fresh, weight: 1}}
      total: {rows: 20}
      kind: sft
      out: mixed.jsonl
"""


def test_branches_meet_again(place):
    lines = (place / "chats.jsonl").read_text().splitlines(keepends=True)
    new = [line.replace("house", "garden") for line in lines[:10]]
    (place / "more.jsonl").write_text("".join(lines[:4] + new))
    (place / "recipe.yaml").write_text(BRANCHES)
    body = run_in(place).to_json()
    first, second, dedup, fresh, mixed = body["stages"]
    assert (first["rows_in"], second["rows_in"], dedup["rows_in"]) == (CHATS + 3, 14, CHATS + 17)
    assert fresh["removed"] == {"duplicate_of_reference": 4}
    assert mixed["rows_out"] == 20
    assert {d["domain"]: d["amount"] for d in mixed["domains"]} == {"a": 10, "b": 10}
    assert (place / "mixed.jsonl").is_file()
    # `second` is read by `dedup` and by `fresh`, `first` by `dedup` and by `mix`: rows are counted where they are used
    assert body["rows_in"] == CHATS + 3 + 14
    assert run_in(place).to_json()["reused"] == ["first", "second", "dedup", "fresh", "mix"]


def test_totals_hold_when_stages_are_reused_under_other_names(place):
    """Records name files as they were called then; sums go by what reads what."""
    run_in(place)
    text = LINE.replace('space,empty"}', 'space,empty", as: tidy}')
    (place / "recipe.yaml").write_text(text)
    body = run_in(place).to_json()
    assert body["reused"] == ["dedup", "split"]
    assert (body["rows_in"], body["rows_out"], body["removed"]) == (CHATS + 3, CHATS, {"normalized_duplicate": 3})


def test_two_stages_write_to_one_place(place):
    (place / "recipe.yaml").write_text(
        "inputs: chats.jsonl\nstages:\n  - clean: {rules: space, out: a.jsonl}\n  - dedup: {out: ./a.jsonl}\n"
    )
    with pytest.raises(UsageError, match="clean and dedup write to the same place"):
        run_in(place)


WITH_ITEMS = "dedup: {out: b.jsonl}\n  - decontaminate: {benchmark: {b: b.jsonl}}"


@pytest.mark.parametrize("last", ["dedup: {out: chats.jsonl}", "split: {test: 3, out: .}", WITH_ITEMS])
def test_no_stage_writes_over_an_input(place, last):
    raw = place / "train.jsonl" if "split" in last else place / "chats.jsonl"
    (place / "chats.jsonl").rename(raw)
    (place / "recipe.yaml").write_text(f"inputs: {raw.name}\nstages:\n  - clean: {{rules: space}}\n  - {last}\n")
    with pytest.raises(UsageError, match="would write over an input"):
        run_in(place)
    assert not (place / "recipe.work").exists()


def test_a_contract_is_audited_as_its_kind_of_record(place):
    """Rows of the contract `synthetic` are conversations."""
    (place / "recipe.yaml").write_text("inputs: chats.jsonl\nstages:\n  - audit: {contract: synthetic}\n")
    assert run_in(place).ran[0].gate.body["splits"]


def test_a_gate_that_says_no_ends_the_run(place):
    chats = (place / "chats.jsonl").read_text().splitlines()
    empty = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": ""}]}
    (place / "chats.jsonl").write_text("\n".join(chats + [json.dumps(empty)] * 40))
    (place / "recipe.yaml").write_text(
        "inputs: chats.jsonl\nstages:\n  - clean: {rules: space}\n  - audit: {contract: sft}\n"
        "  - split: {from: clean, test: 3}\n"
    )
    report = run_in(place)
    assert report.exit_code == 4
    assert report.not_run == ("split",)
    assert not (place / "recipe.work" / "split").exists()
    recipe = load_recipe(str(place / "recipe.yaml"))
    plan = planned(recipe, Catalog.open(place / ".lpt"), TOOLS, first="split")
    assert [(spec.name, stands.why) for spec, stands in plan] == [("split", "not done before")]
    assert run_in(place, first="split").not_asked == ("audit",)


KILLED = """
import os, signal, sys
sys.path[:0] = [sys.argv[1]]
from recipe_cases import run_in
from pathlib import Path

calls = 0

def progress(done, total, label):
    if label == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

def told(ran):
    if ran.spec.name == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

run_in(Path(sys.argv[2]), progress=progress, told=told)
"""


@pytest.mark.parametrize("moment", ["dedup: rows read", "dedup", "split: writing"])
def test_kill_9_anywhere_and_again_gives_the_same_bytes(tmp_path, moment):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for place in (whole, killed):
        place.mkdir()
        folder(place)
    run_in(whole)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(killed), moment], check=False,
        capture_output=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    report = run_in(killed).to_json()
    assert report["reused"] == {"dedup": ["clean", "dedup"], "split: writing": ["clean", "dedup"]}.get(
        moment, ["clean"] if moment.startswith("dedup") else []
    )
    expected = {name: data for name, data in files(whole).items() if name != "split/split.json"}
    assert {name: data for name, data in files(killed).items() if name != "split/split.json"} == expected
    assert not [name for name in os.listdir(killed / "recipe.work") if name.startswith(".tmp")]
