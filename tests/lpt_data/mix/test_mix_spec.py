"""What a specification may not say, and the key that each refusal names."""

import math

import pytest

from lpt_data.mix_spec import load_spec, parse_spec
from manifests.errors import BadInputError, LptError, UsageError

A = {"inputs": "a.jsonl", "weight": 1}
GOOD = {"domains": {"a": A, "b": {"inputs": ["b.jsonl"], "weight": 2}}}


def test_defaults():
    spec = parse_spec(GOOD)
    assert [d.name for d in spec.domains] == ["a", "b"]
    assert (spec.total, spec.unit, spec.inverse_temperature, spec.exhausted) == (1, "epochs", 1, "repeat")
    assert spec.phases[0].until == 1
    assert not spec.scheduled


def with_(**more):
    return GOOD | more


def domain(**more):
    return {"domains": {"a": A, "b": {"inputs": "b.jsonl", "weight": 2} | more}}


BAD = {
    "not a mapping": ([], "wrong the mixture"),
    "no domains": ({}, "wrong domains"),
    "unknown key": (with_(temprature=2), "unknown key"),
    "unknown key of a domain": (domain(wieght=1), "unknown key"),
    "odd name": ({"domains": {"a/b": A}}, "name of a domain"),
    "negative weight": (domain(weight=-1), "domains.b.weight"),
    "nan weight": (domain(weight=math.nan), "domains.b.weight"),
    "infinite weight": (domain(weight=math.inf), "domains.b.weight"),
    "true weight": (domain(weight=True), "domains.b.weight"),
    "text weight": (domain(weight="much"), "domains.b.weight"),
    "no weight": ({"domains": {"a": {"inputs": "a"}}}, "domains.a.weight"),
    "weight by size": (with_(weights="size"), "domains.a.weight"),
    "temperature 0": (with_(temperature=0), "temperature"),
    "negative temperature": (with_(temperature=-1), "temperature"),
    "own temperature": (domain(temperature=0.7), "one temperature holds for all domains"),
    "both temperatures": (domain(temperature=0.7) | {"per_domain_exponents": True, "temperature": 2}, "temperature"),
    "cap 0": (domain(max_epochs=0), "domains.b.max_epochs"),
    "two totals": (with_(total={"rows": 1, "epochs": 1}), "total"),
    "half a row": (with_(total={"rows": 1.5}), "total.rows"),
    "no rows": (with_(total={"rows": 0}), "total.rows"),
    "characters": (with_(total={"characters": 5}), "unknown key"),
    "policy": (with_(exhausted="panic"), "exhausted"),
    "negative seed": (with_(seed=-1), "seed"),
    "kind": (with_(kind="dpo"), "kind"),
    "replay without share": (domain(replay=True), "replay_share"),
    "share without replay": (with_(replay_share=0.2), "replay"),
    "share of 1": (domain(replay=True) | {"replay_share": 1}, "replay_share"),
    "all replay": ({"domains": {"a": A | {"replay": True}}, "replay_share": 0.2}, "replay"),
    "replay is a flag": (domain(replay=0.2), "domains.b.replay"),
    "phases that end early": (with_(schedule={"phases": [{"until": 0.5}]}), "schedule.phases"),
    "phases that go back": (with_(schedule={"phases": [{"until": 0.5}, {"until": 0.4}]}), "until"),
    "phases and anneal": (with_(schedule={"phases": [], "anneal": {}}), "schedule"),
    "unknown domain": (with_(schedule={"anneal": {"from": 0.5, "weights": {"c": 1}}}), "unknown domain"),
    "phase of weight 0": (with_(schedule={"anneal": {"from": 0.5, "weights": {"a": 0}}}), "sum to 0"),
    "anneal at the end": (with_(schedule={"anneal": {"from": "lr_decay", "weights": {"a": 1}}}), "anneal.from"),
    "wsd without decay": (with_(schedule={"learning_rate": {"type": "wsd"}}), "decay"),
    "curriculum of nothing": (with_(schedule={"curriculum": {"column": "x", "domains": ["c"]}}), "curriculum.domains"),
    "curriculum without column": (with_(schedule={"curriculum": {}}), "curriculum.column"),
    "rows per step": (with_(schedule={"rows_per_step": 0}), "rows_per_step"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name):
    body, words = BAD[name]
    with pytest.raises(BadInputError) as error:
        parse_spec(body)
    assert words in str(error.value)
    assert error.value.next


def test_numbers_that_yaml_reads_as_text():
    assert parse_spec(with_(total={"rows": "1e6"})).total == 1_000_000


def test_infinite_temperature():
    assert parse_spec(with_(temperature=math.inf)).inverse_temperature == 0


@pytest.mark.parametrize(
    "text",
    [
        "domains:\n  a: {inputs: x, weight: 1}\n  a: {inputs: y, weight: 2}\n",  # a name twice
        "domains: &d\n  a: {inputs: x, weight: 1}\nother: *d\n",
        "domains: [unclosed\n",
        "!!python/object/apply:os.system ['true']\n",
        "",
        "[" * 5000,
    ],
)
def test_text_that_is_no_mixture(tmp_path, text):
    (tmp_path / "mix.yaml").write_text(text)
    with pytest.raises(BadInputError):
        load_spec(str(tmp_path / "mix.yaml"))


def test_inputs_by_option_and_relative_to_the_file(tmp_path):
    (tmp_path / "mix.yaml").write_text("domains: {a: {inputs: x.jsonl, weight: 1}, b: {weight: 1}}")
    ref = str(tmp_path / "mix.yaml")
    spec = load_spec(ref, {"b": ["here.jsonl"]})
    assert [d.inputs for d in spec.domains] == [(str(tmp_path / "x.jsonl"),), ("here.jsonl",)]
    with pytest.raises(BadInputError, match="the domain b has no input"):
        load_spec(ref)
    with pytest.raises(UsageError, match="no domain"):
        load_spec(ref, {"c": ["x"]})


@pytest.mark.parametrize("ref", ["lpt:none", "absent.yaml", "/"])
def test_a_specification_that_is_not_there(ref):
    with pytest.raises(LptError, match="no such recipe|cannot be read"):
        load_spec(ref)


def test_weights_that_sum_to_0(tmp_path):
    from lpt_data.mix import mix
    from manifests.catalog import Catalog

    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    spec = parse_spec({"domains": {"a": {"inputs": "a.jsonl", "weight": 0}}}, tmp_path)
    with pytest.raises(BadInputError, match="sum to 0"):
        mix(spec, out=tmp_path / "o.jsonl", catalog=Catalog.open(tmp_path / "c"))
