"""A base in four bits: codes and scales against a slow reference, training, resume, reading back, references."""

from __future__ import annotations

import statistics
import sys

import numpy as np
import pytest
import torch
from train_cases import preferences, reference_of, write_jsonl
from transformers import GPT2Config, GPT2LMHeadModel

from lpt_train.adapter_folder import quantisation_of
from lpt_train.adapters import load_for_training, parameter_report
from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_lora import Lora
from lpt_train.config_preference import PreferenceConfig
from lpt_train.models import load_adapter, load_model, model_digest, placement
from lpt_train.preference import train as train_preference
from lpt_train.quantised import quantisation_record, rounded_to_4bit
from lpt_train.sft import train
from manifests.errors import RefusedError, UsageError

bitsandbytes = pytest.importorskip("bitsandbytes")
functional = bitsandbytes.functional
IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])
FOUR = {"load_in_4bit": True, "lora_r": 4}


def nf4_codes() -> np.ndarray:
    """Dettmers et al. 2023, equation 4, in the form with an exact zero: quantiles of a normal distribution at evenly
    spaced probabilities, eight of them above zero and seven below, scaled to [-1, 1]."""
    normal, last = statistics.NormalDist(), 0.9677083  # the mean of 1 - 1/30 and 1 - 1/32
    above = [normal.inv_cdf(p) for p in np.linspace(last, 0.5, 9)[:-1]]
    below = [-normal.inv_cdf(p) for p in np.linspace(last, 0.5, 8)[:-1]]
    codes = np.sort(np.array([*below, 0.0, *above]))
    return codes / np.abs(codes).max()


def slow_nf4(weights: np.ndarray, block: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """The nearest code of each weight and the weight that it stands for, one block at a time."""
    codes, flat = nf4_codes(), weights.reshape(-1)
    index, values = np.zeros(flat.size, np.int64), np.zeros(flat.size)
    for start in range(0, flat.size, block):
        part = flat[start : start + block].astype(np.float64)
        scale = np.abs(part).max()
        index[start : start + block] = [int(np.argmin(np.abs(codes - (x / scale if scale else 0.0)))) for x in part]
        values[start : start + block] = codes[index[start : start + block]] * scale
    return index, values.reshape(weights.shape)


@pytest.mark.parametrize("shape", [(16, 64), (5, 24), (3, 130)])  # the last two leave a block that is not full
def test_codes_and_weights_are_those_of_the_slow_reference(shape):
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    packed, state = functional.quantize_4bit(weights, blocksize=64, quant_type="nf4")
    np.testing.assert_allclose(state.code.numpy(), nf4_codes(), atol=1e-6)
    index, values = slow_nf4(weights.numpy())
    ours = packed.numpy().reshape(-1)
    unpacked = np.stack([ours >> 4, ours & 15], 1).reshape(-1)[: index.size]
    np.testing.assert_array_equal(unpacked, index)
    np.testing.assert_allclose(functional.dequantize_4bit(packed, state).numpy(), values, atol=1e-6)


def test_no_weight_is_further_from_its_code_than_half_of_the_widest_gap():
    weights = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    scales = weights.reshape(-1, 64).abs().amax(1)
    half = np.diff(nf4_codes()).max() / 2
    for nested, slack in ((False, 1e-6), (True, 0.05)):  # 8-bit scales are right to a few per cent
        packed, state = functional.quantize_4bit(weights, blocksize=64, quant_type="nf4", compress_statistics=nested)
        error = (functional.dequantize_4bit(packed, state) - weights).reshape(-1, 64).abs().amax(1)
        assert bool((error <= scales * (half + slack)).all())


@pytest.mark.parametrize("options", [{}, {"use_bnb_nested_quant": True}, {"bnb_4bit_quant_type": "fp4"}], ids=str)
def test_the_quantised_model_is_the_model_of_the_rounded_weights(tiny, options):
    lora = Lora(**FOUR, **options)
    model = load_for_training(str(tiny), lora, placement("cpu")).eval()
    kinds = {type(m).__name__ for m in model.modules()}
    assert "Linear4bit" in kinds
    head = model.get_base_model().get_output_embeddings()
    assert type(head) is torch.nn.Linear
    assert head.weight is model.get_base_model().get_input_embeddings().weight
    record = quantisation_record({**lora.__dict__}, "float32")
    rounded = rounded_to_4bit(load_model(str(tiny)), record)
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, rounded(IDS).logits, atol=1e-4, rtol=0)
        assert (rounded(IDS).logits - load_model(str(tiny))(IDS).logits).abs().max() > 1e-2


def test_the_report_counts_weights_and_not_bytes_of_codes(tiny):
    plain = parameter_report(load_for_training(str(tiny), Lora(lora_r=4), placement("cpu")))
    four = parameter_report(load_for_training(str(tiny), Lora(**FOUR), placement("cpu")))
    assert four["parameters"] == plain["parameters"]
    linear = 2 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 96)  # q, o; k, v; gate, up, down; of two layers
    saved = plain["frozen_bytes"] - four["frozen_bytes"]
    assert saved == linear * 4 - (linear // 2 + linear // 64 * 4)  # half a byte a weight, four bytes a block


@pytest.mark.parametrize("options", [{}, {"use_dora": True, "use_bnb_nested_quant": True}], ids=str)
def test_it_trains_resumes_bit_for_bit_and_reads_back_as_trained(tiny, sft_split, tmp_path, options):
    settings = {
        "model": str(tiny), "max_steps": 4, "learning_rate": 1e-2, "lr_scheduler_type": "constant", **FOUR, **options,
    }  # fmt: skip
    whole = train(from_mapping(SFTConfig, settings), split=sft_split, out=tmp_path / "whole")
    assert whole.body["proof"]["verdict"] == "effective"
    assert whole.body["proof"]["frozen_unchanged"]
    assert whole.body["metrics"]["loss"][1] < whole.body["metrics"]["loss"][0]
    assert whole.body["model"]["digest"] == model_digest(tiny)
    wanted = {
        "method": "bitsandbytes", "bits": 4, "quant_type": "nf4", "nested": bool(options), "block": 64,
        "compute_dtype": "float32",
    }  # fmt: skip
    assert whole.body["model"]["quantisation"] == wanted
    folder = latest(tmp_path / "whole" / "checkpoints")
    assert quantisation_of(folder) == wanted

    half = settings | {"max_steps": 2}
    train(from_mapping(SFTConfig, half), split=sft_split, out=tmp_path / "halves")
    train(from_mapping(SFTConfig, settings), split=sft_split, out=tmp_path / "halves", resume=True)
    other = latest(tmp_path / "halves" / "checkpoints")
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()

    again = load_for_training(str(tiny), from_mapping(SFTConfig, settings).lora, placement("cpu"))
    from lpt_train.adapter_files import read_adapter

    read_adapter(again, folder)
    with torch.no_grad():
        trained = again.eval()(IDS).logits
        torch.testing.assert_close(load_adapter(str(folder))(IDS).logits, trained, atol=2e-4, rtol=0)
        torch.testing.assert_close(load_model(str(folder))(IDS).logits, trained, atol=2e-4, rtol=0)
        (folder / "lpt.json").unlink()  # what a reader does that does not know of the codes
        assert (load_model(str(folder))(IDS).logits - trained).abs().max() > 1e-2


def test_the_reference_policy_is_the_quantised_base(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(8)), "preference")
    found = {}
    for name, options in (("plain", {"lora_r": 4}), ("four", FOUR)):
        settings = {"model": str(tiny), "max_steps": 2, "learning_rate": 1e-2, **options}
        body = train_preference(from_mapping(PreferenceConfig, settings), split=split, out=tmp_path / name).body
        assert body["metrics"]["rewards/margins"][0] == pytest.approx(0, abs=1e-4)
        found[name] = torch.tensor(reference_of(body, tmp_path))
    assert (found["plain"] - found["four"]).abs().max() > 1e-3


def test_an_adapter_over_a_quantised_one_takes_what_that_was_trained_over(tiny, sft_split, tmp_path):
    settings = {"model": str(tiny), "max_steps": 2, "learning_rate": 1e-2, **FOUR}
    train(from_mapping(SFTConfig, settings), split=sft_split, out=tmp_path / "one")
    second = settings | {"model": str(tmp_path / "one"), "load_in_4bit": False}
    result = train(from_mapping(SFTConfig, second), split=sft_split, out=tmp_path / "two")
    assert result.body["model"]["quantisation"] is None
    first = load_model(str(latest(tmp_path / "one" / "checkpoints")))
    start = load_for_training(str(latest(tmp_path / "one" / "checkpoints")), Lora(lora_r=4), placement("cpu")).eval()
    with torch.no_grad():
        torch.testing.assert_close(start(IDS).logits, first(IDS).logits, atol=1e-5, rtol=0)


def test_without_the_package_the_error_says_what_to_install(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UsageError, match="bitsandbytes") as error:
        load_for_training(str(tiny), Lora(**FOUR), placement("cpu"))
    assert "pip install" in error.value.next


def test_a_model_that_would_hardly_get_smaller_is_refused():
    from lpt_train.quantised import quantise

    convolutions = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40))
    with pytest.raises(RefusedError, match="in no linear layer") as error:
        quantise(convolutions, Lora(**FOUR), dtype=torch.float32, device=torch.device("cpu"))
    assert "0 of" in error.value.seen


def test_a_base_that_is_quantised_already_is_refused(tiny):
    from lpt_train.quantised import quantise

    model = load_model(str(tiny))
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(RefusedError, match="quantised already"):
        quantise(model, Lora(**FOUR), dtype=torch.float32, device=torch.device("cpu"))
