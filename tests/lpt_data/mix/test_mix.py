"""Mixtures of made-up domains: shares, caps, order, what is recorded, and that nothing follows the order of files."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lpt_data import ordered, pending
from lpt_data.conservation import check_conservation
from lpt_data.dataset import Dataset
from lpt_data.joined import Joined
from lpt_data.mix import mix
from lpt_data.mix_spec import load_spec, parse_spec
from lpt_data.ordered import Order
from lpt_data.schedule_mix import schedule_path
from lpt_data.stage import StageResult
from lpt_data.tokenizer_file import wrap
from manifests import decisions
from manifests.catalog import Catalog
from manifests.digests import content_root
from manifests.errors import BadInputError, LptError
from manifests.why import why

SIZES = {"a": 100, "b": 50, "c": 10}


def write(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of(name: str, n: int) -> list[dict]:
    return [{"text": f"{name} row {i}", "level": (i * 7) % n, "source": name} for i in range(n)]


@pytest.fixture
def place(tmp_path):
    for name, n in SIZES.items():
        write(tmp_path / f"{name}.jsonl", rows_of(name, n))
    return tmp_path


def spec_of(place: Path, given: dict, **more):
    domains = {
        name: (value if isinstance(value, dict) else {"weight": value}) | {"inputs": f"{name}.jsonl"}
        for name, value in given.items()
    }
    return parse_spec({"domains": domains, **more}, place)


def run(place: Path, spec, out: str = "out.jsonl", **more):
    report = mix(spec, out=place / out, catalog=Catalog.open(place / ".lpt"), **more)
    return report, [json.loads(line) for line in (place / out).read_text().splitlines()]


def told(report) -> dict:
    return {entry["domain"]: entry for entry in report.extra["domains"]}


def law(report):
    body = report.body
    assert body["rows_in"] + body["repeated"] == body["rows_out"] + sum(body["removed"].values()) + body["quarantined"]


def test_shares_columns_and_the_record_of_the_stage(place):
    spec = spec_of(place, {"a": 5, "b": 3, "c": 2}, total={"rows": 40})
    report, rows = run(place, spec)
    assert Counter(row["domain"] for row in rows) == {"a": 20, "b": 12, "c": 8}
    assert all(row["copy"] == 0 and row["source"] == row["domain"] for row in rows)
    assert len({row["text"] for row in rows}) == 40
    assert report.body["removed"] == {"not_drawn": 120}
    assert (report.body["rows_in"], report.body["rows_out"], report.body["repeated"]) == (160, 40, 0)
    law(report)
    entry = told(report)["b"]
    assert (entry["asked"], entry["observed"], entry["rows"], entry["epochs"]) == (0.3, 0.3, 12, 0.24)
    again = Dataset.open([str(place / "out.jsonl")])
    ids = np.frombuffer(b"".join(name for *_, name in again.identified()), np.uint8).reshape(-1, 32)
    assert content_root(ids).root == report.body["content_root"]
    assert run(place, spec)[0].reused


def test_rows_are_shuffled_over_the_whole_output(place):
    _, rows = run(place, spec_of(place, {"a": 1, "b": 1}, total={"rows": 100}))
    halves = [Counter(row["domain"] for row in part)["a"] for part in (rows[:50], rows[50:])]
    assert all(abs(half - 25) <= 11 for half in halves)  # three standard errors of a draw without replacement: 7.6


def test_the_order_of_files_and_rows_changes_neither_bytes_nor_plan(tmp_path):
    outs, hashes = [], set()
    for seed in range(3):
        place = tmp_path / str(seed)
        place.mkdir()
        domains = {}
        for name, n in SIZES.items():
            rows = random.Random(seed).sample(rows_of(name, n), n)
            files = [write(place / f"{seed}{name}{i}.jsonl", rows[i::2]).name for i in range(2)]
            domains[name] = {"inputs": files[:: -1 if seed else 1], "weight": n, "max_epochs": 3}
        names = random.Random(seed).sample(sorted(domains), 3)
        curriculum = {"column": "level", "domains": ["a"]}
        schedule = {"phases": [{"until": 0.5}, {"until": 1, "weights": {"c": 1, "a": 1}}], "curriculum": curriculum}
        body = {"domains": {name: domains[name] for name in names}, "total": {"rows": 90}, "schedule": schedule}
        report, _ = run(place, parse_spec(body, place))
        outs.append((place / "out.jsonl").read_bytes())
        hashes.add(report.extra["plan_hash"])
    assert outs[0] == outs[1] == outs[2]
    assert len(hashes) == 1


def test_seed_and_content_and_weights_change_the_plan(place):
    seen = set()
    for more in ({"seed": 0}, {"seed": 1}, {"temperature": 2}, {"total": {"rows": 41}}, {"exhausted": "stop"}):
        spec = spec_of(place, {"a": 5, "b": 3}, **({"total": {"rows": 40}} | more))
        seen.add(
            mix(spec, out=place / "o.jsonl", catalog=Catalog.open(place / ".lpt"), plan_only=True).extra["plan_hash"]
        )
    write(place / "a.jsonl", [*rows_of("a", 100), {"text": "one more"}])
    spec = spec_of(place, {"a": 5, "b": 3}, total={"rows": 40})
    seen.add(mix(spec, out=place / "o.jsonl", catalog=Catalog.open(place / ".lpt"), plan_only=True).extra["plan_hash"])
    assert len(seen) == 6
    assert not (place / "o.jsonl").exists()


def test_a_larger_total_and_another_domain_move_no_row(place):
    small = {row["text"] for row in run(place, spec_of(place, {"a": 1}, total={"rows": 30}))[1]}
    large = {row["text"] for row in run(place, spec_of(place, {"a": 1}, total={"rows": 60}))[1]}
    assert small < large
    beside = run(place, spec_of(place, {"a": 30, "b": 10}, total={"rows": 40}))[1]
    assert {row["text"] for row in beside if row["domain"] == "a"} == small


def test_a_domain_that_runs_out_is_repeated_evenly_and_says_so(place):
    report, rows = run(place, spec_of(place, {"a": 3, "c": 1}, total={"rows": 100}))
    copies = Counter(row["text"] for row in rows if row["domain"] == "c")
    assert sorted(copies.values()) == [2] * 5 + [3] * 5  # 25 rows of 10: twice and a half
    assert Counter(row["copy"] for row in rows if row["domain"] == "c") == {0: 10, 1: 10, 2: 5}
    assert report.body["repeated"] == 15
    assert report.to_json()["repeated"] == 15
    assert told(report)["c"]["repeated"] == 15
    assert report.body["removed"] == {"not_drawn": 25}
    law(report)


def test_caps_send_the_excess_to_the_others(place):
    """100 rows of .5/.3/.2 with c (10 rows) capped at two epochs and asked for 50: 20, then 80 over .3 : .2."""
    weights = {"c": {"weight": 0.5, "max_epochs": 2}, "a": 0.3, "b": 0.2}
    report, rows = run(place, spec_of(place, weights, total={"rows": 100}))
    assert Counter(row["domain"] for row in rows) == {"c": 20, "a": 48, "b": 32}
    assert any("c runs out: 50 rows asked, 20 drawn of 10 (2 epochs)" in w for w in report.extra["warnings"])


@pytest.mark.parametrize(("policy", "drawn"), [("redistribute", {"c": 10, "a": 90}), ("stop", {"c": 10, "a": 10})])
def test_other_ways_to_run_out(place, policy, drawn):
    report, rows = run(place, spec_of(place, {"c": 1, "a": 1}, total={"rows": 100}, exhausted=policy))
    assert Counter(row["domain"] for row in rows) == drawn
    assert report.body["repeated"] == 0
    assert any("c runs out" in warning for warning in report.extra["warnings"])
    assert any("the mixture is short" in warning for warning in report.extra["warnings"]) == (policy == "stop")


def test_replay_has_exactly_its_share(place):
    weights = {"a": {"weight": 7, "replay": True}, "b": 1, "c": {"weight": 1, "max_epochs": 1}}
    report, rows = run(place, spec_of(place, weights, total={"rows": 50}, replay_share=0.2))
    assert Counter(row["domain"] for row in rows) == {"a": 10, "b": 30, "c": 10}
    assert not any("replay" in warning for warning in report.extra["warnings"])
    for share, warned in ((0.1, False), (0.3, False), (0.05, True), (0.5, True)):
        spec = spec_of(place, weights, total={"rows": 40}, replay_share=share)
        report, rows = run(place, spec)
        assert any("outside the advised 10% to 30%" in w for w in report.extra["warnings"]) == warned
        assert sum(row["domain"] == "a" for row in rows) == share * 40


def test_weights_by_size_and_a_total_in_epochs(place):
    report, rows = run(place, spec_of(place, {n: {} for n in SIZES}, weights="size", total={"epochs": 0.5}))
    assert Counter(row["domain"] for row in rows) == {"a": 50, "b": 25, "c": 5}
    # T = 2: roots of 100, 50, 10 are 10, 7.07, 3.16, of 20.23.
    spec = spec_of(place, {n: {} for n in SIZES}, weights="size", temperature=2, total={"rows": 2023})
    assert Counter(row["domain"] for row in run(place, spec)[1]) == {"a": 1000, "b": 707, "c": 316}


def byte_counter():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return wrap("bytes", backend)


def test_a_total_in_tokens_counts_tokens(place):
    write(place / "a.jsonl", [{"text": "x" * (1 + i % 50) + str(i)} for i in range(300)])
    spec = spec_of(place, {"a": 3, "b": 1}, total={"tokens": 2000})
    report, rows = run(place, spec, tokenizer=byte_counter())
    tokens = Counter()
    for row in rows:
        tokens[row["domain"]] += len(row["text"])
    longest = {"a": 53, "b": 8}
    for name, aim in (("a", 1500), ("b", 500)):
        assert abs(tokens[name] - aim) <= longest[name] / 2
        assert told(report)[name]["amount"] == tokens[name]
    assert report.extra["unit"] == "tokens"
    with pytest.raises(BadInputError, match="needs a tokenizer"):
        run(place, spec)


def test_an_anneal_is_tied_to_the_learning_rate_and_exported(place):
    schedule = {
        "learning_rate": {"type": "wsd", "warmup": 0.1, "decay": 0.25},
        "anneal": {"from": "lr_decay", "weights": {"c": 1}},
        "rows_per_step": 4,
    }
    report, rows = run(place, spec_of(place, {"a": 1, "b": 1, "c": 0}, total={"rows": 40}, schedule=schedule))
    # Ten steps of four rows; the rate falls from step 7.5, which is no step: the anneal begins with step 8.
    assert Counter(row["domain"] for row in rows[:32])["c"] == 0
    assert {row["domain"] for row in rows[32:]} == {"c"}
    body = json.loads(schedule_path(place / "out.jsonl").read_text())
    first, second = body["phases"]
    assert (body["steps"], first["end_step"], second["first_step"], second["end_step"]) == (10, 8, 8, 10)
    assert (first["end_row"], second["first_row"], second["end_row"]) == (32, 32, 40)
    assert (second["asked"], second["observed"]) == ({"a": 0, "b": 0, "c": 1}, {"a": 0, "b": 0, "c": 1})
    assert (first["learning_rate"], second["learning_rate"]) == ([0, 1], [1, 0])
    assert body["data"]["sha256"] == report.body["outputs"][0]["sha256"]
    assert body["plan_hash"] == report.extra["plan_hash"]


def test_a_domain_comes_back_only_when_all_of_it_was_used(place):
    phases = [{"until": 0.5, "weights": {"c": 1, "a": 1}}, {"until": 1, "weights": {"c": 3, "a": 1}}]
    _, rows = run(place, spec_of(place, {"a": 1, "c": 1}, total={"rows": 40}, schedule={"phases": phases}))
    early = [row for row in rows[:20] if row["domain"] == "c"]
    assert len({row["text"] for row in early}) == 10
    assert all(row["copy"] == 0 for row in early)
    assert sorted(Counter(r["text"] for r in rows if r["domain"] == "c").values()) == [2] * 5 + [3] * 5


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_a_curriculum_climbs_within_each_domain_through_all_phases(place, order):
    phases = [{"until": 0.4, "weights": {"a": 1, "b": 1}}, {"until": 1, "weights": {"a": 3, "b": 1}}]
    schedule = {"phases": phases, "curriculum": {"column": "level", "order": order}}
    _, rows = run(place, spec_of(place, {"a": 1, "b": 1}, total={"rows": 60}, schedule=schedule))
    for name in "ab":
        levels = [row["level"] for row in rows if row["domain"] == name]
        assert levels == sorted(levels, reverse=order == "descending")
    assert len(set(row["domain"] for row in rows[:8])) == 2  # domains stay mixed


def test_a_curriculum_over_all_domains(place):
    schedule = {"curriculum": {"column": "level", "within": "all"}}
    _, rows = run(place, spec_of(place, {"a": 1, "b": 1}, total={"rows": 60}, schedule=schedule))
    levels = [row["level"] for row in rows]
    assert levels == sorted(levels)


def test_rows_without_a_score_are_put_aside_and_domains_may_be_left_out(place):
    write(place / "a.jsonl", [{"text": "x", "level": None}, {"text": "y", "level": "hard"}, *rows_of("a", 10)])
    write(place / "b.jsonl", [{"text": f"general {i}"} for i in range(10)])
    curriculum = {"column": "level", "domains": ["a"]}
    spec = spec_of(place, {"a": 1, "b": 1}, total={"rows": 16}, schedule={"curriculum": curriculum})
    report, _ = run(place, spec)
    assert report.body["quarantine"] == {"no_score": 2}
    law(report)
    spec = spec_of(place, {"a": 1, "b": 1}, total={"rows": 16}, schedule={"curriculum": {"column": "level"}})
    with pytest.raises(BadInputError, match="no row of the domain b has a number under level"):
        run(place, spec)


def test_several_layouts_become_canonical_records(place):
    write(place / "a.jsonl", [{"question": f"{i} + 1?", "answer": f"#### {i + 1}", "difficulty": i} for i in range(6)])
    turns = [[{"role": "user", "content": f"hi {i}"}, {"role": "assistant", "content": "yes"}] for i in range(6)]
    write(place / "b.jsonl", [{"messages": turn, "copy": "theirs"} for turn in turns])
    spec = spec_of(place, {"a": 1, "b": 1}, total={"rows": 12}, kind="sft")
    report, rows = run(place, spec)
    assert {frozenset(row) for row in rows} == {
        frozenset({"record_id", "messages", "difficulty", "domain", "copy"}),
        frozenset({"record_id", "messages", "source_copy", "domain", "copy"}),
    }
    read = list(Dataset.open([str(place / "out.jsonl")]).identified())
    assert [name.hex() for *_, name in read] == [row["record_id"] for row in rows]
    assert {entry["layout"] for entry in report.body["inputs"]} == {"gsm8k", "messages"}
    write(place / "c.jsonl", [{"text": "plain"}])
    with pytest.raises(BadInputError, match="different kinds"):
        run(place, spec_of(place, {"b": 1, "c": 1}, total={"rows": 2}))


def test_parquet_keeps_its_types_and_a_column_of_the_same_name(place):
    table = pa.table({"text": ["x", "y", "z"], "n": pa.array([1, 2, 3], pa.int16()), "domain": ["p", "q", "r"]})
    for name in "ab":
        pq.write_table(
            table.set_column(0, "text", pa.array([f"{name}{i}" for i in range(3)])), place / f"{name}.parquet"
        )
    domains = {name: {"inputs": f"{name}.parquet", "weight": 1} for name in "ab"}
    spec = parse_spec({"domains": domains, "total": {"rows": 8}}, place)
    mix(spec, out=place / "out.parquet", catalog=Catalog.open(place / ".lpt"))
    found = pq.read_table(place / "out.parquet")
    assert found.column_names == ["text", "n", "source_domain", "domain", "copy"]
    assert found.schema.field("n").type == pa.int16()
    assert found.num_rows == 8
    for row in found.to_pylist():
        assert row["text"] == f"{row['domain']}{row['n'] - 1}"
        assert row["source_domain"] == "pqr"[row["n"] - 1]


@pytest.mark.parametrize("out", ["out.jsonl", "out.parquet", "out.csv"])
def test_windows_of_the_output_give_the_same_bytes(tmp_path, monkeypatch, out):
    rows = [{"text": f"row {i}", "n": i} for i in range(3500)]
    if out == "out.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    else:
        write(tmp_path / "a.jsonl", rows)
    name = "a.parquet" if out == "out.parquet" else "a.jsonl"
    spec = parse_spec({"domains": {"a": {"inputs": name, "weight": 1}}, "total": {"epochs": 1.2}}, tmp_path)
    mix(spec, out=tmp_path / out, catalog=Catalog.open(tmp_path / "one"))
    whole = (tmp_path / out).read_bytes()
    monkeypatch.setattr(ordered, "WINDOW_BYTES", 1)  # a thousand rows at a time: five windows
    mix(spec, out=tmp_path / out, catalog=Catalog.open(tmp_path / "two"))
    assert (tmp_path / out).read_bytes() == whole


def test_the_plan_is_shown_before_a_row_is_written(place):
    weights = {"a": (0.5, 1), "b": (0.2, 0.7), "c": (0.15, 0.6)}
    domains = {n: {"weight": w, "temperature": t} for n, (w, t) in weights.items()}
    write(place / "d.jsonl", rows_of("d", 20))
    domains["d"] = {"weight": 0.15, "temperature": 0.8}
    spec = spec_of(place, domains, per_domain_exponents=True, total={"rows": 1000})
    shown = []

    def show(told):
        assert not (place / "out.jsonl").exists()
        shown.extend(told["warnings"])

    run(place, spec, show=show)
    assert "per-domain exponents: b has 0.200 by weight and is asked for 0.136" in shown
    assert any("makes a share below 1 smaller, not larger" in warning for warning in shown)
    assert "per-domain exponents: c has 0.150 by weight and is asked for 0.058" in shown


def test_records_in_two_domains_are_said(place):
    write(place / "b.jsonl", [*rows_of("b", 5), {"text": "a row 3"}])
    report, _ = run(place, spec_of(place, {"a": 1, "b": 1}, total={"rows": 10}))
    assert report.extra["shared_records"] == 1
    assert "1 records are in more than one domain" in report.extra["warnings"]


def test_quarantined_rows_are_counted_and_numbered_through(place):
    (place / "b.jsonl").write_text('{"text": "fine"}\n{broken\n{"text": ""}\n')
    report, rows = run(place, spec_of(place, {"a": 1, "b": 1}, total={"rows": 2}))
    assert report.body["quarantine"] == {"invalid_json": 1, "empty_text": 1}
    law(report)
    table = decisions.read(report.decisions_path).to_pylist()
    assert [d["row"] for d in table if d["action"] == "quarantine"] == [101, 102]
    assert all(d["reason"] == "not_drawn" for d in table if d["action"] == "remove")


def test_why_follows_a_row_through_a_mixture(place):
    report, rows = run(place, spec_of(place, {"a": 1, "b": 1}, total={"rows": 20}))
    catalog = Catalog.open(place / ".lpt")
    gone = decisions.read(report.decisions_path).to_pylist()[0]
    answer = why(catalog, f"{report.body['stage_id']}:{gone['row']}")
    assert (answer.fate, answer.steps[0].reason) == ("removed", "not_drawn")
    kept = next(i for i in range(100) if f"a row {i}" in {row["text"] for row in rows})
    answer = why(catalog, f"{report.body['stage_id']}:{kept}")
    assert answer.fate == "kept"
    assert any("out.jsonl" in note for note in answer.notes)


def test_a_note_of_what_was_decided_holds_the_order(tmp_path, place):
    joined = Joined([Dataset.open([str(place / f"{name}.jsonl")]) for name in "ab"])
    ids = np.ones((joined.rows_in, 32), np.uint8)
    order = Order(np.array([3, 1, 3]), pa.table({"copy": [0, 0, 1]}))
    pending.save(tmp_path / "note.npz", joined, StageResult(decisions.empty(), ids, {}, order=order))
    again = Joined([Dataset.open([str(place / f"{name}.jsonl")]) for name in "ab"])
    found = pending.load(tmp_path / "note.npz", again)
    assert found.order.rows.tolist() == [3, 1, 3]
    assert found.order.added.equals(order.added)
    assert (again.rows_in, again.first_rows) == (150, [0, 100])


def test_an_order_must_hold_every_kept_row_and_no_other():
    ids = np.ones((3, 32), np.uint8)
    for rows in ([0, 1], [0, 1, 2, 3]):
        order = Order(np.array(rows), pa.table({"copy": [0] * len(rows)}))
        with pytest.raises(LptError, match="not those that are kept"):
            check_conservation(3, StageResult(decisions.empty(), ids, order=order), [])
    order = Order(np.array([0, 1, 2]), pa.table({"copy": [0]}))
    with pytest.raises(LptError, match="the added columns of every row"):
        check_conservation(3, StageResult(decisions.empty(), ids, order=order), [])
    order = Order(np.array([2, 0, 1, 1]), pa.table({"copy": [0, 0, 0, 1]}))
    check_conservation(3, StageResult(decisions.empty(), ids, order=order), [])


def test_a_file_of_two_domains_and_a_domain_without_rows(place):
    body = {"domains": {n: {"inputs": "a.jsonl", "weight": 1} for n in "xy"}, "total": {"rows": 4}}
    with pytest.raises(BadInputError, match="belongs to two domains"):
        run(place, parse_spec(body, place))
    (place / "b.jsonl").write_text("")
    with pytest.raises(BadInputError, match=r"domain b: .*"):
        run(place, spec_of(place, {"a": 1, "b": 1}, total={"rows": 4}))


@pytest.mark.parametrize("name", ["general-chat", "maths", "code"])
def test_recipes_draw_from_the_data_they_are_given(place, name):
    spec = load_spec(f"lpt:{name}", {d: [str(place / f"{d}.jsonl")] for d in _domains(name)})
    for domain in spec.domains:
        turns = [{"role": "user", "content": domain.name}, {"role": "assistant", "content": "yes"}]
        write(
            place / f"{domain.name}.jsonl",
            [{"messages": [{"role": "system", "content": str(i)}, *turns]} for i in range(40)],
        )
    report, rows = run(place, spec)
    law(report)
    assert {row["domain"] for row in rows} == {domain.name for domain in spec.domains}
    if spec.replay_share is not None:
        assert sum(row["domain"] == "general" for row in rows) / len(rows) == pytest.approx(spec.replay_share, abs=0.01)


def _domains(name: str) -> list[str]:
    import yaml

    from lpt_data.mix_spec import _shipped

    return list(yaml.safe_load(_shipped()[f"lpt:{name}"].read_text())["domains"])
