"""Options: names, types, refusals. Importing them loads no tensor library."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from lpt_train.algorithms import ALGORITHMS, config_of
from lpt_train.config import (
    OPTIMIZERS,
    Lora,
    Optim,
    RunOptions,
    SFTConfig,
    described,
    flattened,
    from_mapping,
    option_names,
    to_mapping,
)
from lpt_train.habits import NAMES
from manifests.errors import UsageError


def test_importing_the_options_loads_no_tensor_library():
    code = "import sys, lpt_train.config; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_bare_dotted_and_nested_names_are_the_same_option():
    for options in ({"learning_rate": 0.5}, {"optim.learning_rate": "0.5"}, {"optim": {"learning_rate": 0.5}}):
        assert from_mapping(SFTConfig, options) == SFTConfig(optim=Optim(learning_rate=0.5))


def test_blocks_are_opened_by_their_dotted_names():
    assert flattened({"a": 1, "b": {"c": 2, "d": {"e": None}}, "f": {}}) == {"a": 1, "b.c": 2, "b.d.e": None}
    made = SFTConfig(optim=Optim(learning_rate=0.5))
    assert from_mapping(SFTConfig, flattened(to_mapping(made))) == made


def test_text_becomes_the_type_of_the_field():
    made = from_mapping(SFTConfig, {"packing": "true", "max_steps": "1e2", "lora_dropout": "0", "model": "7"})
    assert (made.packing, made.run.max_steps, made.lora.lora_dropout, made.model) == (True, 100, 0.0, "7")


def test_a_seed_keeps_all_its_digits():
    assert from_mapping(SFTConfig, {"seed": "9007199254740993"}).run.seed == 2**53 + 1


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": "many"},
        {"max_steps": 1.5},
        {"packing": "maybe"},
        {"packing": 1},
        {"learning_rate": True},
        {"learning_rate": float("nan")},
        {"learning_rate": -1},
        {"model": 3},
        {"dtype": "float8"},
        {"truncation": "middle"},
        {"max_steps": 0},
        {"seed": -1},
        {"seed": "1e300"},
        {"learning_rate": "inf"},
        {"num_train_epochs": "inf"},
        {"weight_decay": "nan"},
        {"adam_beta1": 5},
        {"adam_beta2": "nan"},
        {"adam_epsilon": -1},
        {"num_train_epochs": 0},
        {"num_train_epochs": "nan", "max_steps": 5},
        {"num_train_epochs": -1, "max_steps": 5},
        {"lora_r": 0},
        {"lora_dropout": 1},
        {"per_device_train_batch_size": 0},
    ],
)
def test_wrong_values_are_usage_errors(options):
    with pytest.raises(UsageError) as error:
        from_mapping(SFTConfig, options)
    assert error.value.exit_code == 2
    assert error.value.next


@pytest.mark.parametrize(
    ("algorithm", "option", "typed", "advice"),
    [
        ("sft", "device", "gpu", "did you mean cuda? one of: auto, cpu, cuda"),
        ("sft", "device", "xyz", "one of: auto, cpu, cuda"),
        ("sft", "optim", "adamw", f"did you mean adamw_torch? one of: {', '.join(OPTIMIZERS)}"),
        ("sft", "dtype", "bf16", "did you mean bfloat16? one of: auto, float32, bfloat16"),
        ("dpo", "loss_type", "dpo", "did you mean sigmoid? one of: sigmoid, robust, hinge, ipo"),
        ("sft", "truncation", "kep_start", "did you mean keep_start? one of: drop, keep_start"),
        ("sft", "gradient_checkpointing", "maybe", "one of: auto, true, false"),
    ],
)
def test_a_value_that_is_no_choice_is_answered_with_what_was_meant_and_every_choice(algorithm, option, typed, advice):
    with pytest.raises(UsageError, match=f"{option} has no choice of that name") as error:
        config_of(algorithm, {option: typed})
    assert error.value.next == advice


@pytest.mark.parametrize("name", ["learnin_rate", "optim.learnin_rate", "run.learning_rate"])
def test_unknown_names_are_refused_with_the_closest_one(name):
    with pytest.raises(UsageError, match="unknown option") as error:
        from_mapping(SFTConfig, {name: 1})
    assert "learning_rate" in error.value.next


@pytest.mark.parametrize(
    ("algorithm", "name", "value", "advice"),
    [
        ("sft", "lr", "1e-4", "learning_rate=1e-4"),
        ("sft", "epochs", 3, "num_train_epochs=3"),
        ("dpo", "batch_size", 4, "per_device_train_batch_size=4"),
        ("sft", "bf16", "true", "dtype=bfloat16"),
        ("sft", "torch_dtype", "fp16", "dtype=bfloat16"),
        ("grpo", "max_new_tokens", 64, "max_completion_length=64"),
        ("sft", "assistant_only_loss", "true", NAMES["train_on_inputs"]),
        ("sft", "output_dir", "runs/a", "--out runs/a"),
    ],
)  # fmt: skip
def test_the_names_of_other_tools_are_answered_with_ours(algorithm, name, value, advice):
    with pytest.raises(UsageError, match="is no option here") as error:
        config_of(algorithm, {name: value})
    assert error.value.next == advice


def test_a_setting_of_another_algorithm_is_told_whose_it_is():
    with pytest.raises(UsageError, match="sft has no setting beta: it is one of dpo, simpo, cpo, orpo, kto, grpo"):
        config_of("sft", {"beta": 0.1})
    with pytest.raises(UsageError, match="unknown option"):  # what it means here, sft has no setting for
        config_of("sft", {"max_new_tokens": 64})
    assert config_of("dpo", {"beta": 0.1}).beta == 0.1


def test_what_is_said_of_a_habit_names_settings_that_there_are():
    there = {name for algorithm in ALGORITHMS.values() for name in option_names(algorithm.config)}
    for name, text in NAMES.items():
        setting, equals, _ = text.partition("=")
        assert name not in there
        assert not equals or setting in there, name


@pytest.mark.parametrize("name", ["learning_rate", "optim.learning_rate"])
def test_errors_have_the_name_that_is_typed(name):
    with pytest.raises(UsageError, match="^option learning_rate has the wrong type"):
        from_mapping(SFTConfig, {name: "fast"})


def test_options_go_over_a_base():
    base = SFTConfig(model="m", run=RunOptions(seed=7))
    assert from_mapping(SFTConfig, {"max_steps": 3}, base) == SFTConfig(model="m", run=RunOptions(seed=7, max_steps=3))


def test_a_config_survives_the_way_through_plain_values():
    config = SFTConfig(model="m", packing=True, lora=Lora(use_peft=False))
    assert from_mapping(SFTConfig, to_mapping(config)) == config


def test_every_option_is_described_once_and_no_block_is_a_god():
    names = [name for name, _, _ in described(SFTConfig)]
    assert sorted(names) == sorted(option_names(SFTConfig))
    assert ("max_length", "1024", "tokens a row") in described(SFTConfig)
    for block in (SFTConfig, Optim, Lora, RunOptions):
        assert len(dataclasses.fields(block)) <= 25
