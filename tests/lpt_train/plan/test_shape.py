"""Shapes from configs alone: parameters counted to the last one, the linear layers, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lpt_train.adapters import attach
from lpt_train.config import Lora
from lpt_train.plan.shape import TINY, read_shape, shape_of
from lpt_train.tiny import make_tiny
from manifests.errors import BadInputError

SMALL = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 130,
}  # fmt: skip


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("kind", "more"),
    [("llama", {}), ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}), ("mistral", {}),
     ("qwen2", {}), ("qwen3", {"head_dim": 8}), ("smollm3", {"pad_token_id": 0})],
)  # fmt: skip
def test_parameters_are_those_of_the_model_to_the_last_one(kind, more, tied):
    config = AutoConfig.for_model(kind, **SMALL, **more, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = shape_of(json.loads(config.to_json_string(use_diff=False)))
    sizes = [parameter.numel() for parameter in model.parameters()]
    assert shape.parameters == sum(sizes)
    assert sorted(size for size, _ in shape.tensors()) == sorted(sizes)
    assert [size for size, table in shape.tensors() if table] == [model.get_input_embeddings().weight.numel()]
    linear = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    assert shape.linear_parameters == sum(layer.weight.numel() for layer in linear)
    assert shape.active_parameters == sum(layer.weight.numel() for layer in linear) + 130 * 48 + (
        sum(sizes) - sum(p.numel() for p in model.parameters() if p.dim() == 2)
    )


@pytest.mark.parametrize(("targets", "dora"), [("all-linear", False), ("q_proj, v_proj", False), ("all-linear", True)])
def test_tensors_of_an_adapter_are_those_of_peft(targets, dora):
    config = AutoConfig.for_model("qwen2", **SMALL)
    options = Lora(lora_r=5, lora_target_modules=targets, use_dora=dora)
    model = attach(AutoModelForCausalLM.from_config(config), options)
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    assert sorted(shape_of(config.to_dict()).adapter_tensors(5, targets, dora=dora)) == sorted(sizes)


def test_two_models_by_their_published_counts():
    """SmolLM2-135M has 134,515,008 parameters, Qwen2.5-0.5B 494,032,768, 357,898,112 of them outside its vocabulary."""
    smol = shape_of({
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
    })  # fmt: skip
    qwen = shape_of({
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    })  # fmt: skip
    assert (smol.parameters, qwen.parameters) == (134_515_008, 494_032_768)
    assert qwen.parameters - qwen.embedding_parameters == 357_898_112
    assert (smol.kv_bytes_per_token(), qwen.kv_bytes_per_token()) == (23_040, 12_288)


def test_tiny_is_what_is_made(tmp_path):
    make_tiny(tmp_path / "tiny")
    assert read_shape(str(tmp_path / "tiny")) == read_shape("tiny") == shape_of(TINY)


def test_a_run_and_an_adapter_have_the_shape_of_their_model(tmp_path):
    make_tiny(tmp_path / "base", layers=3)
    folder = tmp_path / "run" / "checkpoints" / "step-000004"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    (folder / "state.json").write_text("{}")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "base")}))
    assert read_shape(str(tmp_path / "run")).layers == read_shape(str(folder)).layers == 3


@pytest.mark.parametrize(
    ("config", "seen"),
    [('{"model_type": "gpt2"}', "gpt2"), ('{"model_type": "qwen2"}', "num_attention_heads"), ("[]", "no object"),
     ('{"model_type": "llama", "num_local_experts": 8}', "llama"), ("{", "config.json")],
)  # fmt: skip
def test_what_is_not_known_is_refused(tmp_path, config, seen):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(BadInputError) as error:
        read_shape(str(tmp_path))
    assert seen in str(error.value.seen)
    with pytest.raises(BadInputError, match=r"no config\.json"):
        read_shape(str(tmp_path / "not there"))


def test_planning_loads_no_torch():
    code = "import sys; import lpt_train.plan.ladder, lpt_train.plan.shape; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "wrong",
    [{"hidden_size": -48}, {"hidden_size": "48"}, {"vocab_size": 130.5}, {"num_attention_heads": 0},
     {"num_attention_heads": True}, {"num_key_value_heads": 7}, {"num_hidden_layers": 10**6}, {"hidden_size": 10**12},
     {"head_dim": -8}, {"intermediate_size": None}, {"num_attention_heads": 96}],
)  # fmt: skip
def test_sizes_that_no_model_has_are_refused(wrong):
    with pytest.raises(BadInputError, match="does not tell the shape") as error:
        shape_of({"model_type": "llama", **SMALL, **wrong}, "a model")
    assert "a model" in str(error.value)
    assert error.value.next


def test_a_window_is_a_size_too():
    assert shape_of({"model_type": "mistral", **SMALL, "sliding_window": 64}).window == 64
    with pytest.raises(BadInputError, match="does not tell the shape"):
        shape_of({"model_type": "mistral", **SMALL, "sliding_window": -1})
