"""Exports: what others load gives the logits that were trained, or nothing is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from train_cases import admit_by_hand, chats, preferences, write_jsonl
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lpt_train import export as module
from lpt_train.adapter_folder import read_provenance
from lpt_train.admitted import load_split, load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.export import export
from lpt_train.logit_gap import drawn_rows, logit_gap, split_rows
from lpt_train.model_card import model_card
from lpt_train.models import load_adapter, load_model, load_tokenizer
from lpt_train.render import Renderer
from lpt_train.sft import train
from lpt_train.tiny import CHAT_TEMPLATE, make_tiny
from manifests.catalog import Catalog
from manifests.errors import BadInputError, RefusedError, UsageError

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])
VARIANTS = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "olora": {"init_lora_weights": "olora"},
}


def trained(model, split, out: Path, **options) -> Path:
    settings = {"model": str(model), "max_steps": 3, "learning_rate": 2e-2, "lora_r": 4, **options}
    train(from_mapping(SFTConfig, settings), split=split, out=out)
    return out


@pytest.fixture
def run(tiny, sft_split, tmp_path) -> Path:
    return trained(tiny, sft_split, tmp_path / "run")


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits.float()


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_merged_weights_load_without_us_and_give_the_same_logits(tiny, sft_split, tmp_path, options):
    run = trained(tiny, sft_split, tmp_path / "run", **options)
    made = export(str(run), tmp_path / "out", merge=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    wanted = logits(load_adapter(str(latest(run / "checkpoints"))))
    torch.testing.assert_close(logits(plain), wanted, atol=1e-4, rtol=0)
    assert (wanted - logits(load_model(str(tiny)))).abs().max() > 1e-2
    measured = made.body["measured"]
    assert measured["max_abs_logit"] < 1e-4
    assert measured["top1_agreement"] == 1.0
    assert 0 <= measured["mean_kl"] < 1e-6 < measured["adapter_effect"]["mean_kl"]
    assert (made.body["merged"], made.body["dtype"]) == (True, "float32")


def test_what_travels_along(run, tmp_path):
    made = export(str(run), tmp_path / "out", merge=True)
    out = made.path
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert GenerationConfig.from_pretrained(out).eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    with safe_open(out / "model.safetensors", "pt") as weights:  # tied: the head is written once and tied on loading
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp")]
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {(out / "lpt.json").stat().st_mode & 0o777}
    assert sorted(Path(file["path"]).name for file in made.body["outputs"]) == sorted(p.name for p in out.iterdir())


def test_the_stop_tokens_of_the_template_join_those_of_the_base(tiny, sft_split, tmp_path):
    base = shutil.copytree(tiny, tmp_path / "base")
    told = {"eos_token_id": 256, "temperature": 0.7, "do_sample": False}  # a contradiction that must not stop an export
    (base / "generation_config.json").write_text(json.dumps(told))
    out = export(str(trained(base, sft_split, tmp_path / "run")), tmp_path / "out", merge=True).path
    written = json.loads((out / "generation_config.json").read_text())
    assert written["eos_token_id"] == [256, 258]
    assert written["temperature"] == 0.7


def test_an_adapter_alone_loads_with_peft_over_its_base(tiny, run, tmp_path, monkeypatch):
    made = export(str(run), tmp_path / "out")
    checkpoint = latest(run / "checkpoints")
    assert (made.path / "adapter_model.safetensors").read_bytes() == (
        checkpoint / "adapter_model.safetensors"
    ).read_bytes()
    assert not (made.path / "model.safetensors").exists()
    monkeypatch.chdir("/")  # the base is found from anywhere
    base = json.loads((made.path / "adapter_config.json").read_text())["base_model_name_or_path"]
    over = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), made.path)
    torch.testing.assert_close(logits(over), logits(load_adapter(str(checkpoint))), atol=1e-5, rtol=0)
    assert made.body["measured"] is None
    assert "PeftModel" in (made.path / "README.md").read_text()
    assert made.body["base"]["digest"]


def test_the_mark_stays_and_the_origin_is_written(tiny, run, tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    made = export(str(run), tmp_path / "marked", merge=True, catalog=catalog)
    found = read_provenance(made.path)
    assert found["tainted"] is True
    assert found["export"]["measured"] == made.body["measured"]
    assert "not admitted" in (made.path / "README.md").read_text()
    assert any("not admitted" in note for note in made.notes)

    ref = admit_by_hand(catalog, "sft", {"train": chats(8)})
    split = load_split(f"{ref}:train", catalog=catalog)
    config = from_mapping(SFTConfig, {"model": str(tiny), "max_steps": 2, "learning_rate": 2e-2, "lora_r": 4})
    result = train(config, split=split, out=tmp_path / "clean", catalog=catalog)
    made = export(str(result.path), tmp_path / "good", merge=True, split=split, catalog=catalog)
    assert made.body["tainted"] is False
    assert made.body["measured"]["on"] == f"{ref}:train"
    assert catalog.get(made.object_id)["parents"] == [result.object_id]
    # What is made from a marked export is marked, too.
    child = train(
        from_mapping(SFTConfig, {"model": str(tmp_path / "marked"), "max_steps": 1}), split=split, out=tmp_path / "c"
    )
    assert child.body["tainted"] is True


def test_rounding_that_eats_the_adapter_is_refused_unless_stated(tiny, sft_split, tmp_path):
    """A tiny change of weights is lost in bfloat16: what is written would be the base."""
    run = trained(tiny, sft_split, tmp_path / "run", learning_rate=1e-5)
    with pytest.raises(RefusedError, match="is not the model that was trained") as error:
        export(str(run), tmp_path / "out", merge=True, dtype="bfloat16")
    assert "--tolerance" in error.value.next
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp")]
    stated = float(error.value.next.rpartition("--tolerance ")[2].split()[0])
    made = export(str(run), tmp_path / "out", merge=True, dtype="bfloat16", tolerance=stated)
    assert made.body["measured"]["limit_stated"] is True
    assert made.body["measured"]["mean_kl"] > made.body["measured"]["adapter_effect"]["mean_kl"] * 0.05
    assert load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"].dtype is torch.bfloat16
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype is torch.bfloat16


def test_auto_is_the_precision_of_the_base(tiny, sft_split, tmp_path):
    base = make_tiny(tmp_path / "base", hidden=32, layers=2, heads=2)
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    run = trained(base, sft_split, tmp_path / "run", learning_rate=5e-2, max_steps=6)
    made = export(str(run), tmp_path / "out", merge=True)
    assert made.body["dtype"] == "bfloat16"


def test_a_quantised_base_is_decoded_before_merging(tiny, sft_split, tmp_path):
    pytest.importorskip("bitsandbytes")
    run = trained(tiny, sft_split, tmp_path / "run", load_in_4bit=True)
    made = export(str(run), tmp_path / "out", merge=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    wanted = logits(load_adapter(str(latest(run / "checkpoints"))))
    torch.testing.assert_close(logits(plain), wanted, atol=1e-4, rtol=0)
    over_original = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), latest(run / "checkpoints"))
    assert (logits(over_original) - wanted).abs().max() > 1e-2
    assert made.body["quantisation"]["quant_type"] == "nf4"
    assert any("codes" in note for note in made.notes)
    alone = export(str(run), tmp_path / "alone")
    assert any("four bits" in note for note in alone.notes)
    told: dict = {}
    card = (
        (alone.path / "README.md")
        .read_text()
        .split("```python\n")[1]
        .split("```")[0]
        .replace('"."', repr(str(alone.path)))
    )
    exec(card, told)  # what the card says loads the trained model
    for part in told["model"].modules():
        part.support_avx512bf16_for_cpu = False  # bitsandbytes cannot repack widths below 64
    torch.testing.assert_close(logits(told["model"]), wanted, atol=1e-3, rtol=0)


def test_weights_that_trained_whole_are_exported_as_they_are(tiny, sft_split, tmp_path):
    run = trained(tiny, sft_split, tmp_path / "run", use_peft=False, learning_rate=1e-3)
    with pytest.raises(UsageError, match="no adapter to merge"):
        export(str(run), tmp_path / "out", merge=True)
    made = export(str(run), tmp_path / "out")
    assert made.body["measured"]["max_abs_logit"] == 0.0
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(logits(plain), logits(load_model(str(latest(run / "checkpoints")))))


def test_an_adapter_over_an_adapter_goes_merged_alone(tiny, sft_split, run, tmp_path):
    over = trained(run, sft_split, tmp_path / "over")
    with pytest.raises(UsageError, match="another adapter"):
        export(str(over), tmp_path / "out")
    out = export(str(over), tmp_path / "out", merge=True).path
    plain = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    torch.testing.assert_close(logits(plain), logits(load_model(str(latest(over / "checkpoints")))), atol=1e-4, rtol=0)


@pytest.mark.parametrize("options", [{"lora_modules_to_save": "lm_head"}, {"lora_target_modules": "attention,lm_head"}])
def test_a_head_of_its_own_is_merged_and_stays_apart(tiny, sft_split, tmp_path, options):
    base = shutil.copytree(tiny, tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.save_pretrained(base)
    run = trained(base, sft_split, tmp_path / "run", **options)
    out = export(str(run), tmp_path / "out", merge=True).path
    plain = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    wanted = logits(load_adapter(str(latest(run / "checkpoints"))))
    torch.testing.assert_close(logits(plain), wanted, atol=1e-4, rtol=0)
    assert not torch.equal(plain.lm_head.weight, model.lm_head.weight)
    assert torch.equal(plain.get_input_embeddings().weight, model.get_input_embeddings().weight)


def test_names_cannot_write_into_the_card(run, tmp_path):
    body = export(str(run), tmp_path / "out").body
    hostile = 'a\n---\n# no | `x` "q'
    text = model_card({**body, "base": {"name": hostile}, "split": hostile, "run_id": hostile}, hostile)
    head = text.split("\n---\n")[0].removeprefix("---\n")
    assert yaml.safe_load(head) == {"base_model": hostile, "library_name": "peft", "tags": ["lpt"]}
    assert [line for line in text.splitlines() if line.startswith("#")] == ["# a --- # no / 'x' \"q"]


def test_nothing_half_written_is_left(run, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_generation", fail)
    with pytest.raises(BadInputError, match="out"):
        export(str(run), tmp_path / "out", merge=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name not in (".lpt",)) == ["chats.jsonl", "run"]


def test_bad_input(tiny, run, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").write_text("x")
    for source, out, options, what in [
        (str(tmp_path / "none"), "o", {}, "no run or folder"),
        ("tiny", "o", {}, "no run or folder"),
        (str(run), "taken", {}, "is taken"),
        (str(run), "o", {"dtype": "bfloat16"}, "as it was trained"),
        (str(run), "o", {"merge": True, "dtype": "int8"}, "dtype has no choice"),
        (str(run), "o", {"merge": True, "tolerance": float("nan")}, "too small"),
    ]:
        with pytest.raises((BadInputError, UsageError), match=what):
            export(source, tmp_path / out, **options)
    reward = tmp_path / "reward"
    reward.mkdir()
    (reward / "adapter_config.json").write_text('{"base_model_name_or_path": "x", "task_type": "SEQ_CLS"}')
    for options in (
        {"dtype": "bfloat16"},
        {"tolerance": 0.1},
        {"split": load_unadmitted(tmp_path / "chats.jsonl", "sft")},
    ):
        with pytest.raises(UsageError, match="a reward model is written in float32"):
            export(str(reward), tmp_path / "o", **options)
    checkpoint = latest(run / "checkpoints")
    weights = load_file(checkpoint / "adapter_model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, checkpoint / "adapter_model.safetensors")
    with pytest.raises(BadInputError, match="damaged"):
        export(str(run), tmp_path / "o", merge=True)


def test_a_gap_by_hand():
    """Two positions, two words: log-odds 0 and ln 3 against 0 and 0."""
    first = [torch.tensor([[0.0, 0.0], [0.0, float(np.log(3))]])]
    second = [torch.tensor([[0.0, 0.0], [0.0, 0.0]])]
    gap = logit_gap(first, second)
    kl = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    assert gap.max_kl == pytest.approx(kl)
    assert gap.mean_kl == pytest.approx(kl / 2)
    assert (gap.max_abs_logit, gap.mean_abs_logit) == (pytest.approx(np.log(3)), pytest.approx(np.log(3) / 4))
    assert gap.top1_agreement == 0.5
    assert logit_gap(first, first).mean_kl == 0


def test_rows_to_measure_on(tiny, tmp_path, renderer):
    assert [rows.tolist() for rows in drawn_rows(100, 1)] == [rows.tolist() for rows in drawn_rows(100, 1)]
    assert [rows.tolist() for rows in drawn_rows(100, 1)] != [rows.tolist() for rows in drawn_rows(100, 2)]
    pairs = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(4)), "preference")
    assert len(split_rows(pairs, renderer)) == 4
    rlvr = load_unadmitted(
        write_jsonl(tmp_path / "rlvr.jsonl", [{"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}]), "rlvr"
    )
    with pytest.raises(RefusedError, match="end in an answer"):
        split_rows(rlvr, Renderer(load_tokenizer(str(tiny))))


@pytest.mark.parametrize("text", ["{", "[]", "null", '"done"'])
@pytest.mark.parametrize("name", ["run.json", "generation_config.json"])
def test_a_damaged_file_beside_the_weights_is_told(tiny, sft_split, tmp_path, name, text):
    base = shutil.copytree(tiny, tmp_path / "base")
    run = trained(base, sft_split, tmp_path / "run")
    ((run if name == "run.json" else base) / name).write_text(text)
    with pytest.raises(BadInputError, match="cannot be read") as error:
        export(str(run), tmp_path / "out")
    assert name in str(error.value)
    assert error.value.next
    assert not (tmp_path / "out").exists()
