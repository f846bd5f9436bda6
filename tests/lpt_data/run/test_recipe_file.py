"""What a recipe may say: names, references, options and their types, and the order of its stages."""

from pathlib import Path

import pytest
import yaml
from recipe_cases import LINE, TOOLS, folder

from lpt_data.progress import silent
from lpt_data.run import STAGES, load_recipe, parse_recipe, planned, shipped, wrong_order
from lpt_data.run.recipe import SHARED
from lpt_data.run.runner import Flow
from lpt_data.run.table import CLEAN, QUALITY
from manifests.errors import BadInputError, UsageError


def parsed(stages, inputs="in.jsonl", **more):
    return parse_recipe({"inputs": inputs, "stages": stages, **more})


def orders(*stages):
    return [(wrong.late, wrong.after) for wrong in wrong_order(parsed(list(stages)))]


def test_a_stage_reads_the_one_before_it_unless_it_says_otherwise():
    recipe = parsed(
        [{"clean": {"from": "a", "as": "one"}}, {"clean": {"from": "b", "as": "two"}}, "dedup"],
        {"a": "a.jsonl", "b": ["b.jsonl", "c.jsonl"]},
    )
    assert [spec.reads for spec in recipe.stages] == [("a",), ("b",), ("two",)]
    assert recipe.inputs["b"].paths == ("b.jsonl", "c.jsonl")


@pytest.mark.parametrize(
    "stage",
    [
        {"mix": {"domains": ["a"]}},
        {"mix": {"domains": {"a": {"from": 5}}}},
        {"mix": {"spec": "m.yaml", "input": "a"}},
        {"dedup": {"against": 5}},
        {"dedup": {"against": [5]}},
        {"dedup": {"method": 5}},
        {"clean": {"rules": 5}},
        {"audit": {"contract": "text", "train": 5}},
    ],
)
def test_a_value_of_another_shape_is_refused_by_name(stage):
    with pytest.raises(UsageError, match="no list of texts|no mapping"):
        orders(stage, "quality")


def test_dashes_are_as_good_as_underscores():
    spec = parsed([{"dedup": {"template-df": 0.1}}]).stages[0]
    assert spec.options == {"template_df": 0.1}


@pytest.mark.parametrize(
    ("stages", "what", "next"),
    [
        ([{"dedupe": {}}], "a recipe has no such stage", "dedup"),
        ([{"dedup": {"treshold": 0.8}}], "dedup has no such option", "threshold"),
        ([{"clean": {"form": "in"}}], "clean has no such option", "from"),
        (["clean", "clean"], "called clean", "as:"),
        ([{"clean": {"as": "a/b"}}], "no name", "letters"),
        ([{"clean": {}, "dedup": {}}], "no stage", "dedup"),
        ([{"dedup": {"from": "inputt"}}], "no such input or earlier stage", "input"),
        ([{"split": {"test": 2}}, {"dedup": {"from": "split.tset"}}], "not made", "split"),
        ([{"audit": {"contract": "sft"}}, "dedup"], "makes no rows", "another"),
        ([], "no stages", "stages:"),
        ([{"dedup": [1]}], "no mapping", "threshold"),
    ],
)
def test_what_means_nothing_is_refused_with_the_nearest_name(stages, what, next):
    with pytest.raises(UsageError) as error:
        parsed(stages)
    assert what in str(error.value)
    assert next in error.value.next


def test_keys_of_the_recipe_itself():
    with pytest.raises(UsageError, match="no such key") as error:
        parse_recipe({"input": "a.jsonl", "stages": ["clean"]})
    assert error.value.next == "did you mean inputs?"
    with pytest.raises(UsageError, match="wrong order"):
        parsed(["clean"], order="maybe")
    with pytest.raises(UsageError, match="what the stage clean reads"):
        parse_recipe({"stages": ["clean"]})


@pytest.mark.parametrize(
    ("kind", "options", "what"),
    [
        ("dedup", {"threshold": "high"}, "threshold"),
        ("dedup", {"threshold": 8}, "threshold"),
        ("dedup", {"drop_all": 1}, "drop_all"),
        ("dedup", {"method": "exact,semantics"}, "method"),
        ("clean", {"rules": "gofer"}, "rule"),
        ("quality", {"rules": "unicode"}, "does not mend"),
        ("decontaminate", {}, "no benchmark"),
        ("decontaminate", {"benchmark": "b="}, "NAME=PATH"),
        ("decontaminate", {"benchmark": ["b=b.jsonl", "b"]}, "with a file and without"),
        ("split", {"test": 1.5}, "whole"),
        ("split", {"test": 2, "method": "throw"}, "method"),
        ("mix", {"domains": {"a": {"from": "input"}}}, "weight"),
        ("admit", {}, "contract"),
        ("admit", {"contract": "sft", "policy": "none.yaml"}, "policy cannot be read"),
        ("audit", {"contract": "sft", "max_length": "2k"}, "max_length"),
        ("drop", {"contract": "sft"}, "check"),
        ("audit", {"contract": "sft", "key": "maths"}, "no normaliser and no column"),
        ("admit", {"contract": "sft", "key": "message"}, "no normaliser and no column"),
        ("split", {"test": 2, "key": "problem"}, "no normaliser and no column"),
        ("audit", {"contract": "sft", "key": 3}, "no text"),
    ],
)
def test_values_are_checked_before_anything_runs(tmp_path, kind, options, what):
    folder(tmp_path, yaml.safe_dump({"inputs": "chats.jsonl", "stages": [{kind: options}]}))
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    with pytest.raises((UsageError, BadInputError), match=what):
        Flow(recipe, None, TOOLS, silent).checked(None, None)


@pytest.mark.parametrize("key", ["math", "messages", "domain"])
def test_a_key_may_be_a_normaliser_a_column_or_what_a_mixture_adds(tmp_path, key):
    stages = [{"audit": {"contract": "sft", "key": key}}]
    folder(tmp_path, yaml.safe_dump({"inputs": "chats.jsonl", "stages": stages}))
    Flow(load_recipe(str(tmp_path / "recipe.yaml")), None, TOOLS, silent).checked(None, None)


def test_inputs_that_are_not_there_are_refused_before_anything_runs(tmp_path):
    folder(tmp_path, LINE.replace("chats.jsonl", "chat.jsonl"))
    with pytest.raises(BadInputError, match="does not exist"):
        planned(load_recipe(str(tmp_path / "recipe.yaml")), None, TOOLS)
    recipe = load_recipe("lpt:sft")
    with pytest.raises(BadInputError, match="has no file") as error:
        planned(recipe, None, TOOLS)
    assert error.value.next == "--input chats=FILE"


def test_the_right_order_is_right():
    assert (
        orders(
            "clean",
            {"dedup": {"method": "exact", "as": "exact"}},
            {"dedup": {"method": "minhash", "as": "near"}},
            "quality",
            {"decontaminate": {"benchmark": {"b": "b.jsonl"}}},
            {"split": {"test": 1}},
            {"mix": {"domains": {"a": {"from": "split", "weight": 1}}}},
            {"admit": {"contract": "sft"}},
        )
        == []
    )


@pytest.mark.parametrize(
    ("stages", "late", "after"),
    [
        (["dedup", "clean"], "clean", "dedup"),
        ([{"split": {"test": 1}}, "dedup"], "dedup", "split"),
        ([{"split": {"test": 1}}, {"decontaminate": {"benchmark": {"b": "b.jsonl"}}}], "decontaminate", "split"),
        ([{"dedup": {"method": "minhash", "as": "near"}}, {"dedup": {"method": "exact"}}], "dedup", "near"),
        (["quality", "dedup"], "dedup", "quality"),
    ],
)
def test_a_wrong_order_is_named_with_its_cost(stages, late, after):
    found = wrong_order(parsed(stages))
    assert [(wrong.late, wrong.after) for wrong in found] == [(late, after)]
    assert len(found[0].why) > 20
    with pytest.raises(UsageError, match="wrong order"):
        wrong_order(parsed(stages, order="strict"))


def test_order_follows_the_rows_and_not_the_list():
    """Two branches: the second is cleaned after the first was deduplicated, and no row went the wrong way."""
    stages = [
        {"dedup": {"from": "a"}},
        {"clean": {"from": "b"}},
        {"mix": {"domains": {"a": {"from": "dedup", "weight": 1}, "b": {"from": "clean", "weight": 1}}}},
    ]
    assert wrong_order(parsed(stages, {"a": "a.jsonl", "b": "b.jsonl"})) == []
    stages[1]["clean"]["from"] = "dedup"
    assert [(w.late, w.after) for w in wrong_order(parsed(stages, {"a": "a.jsonl", "b": "b.jsonl"}))] == [
        ("clean", "dedup")
    ]


def test_cleaning_that_only_drops_may_come_late():
    assert STAGES["clean"].places({"rules": "gopher,-gopher.words"}) == (CLEAN, QUALITY)
    assert STAGES["clean"].places({"rules": "gopher,space"}) == (CLEAN, CLEAN)
    assert orders("dedup", {"clean": {"rules": "gopher"}}) == []


@pytest.mark.parametrize("ref", shipped())
def test_shipped_recipes_are_in_order_and_make_sense(ref):
    recipe = load_recipe(ref)
    assert recipe.strict
    assert wrong_order(recipe) == []
    for spec in recipe.stages:
        STAGES[spec.kind].check(spec.options, spec.where)
    given = load_recipe(ref, {next(iter(recipe.inputs)): [__file__]})
    assert next(iter(given.inputs.values())).paths == (__file__,)


def test_the_documented_recipe_is_one_and_every_stage_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text("utf-8")
    recipe = parse_recipe(yaml.safe_load(text.split("```yaml\n", 1)[1].split("```", 1)[0]))
    assert wrong_order(recipe) == []
    for spec in recipe.stages:
        STAGES[spec.kind].check(spec.options, spec.where)
    for name in (*STAGES, *SHARED):
        assert f"`{name.replace('_', '-')}`" in text


def test_no_option_of_a_stage_is_one_of_the_recipes_own():
    assert not [(name, key) for name, stage in STAGES.items() for key in stage.options if key in SHARED]


def test_paths_are_those_of_the_recipes_folder(tmp_path, monkeypatch):
    folder(tmp_path)
    monkeypatch.chdir("/")
    recipe = load_recipe(str(tmp_path / "recipe.yaml"), None)
    assert recipe.inputs["chats"].paths == (str(tmp_path / "chats.jsonl"),)
    assert recipe.work == tmp_path / "recipe.work"
    assert load_recipe(str(tmp_path / "recipe.yaml"), {"chats": ["here.jsonl"]}).inputs["chats"].paths == (
        "here.jsonl",
    )
    with pytest.raises(UsageError, match="no such input"):
        load_recipe(str(tmp_path / "recipe.yaml"), {"chat": ["here.jsonl"]})


def test_what_is_no_recipe(tmp_path):
    for text in ("a: [", "- a\n- b", "a: 1\na: 2", "&a [*a]"):
        (tmp_path / "r.yaml").write_text(text)
        with pytest.raises((UsageError, BadInputError)):
            load_recipe(str(tmp_path / "r.yaml"))
    for ref in (str(tmp_path / "none.yaml"), str(tmp_path), "lpt:none"):
        with pytest.raises((UsageError, BadInputError)):
            load_recipe(ref)
    assert Path(tmp_path / "recipe.work").exists() is False


def test_boilerplate_is_cut_before_documents_are_compared():
    cut = {"boilerplate": {"method": "paragraphs"}}
    assert orders("clean", cut, {"dedup": {"method": "exact"}}, {"dedup": {"as": "near"}}) == []
    assert orders({"dedup": {"method": "exact"}}, cut) == []
    assert orders({"dedup": {"method": "minhash"}}, cut) == [("boilerplate", "dedup")]
    with pytest.raises(UsageError, match="20 characters"):
        STAGES["boilerplate"].check({"method": "substring", "length": 5}, "here")
