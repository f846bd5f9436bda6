"""Rows of a line against each of them alone, in bfloat16: what the tests on a CPU and on a GPU share."""

from __future__ import annotations

import numpy as np
import torch
from transformers import MistralConfig, MistralForCausalLM

from lpt_train.adapters import attach
from lpt_train.config_lora import Lora
from lpt_train.flat import flatten
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import placement
from lpt_train.packing import Row

LENGTHS = (37, 5, 64, 2, 50)
_VOCABULARY = 96
# A value that is rounded to bfloat16 is off by at most 2^-9 of itself. On its way to a log-prob a hidden state of this
# model of two layers is rounded about thirty times (norms, projections, rotation, scores, values, output, the MLP,
# sums), by chance up or down: sqrt(30) 2^-9 is one part in a hundred, of logits of spread 1.5 some 0.015. Measured on a
# CPU, bfloat16 is 0.02 from float32 (root of the mean square) and at most 0.08 over 153 tokens; two ways in bfloat16
# that round apart differ by sqrt(2) of that. Rows that see each other are off by whole nats (`leak` below is above 1).
TOLERANCE = 0.15


def made(device: str, window: int | None, use_peft: bool) -> torch.nn.Module:
    """A model whose attention matters: with weights of the usual start it moves no log-prob by a tolerance."""
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(
        vocab_size=_VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=window, initializer_range=0.15, tie_word_embeddings=False,
    )).to(device)  # fmt: skip
    if use_peft:
        model = attach(model.to(torch.bfloat16), Lora(lora_r=4))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0, 0.05)
    return model


def rows(seed: int = 1) -> list[Row]:
    """Five rows, the token 0 in the last one alone."""
    draws = np.random.default_rng(seed)
    found = [Row(n, draws.integers(1, _VOCABULARY, size).astype(np.int32), np.ones(size, np.uint8))
             for n, size in enumerate(LENGTHS)]  # fmt: skip
    found[-1].ids[3:9] = 0
    return found


def of_rows(run: MicroBatch, line: list[Row]) -> list[torch.Tensor]:
    """The log-probs of each row of a line."""
    logp_N, batch = run.logprobs(line)
    return [logp_N[batch.rows_N == number].float().cpu() for number in range(len(line))]


def check_rows_of_a_line(device: str, window: int | None, use_peft: bool) -> None:
    """Each row of a line has the log-probs that it has alone, whatever the other rows are."""

    def run(model: torch.nn.Module, way: str = "eager", dtype: str = "bfloat16") -> MicroBatch:
        return MicroBatch(
            model, placement(device, dtype), lambda logp_N, batch, _: (-(logp_N * (batch.rows_N == 0)).sum(), {}),
            execution=way, longest=256, most_tokens=512, most_rows=8, pad_id=0,
        )  # fmt: skip

    model, line = made(device, window, use_peft), rows()
    together = run(model)
    found = of_rows(together, line)
    # Alone: by the same attention, by the model's own, and by that in float32.
    own = run(made(device, window, use_peft), "rows")
    exact = run(made(device, window, use_peft).float(), "rows", "float32")
    for number, row in enumerate(line):
        for alone in (together, own, exact):
            torch.testing.assert_close(found[number], of_rows(alone, [row])[0], atol=TOLERANCE, rtol=0)
    one = Row(0, np.concatenate([row.ids for row in line]), np.ones(sum(LENGTHS), np.uint8))
    seen = of_rows(together, [one])[0]
    leak = (seen[LENGTHS[0] + LENGTHS[1] : sum(LENGTHS[:3]) - 1] - found[2]).abs().max()
    assert leak > 1, "the tolerance would let rows see each other"
    if window is not None:
        wide = run(made(device, None, use_peft))
        assert (of_rows(wide, line)[2] - found[2]).abs().max() > 1, "the window would not be missed"

    others = rows(seed=2)  # of the same lengths, so that the same kernels run: then not a bit may change
    for number, row in enumerate(line):
        mixed = [row if n == number else other for n, other in enumerate(others)]
        assert torch.equal(of_rows(together, mixed)[number], found[number])
    if not use_peft:  # and none of the gradient of the first row reaches a token that others alone have
        assert not any((row.ids == 0).any() for row in line[:-1])
        assert (flatten(line, 0, together._plain).input_ids_1_T == 0).any()
        together(line, {})
        gradient_V_H = model.get_input_embeddings().weight.grad
        assert not gradient_V_H[0].any()
        assert gradient_V_H[int(line[0].ids[0])].any()
