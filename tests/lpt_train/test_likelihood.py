"""Loss of records and log-probs of pairs against plain forward passes, one row at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest
import torch
from train_cases import chat, chats, preferences, write_jsonl

from lpt_train import likelihood as module
from lpt_train.admitted import load_unadmitted
from lpt_train.compare import compare
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.likelihood import likelihood, spoken_bytes
from lpt_train.measured import load_subject
from lpt_train.sft import train
from manifests.catalog import Catalog
from manifests.errors import RefusedError, UsageError
from manifests.sql import query


@pytest.fixture(scope="module")
def subject(tiny):
    return load_subject(str(tiny), merge=False)


def split_of(path, records, contract, **columns):
    split = load_unadmitted(write_jsonl(path, records), contract)
    table = split.table
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return type(split)(**{**split.__dict__, "table": table})


def plain_nll(subject, messages):
    encoded = subject.renderer.encode(messages)
    ids = torch.tensor([encoded.ids])
    with torch.no_grad():
        logp = torch.log_softmax(subject.model(ids).logits[0].double(), -1)
    return -sum(float(logp[at - 1, encoded.ids[at]]) for at, counts in enumerate(encoded.loss_mask) if counts)


def test_an_evaluation_says_which_template_rendered_it_and_compares_with_another(subject, tmp_path):
    split = split_of(tmp_path / "a.jsonl", chats(4), "sft")
    found = likelihood(subject, split)
    assert found.to_json()["template_sha256"] == subject.renderer.template_sha256
    other = replace(found, settings={**found.settings, "template_sha256": "0", "training_template": "trl/x"})
    assert compare(found, other)[0]["loss"].difference == 0
    text = likelihood(subject, split_of(tmp_path / "t.jsonl", [{"text": "a b"}, {"text": "c"}], "text"))
    assert "template_sha256" not in text.settings


def test_losses_are_those_of_each_row_alone(subject, tmp_path):
    records = chats(9)
    found = likelihood(subject, split_of(tmp_path / "a.jsonl", records, "sft"))
    expected = [plain_nll(subject, record["messages"]) for record in records]
    assert [item.nll for item in found.items] == pytest.approx(expected, rel=1e-4)
    tokens = sum(item.tokens for item in found.items)
    assert found.measure("loss").value == pytest.approx(sum(expected) / tokens, rel=1e-4)
    assert found.measure("perplexity").value == pytest.approx(math.exp(found.measure("loss").value))
    assert found.measure("perplexity").high == pytest.approx(math.exp(found.measure("loss").high))
    # byte-level: each byte is a token, and each turn has one token that is no byte, its stop
    assert tokens == sum(item.bytes for item in found.items) + 9
    bits = sum(expected) / math.log(2) / (tokens - 9)
    assert found.measure("bits_per_byte").value == pytest.approx(bits, rel=1e-4)
    assert found.measure("tokens").value == tokens


def test_order_and_batches_change_nothing(subject, tmp_path, monkeypatch):
    records = chats(12)
    found = likelihood(subject, split_of(tmp_path / "a.jsonl", records, "sft"))
    monkeypatch.setattr(module, "BATCH_TOKENS", 1)  # every row alone
    turned = likelihood(subject, split_of(tmp_path / "b.jsonl", records[::-1], "sft"))
    assert {i.record_id: round(i.nll, 3) for i in found.items} == {i.record_id: round(i.nll, 3) for i in turned.items}
    assert found.measure("loss").value == pytest.approx(turned.measure("loss").value, rel=1e-5)


def test_domains_are_told_apart_and_add_up(subject, tmp_path):
    split = split_of(tmp_path / "a.jsonl", chats(8), "sft", source=["x", "y"] * 4, web=[f"u{n}" for n in range(8)])
    found = likelihood(subject, split)
    of = {measure.domain: measure for measure in found.measures if measure.name == "loss"}
    assert set(of) == {"", "x", "y"}
    tokens = {measure.domain: measure.value for measure in found.measures if measure.name == "tokens"}
    assert tokens["x"] + tokens["y"] == tokens[""]
    assert of["x"].value * tokens["x"] + of["y"].value * tokens["y"] == pytest.approx(of[""].value * tokens[""])
    assert of["x"].n == of["y"].n == 4
    assert len({m.domain for m in likelihood(subject, split, domain_column="web").measures}) == 9
    with pytest.raises(UsageError, match="no such column"):
        likelihood(subject, split, domain_column="nothing")


def test_a_column_of_addresses_names_no_domains(subject, tmp_path, monkeypatch):
    monkeypatch.setattr("lpt_train.measured.MOST_DOMAINS", 3)
    split = split_of(tmp_path / "a.jsonl", chats(4), "sft", source=["a", "b", "c", "d"])
    found = likelihood(subject, split)
    assert {measure.domain for measure in found.measures} == {""}
    assert "4 values" in found.notes[0]
    with pytest.raises(UsageError, match="too many values"):
        likelihood(subject, split, domain_column="source")


def test_long_rows_are_left_out_and_told(subject, tmp_path):
    records = [*chats(3), {"messages": chat("say", "x" * 200)}]
    found = likelihood(subject, split_of(tmp_path / "a.jsonl", records, "sft"), max_length=120)
    assert (len(found.items), found.dropped) == (3, {"too_long": 1})
    assert found.notes == ("1 of 4 rows were dropped: too_long 1; a larger max_length keeps those that are too long",)


def test_text_counts_every_byte_but_no_prompt(subject, tmp_path):
    found = likelihood(subject, split_of(tmp_path / "t.jsonl", [{"text": "naïve"}, {"text": "plain words"}], "text"))
    assert sorted(item.bytes for item in found.items) == [6, 11]
    assert spoken_bytes({"messages": chat("éé", "é", "ask", "abc")}) == 5


def test_pairs_are_ordered_by_their_log_probs(subject, tmp_path):
    records = preferences(6)
    found = likelihood(subject, split_of(tmp_path / "p.jsonl", records, "preference"))
    for item, record in zip(found.items, records, strict=True):
        whole = [plain_nll(subject, [*record["prompt"], *record[side]]) for side in ("chosen", "rejected")]
        assert [-item.chosen, -item.rejected] == pytest.approx(whole, rel=1e-4)
    margins = [item.chosen - item.rejected for item in found.items]
    assert found.measure("margin").value == pytest.approx(sum(margins) / 6)
    assert found.measure("accuracy").value == sum(margin > 0 for margin in margins) / 6
    nll = -sum(item.rejected for item in found.items) / sum(item.rejected_tokens for item in found.items)
    assert found.measure("rejected_nll").value == pytest.approx(nll)
    swapped = [{**record, "chosen": record["rejected"], "rejected": record["chosen"]} for record in records]
    other = likelihood(subject, split_of(tmp_path / "q.jsonl", swapped, "preference"))
    assert other.measure("accuracy").value == pytest.approx(1 - found.measure("accuracy").value)
    paired, moved = compare(found, found)
    assert paired["margin"].difference == 0
    values = {measure.name: measure.value for measure in moved}
    assert values == {"reward_accuracy": 0.5, "reward_margin": 0.0, "logp_change": 0.0}


def test_a_trained_model_against_its_start(subject, tiny, tmp_path):
    """The evaluation agrees with the loop's own, is recorded with what it is of, and says what the training gained."""
    split = load_unadmitted(write_jsonl(tmp_path / "a.jsonl", chats(8)), "sft")
    catalog = Catalog.open(tmp_path / ".lpt")
    config = from_mapping(SFTConfig, {"model": str(tiny), "max_steps": 5, "learning_rate": 0.01, "lora_r": 4})
    run = train(config, split=split, eval_split=split, out=tmp_path / "run", catalog=catalog)
    trained = load_subject(str(tmp_path / "run"), merge=False)
    before, after = (likelihood(model, split, catalog=catalog) for model in (subject, trained))
    assert before.measure("loss").value == pytest.approx(run.body["metrics"]["eval_loss"][0], rel=1e-5)
    assert after.measure("loss").value == pytest.approx(run.body["metrics"]["eval_loss"][1], rel=1e-5)
    paired, _ = compare(before, after)
    assert paired["loss"].high < 0
    assert paired["loss"].gained == 8
    assert paired["bits_per_byte"].difference < 0
    body = catalog.get(after.object_id)
    assert body["model"]["made_from"]["run_id"] == run.run_id
    assert [item["record_id"] for item in body["items"]] == [item.record_id for item in after.items]
    rows = query(catalog, "SELECT measure, value, n, run_id FROM v_measure WHERE measure = 'loss' ORDER BY value").rows
    assert rows[0] == ("loss", pytest.approx(after.measure("loss").value), 8, run.run_id)
    assert len(rows) == 2


def test_other_items_and_other_kinds_do_not_compare(subject, tmp_path):
    first = likelihood(subject, split_of(tmp_path / "a.jsonl", chats(4), "sft"))
    with pytest.raises(UsageError, match="same items"):
        compare(first, likelihood(subject, split_of(tmp_path / "b.jsonl", chats(6)[2:], "sft")))
    with pytest.raises(UsageError, match="same way"):
        compare(first, likelihood(subject, split_of(tmp_path / "p.jsonl", preferences(4), "preference")))
    tasks = [{"prompt": chat("2+2?"), "answer": "4", "verifier": "integer"}]
    with pytest.raises(RefusedError, match="no text to be likely"):
        likelihood(subject, split_of(tmp_path / "r.jsonl", tasks, "rlvr"))


def test_n_rows_are_drawn_by_the_seed_alone(subject, tmp_path):
    split = split_of(tmp_path / "a.jsonl", chats(9), "sft", domain=list("abcabcabc"))
    every = {item.record_id: item.nll for item in likelihood(subject, split).items}
    found = likelihood(subject, split, n=4, seed=3)
    ids = [item.record_id for item in found.items]
    assert ids == [item.record_id for item in likelihood(subject, split, n=4, seed=3, max_length=9000).items]
    assert len(ids) == 4
    assert ids == sorted(ids, key=split.record_ids.index)
    assert [item.nll for item in found.items] == pytest.approx([every[name] for name in ids], rel=1e-4)
    assert found.to_json() | {"rows": 4, "seed": 3} == found.to_json()
    assert found.notes == ("4 of 9 rows, drawn by seed 3",)
    assert ids != [item.record_id for item in likelihood(subject, split, n=4, seed=4).items]
    with pytest.raises(UsageError, match="not so many items"):
        likelihood(subject, split, n=10)
