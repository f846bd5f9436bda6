"""Loading: what is made on the spot, what is refused, and what a digest is of."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lpt_train import models
from lpt_train.adapters import attach
from lpt_train.config import Lora
from lpt_train.models import (
    adapter_base,
    check_vocabulary,
    load_model,
    load_tokenizer,
    model_digest,
    pad_id,
    placement,
    resolve,
)
from lpt_train.plan.shape import read_shape
from lpt_train.reward_model import load_reward_model
from lpt_train.tiny import PAD, START, STOP, byte_tokenizer, make_tiny
from manifests.errors import BadInputError, RefusedError, UsageError


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tiny_is_the_same_bytes_for_a_seed_and_leaves_the_generator_alone(tiny, tmp_path):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    again = make_tiny(tmp_path / "again", hidden=32, layers=2, heads=2, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert files(again) == files(tiny)
    other = make_tiny(tmp_path / "other", hidden=32, layers=2, heads=2, seed=1)
    assert (other / "model.safetensors").read_bytes() != (tiny / "model.safetensors").read_bytes()
    assert (other / "tokenizer.json").read_bytes() == (tiny / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("text", ["plain", "naïve — 日本 🙂\r\n\t\0", "e\u0301 is not é", "  a  "])
def test_the_tiny_tokenizer_takes_any_text_byte_by_byte(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_the_tiny_specials_are_distinct():
    tokenizer = byte_tokenizer()
    assert [tokenizer.convert_tokens_to_ids(token) for token in (PAD, START, STOP)] == [256, 257, 258]
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token) == (PAD, STOP, None)


def test_resolve_makes_tiny_once(tmp_path):
    path = resolve("tiny", tmp_path, seed=3)
    before = (Path(path) / "model.safetensors").stat().st_mtime_ns
    assert resolve("tiny", tmp_path, seed=3) == path
    assert (Path(path) / "model.safetensors").stat().st_mtime_ns == before
    assert resolve("org/name", tmp_path) == "org/name"


def test_pickled_weights_are_refused(tiny, tmp_path):
    pickled = shutil.copytree(tiny, tmp_path / "pickled")
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(BadInputError, match="pickles, which are programs") as error:
        load_model(str(pickled))
    assert "pytorch_model.bin" in str(error.value)


def test_remote_code_stays_off(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "remote")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "their_own", "auto_map": {"AutoConfig": "c.C", "AutoModelForCausalLM": "c.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "c.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\nclass M: pass\n")
    with pytest.raises(BadInputError):
        load_model(str(folder))
    assert not (tmp_path / "ran").exists()


def test_weights_that_are_not_finite_are_refused(tiny, tmp_path):
    broken = shutil.copytree(tiny, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInputError, match="not finite") as error:
        load_model(str(broken))
    assert "model.norm.weight" in str(error.value)


def _changed(tiny: Path, folder: Path, change) -> Path:
    shutil.copytree(tiny, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_weights_that_are_missing_are_not_made_up(tiny, tmp_path):
    gone = "model.layers.1.mlp.up_proj.weight"
    folder = _changed(tiny, tmp_path / "less", lambda weights: weights.pop(gone))
    with pytest.raises(BadInputError, match="not those that its configuration describes") as error:
        load_model(str(folder))
    assert f"1 missing: {gone}" in str(error.value)


def test_a_head_that_the_config_says_is_not_the_embedding_has_to_be_there(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "untied")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(BadInputError, match="configuration describes") as error:
        load_model(str(folder))
    assert "lm_head.weight" in str(error.value)


def test_weights_of_another_shape_or_of_more_layers_are_refused(tiny, tmp_path):
    name = "model.layers.0.self_attn.q_proj.weight"
    narrow = _changed(tiny, tmp_path / "narrow", lambda w: w.update({name: w[name][:, :16].clone()}))
    with pytest.raises(BadInputError, match="configuration describes") as error:
        load_model(str(narrow))
    assert f"1 of another shape: {name}" in str(error.value)
    more = _changed(tiny, tmp_path / "more", lambda w: w.update({"model.layers.2.norm.weight": torch.ones(2)}))
    with pytest.raises(BadInputError, match="configuration describes") as error:
        load_model(str(more))
    assert "1 without a place in the model: model.layers.2.norm.weight" in str(error.value)


def test_a_head_of_another_task_beside_the_decoder_is_left(tiny, tmp_path):
    valued = _changed(tiny, tmp_path / "valued", lambda w: w.update({"v_head.summary.weight": torch.ones(1, 32)}))
    load_model(str(valued))


@pytest.mark.parametrize("change", ["less", "more"])
def test_an_adapter_with_other_tensors_than_it_says_is_refused(tiny, tmp_path, change):
    attach(load_model(str(tiny)), Lora(lora_r=4)).save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(path)
    name = sorted(weights)[0]
    tensor = weights[name] if change == "more" else weights.pop(name)
    if change == "more":
        weights[name.replace("layers.0", "layers.7")] = tensor.clone()
    save_file(weights, path)
    with pytest.raises(BadInputError, match="configuration describes") as error:
        load_model(str(tmp_path / "adapter"))
    assert "layers.7" in str(error.value) if change == "more" else name in str(error.value)


def test_a_folder_without_its_tokenizer_is_refused_and_none_is_made_up(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "mute")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadInputError, match="no vocabulary"):
        load_tokenizer(str(folder))


@pytest.fixture
def no_hub(monkeypatch):
    """Whoever looks for a host fails the test."""

    def looked(host, *_, **__):
        raise AssertionError(f"{host} is asked")

    monkeypatch.setattr(socket, "getaddrinfo", looked)


@pytest.mark.parametrize("load", [load_model, load_tokenizer, load_reward_model])
@pytest.mark.parametrize("model", ["/no/such/folder", "./none", "a/b/c", "missing.gguf"])
def test_a_model_that_is_not_there_is_bad_input(model, load, no_hub):
    with pytest.raises(BadInputError) as error:
        load(model)
    assert error.value.next


def test_a_mistyped_folder_beside_others_is_not_looked_for_on_the_hub(tmp_path, monkeypatch, no_hub):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    for load in (load_model, load_tokenizer, load_reward_model):
        with pytest.raises(BadInputError, match="no such model folder"):
            load("runs/sftt")


def test_a_pickled_adapter_over_good_weights_is_refused(tiny, tmp_path):
    attach(load_model(str(tiny)), Lora(lora_r=4)).save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(weights), weights.with_suffix(".bin"))
    weights.unlink()
    with pytest.raises(BadInputError, match="pickles, which are programs"):
        load_model(str(tmp_path / "adapter"))


def test_a_folder_without_a_model_is_bad_input(tmp_path):
    with pytest.raises(BadInputError, match="holds no model"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_too_large_for_the_model_is_refused(tiny):
    tokenizer = byte_tokenizer()
    check_vocabulary(load_model(str(tiny)), tokenizer)
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(RefusedError, match="not this model's"):
        check_vocabulary(load_model(str(tiny)), tokenizer)


def test_the_digest_is_of_config_and_weights(tiny, tmp_path):
    copy = shutil.copytree(tiny, tmp_path / "copy")
    (copy / "README.md").write_text("words")
    save_file({"x": torch.zeros(1)}, copy / "optimizer.safetensors")
    assert model_digest(copy) == model_digest(tiny)
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"] += 1e-3
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert model_digest(copy) != model_digest(tiny)


def test_an_adapter_folder_is_its_base_with_the_adapter_merged(tiny, tmp_path):
    trained = attach(load_model(str(tiny)), Lora(lora_r=4))
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    trained.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    merged = load_model(str(tmp_path / "adapter"))
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, trained.eval()(ids).logits, atol=1e-5, rtol=0)
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]
    assert load_tokenizer(str(tmp_path / "adapter")).eos_token == STOP
    assert model_digest(tmp_path / "adapter") != model_digest(tiny)


def test_an_adapter_finds_the_tiny_model_of_its_run_where_the_run_is_now(tmp_path, monkeypatch):
    made = make_tiny(tmp_path / "run" / "tiny", hidden=32, layers=1, heads=2)
    monkeypatch.chdir(tmp_path)
    adapter = tmp_path / "run" / "checkpoints" / "step-000001"
    attach(load_model("run/tiny"), Lora(lora_r=2)).save_pretrained(adapter, save_embedding_layers=False)
    (tmp_path / "run").rename(tmp_path / "moved")
    load_model(str(tmp_path / "moved" / "checkpoints" / "step-000001"))
    assert not made.exists()


@pytest.mark.parametrize("text", ["{broken", "[]", "{}", '{"base_model_name_or_path": null}'])
def test_an_adapter_that_names_no_base_is_bad_input(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    for load in (load_model, load_tokenizer):
        with pytest.raises(BadInputError, match="does not say what it was trained on"):
            load(str(tmp_path))


def test_an_adapter_over_other_weights_than_it_was_trained_over_is_refused(tiny, tmp_path):
    base = _changed(tiny, tmp_path / "base", lambda weights: None)
    adapter = tmp_path / "adapter"
    attach(load_model(str(base)), Lora(lora_r=2)).save_pretrained(adapter, save_embedding_layers=False)
    (adapter / "lpt.json").write_text(json.dumps({"model": {"name": str(base), "digest": model_digest(base)}}))
    load_model(str(adapter))
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RefusedError, match="not those that it was trained over"):
        load_model(str(adapter))


def test_the_base_of_an_adapter_is_read_once_for_its_digests_and_again_when_it_changed(tiny, tmp_path, monkeypatch):
    base = Path(shutil.copytree(tiny, tmp_path / "base"))
    adapter = tmp_path / "adapter"
    attach(load_model(str(base)), Lora(lora_r=2)).save_pretrained(adapter)
    time.sleep(1.1)  # what was written within the last second is read anew each time
    (adapter / "lpt.json").write_text(json.dumps({"model": {"name": str(base), "digest": model_digest(base)}}))
    read, real = [], hashlib.file_digest

    def counted(handle, name):
        read.append(handle.name)
        return real(handle, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    weights = base / "model.safetensors"
    models._hashed.clear()
    load_model(str(adapter))
    digest = model_digest(adapter)
    assert read.count(str(weights)) == 1
    told, data = weights.stat(), weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(weights, ns=(told.st_atime_ns, told.st_mtime_ns))  # of the same size and age, as after `rsync --times`
    assert model_digest(adapter) != digest
    with pytest.raises(RefusedError, match="not those that it was trained over"):
        load_model(str(adapter))
    assert read.count(str(weights)) == 3  # changed a moment ago: not remembered


def test_adapters_that_are_each_others_base_are_bad_input(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, base in ((one, other), (other, one)):
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    for load in (load_model, load_tokenizer, model_digest, read_shape):
        with pytest.raises(BadInputError, match="its own base"):
            load(str(one))


def test_an_adapter_may_lie_just_below_the_root(monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda self: self.name == "adapter_config.json")
    monkeypatch.setattr(Path, "read_text", lambda self, **_: '{"base_model_name_or_path": "org/base"}')
    assert adapter_base("/adapter") == "org/base"


def test_the_folder_is_an_ordinary_one(tiny):
    assert AutoModelForCausalLM.from_pretrained(tiny).config.model_type == "qwen2"


def test_padding_is_any_id(tokenizer):
    assert pad_id(tokenizer) == 256
    bare = byte_tokenizer()
    bare.pad_token = None
    assert pad_id(bare) == bare.eos_token_id


def test_placement():
    assert placement("cpu").dtype is torch.float32
    assert placement("cpu", "bfloat16").dtype is torch.bfloat16
    with pytest.raises(UsageError, match="loss scaling"):
        placement("cpu", "float16")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no CUDA"):
            placement("cuda")
