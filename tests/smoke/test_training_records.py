"""MFU in the records of training benchmarks: a rate times the operations of its unit, over the card's peak."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from transformers import AutoConfig

from lpt_train.tiny import byte_tokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def arithmetic():
    sys.path.insert(0, str(BENCHMARKS / "train"))
    import arithmetic

    yield arithmetic
    sys.path.remove(str(BENCHMARKS / "train"))


def test_half_of_the_peak_by_hand(arithmetic):
    """494,700 units of 10^9 operations are half of 989.4 TFLOP/s; an engine that failed and a CPU have no share."""
    report = {"machine": {"device": "NVIDIA H200"}, "results": [{"rate": 494_700.0}, {"error": "x"}]}
    told = arithmetic.with_mfu(report, {"operations_a_unit": 1e9})
    assert told["results"] == [{"rate": 494_700.0, "tflops": pytest.approx(494.7), "mfu": pytest.approx(0.5)},
                               {"error": "x"}]  # fmt: skip
    told = arithmetic.with_mfu({"machine": {"device": "AMD EPYC"}, "results": [{"rate": 1.0}]}, told["arithmetic"])
    assert told["results"][0]["mfu"] is None


@pytest.mark.parametrize(("whole", "each"), [(False, 4), (True, 6)])
def test_a_token_needs_four_or_six_operations_a_parameter(arithmetic, whole, each):
    """A layer of 2 x 32^2 + 2 x 32 x 16 + 3 x 32 x 64 values; its adapter, of rank 8, six; attention 12 x 32."""
    config = AutoConfig.for_model(
        "llama", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=300, tie_word_embeddings=True,
    )  # fmt: skip
    for algorithm in ("sft", "dpo"):
        args = Namespace(algorithm=algorithm, whole=whole, rows=8, words=12, length=512)
        found = arithmetic.per_unit(args, config, byte_tokenizer())
        body, adapter = 2 * 1024 + 2 * 512 + 3 * 2048, 8 * (2 * 64 + 2 * 48 + 3 * 96)
        token = each * (body + found["head_share"] * 300 * 32) + 12 * 32 * found["context"] + 6 * adapter * (not whole)
        assert found["operations_a_unit"] == pytest.approx(token * found["tokens_a_unit"])
        assert (found["tokens_a_unit"] == 1) == (algorithm == "sft")


@pytest.mark.parametrize("name", ["sft-135m-h200", "sft-05b-h200", "dpo-135m-h200", "sft-135m-cpu", "dpo-135m-cpu"])
def test_every_recorded_rate_has_its_operations(name):
    report = json.loads((BENCHMARKS / "results" / f"train-{name}.json").read_text())
    peak = report["arithmetic"]["peak_tflops"]
    for result in report["results"]:
        assert result["tflops"] == pytest.approx(result["rate"] * report["arithmetic"]["operations_a_unit"] / 1e12)
        assert result["mfu"] == (pytest.approx(result["tflops"] / peak) if peak else None)
