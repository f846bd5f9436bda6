"""Layers computed again, and activations on the host: the same gradients, and what a layer keeps is its input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from live_bytes import saved_bytes

from lpt_train.adapters import attach
from lpt_train.config import Lora
from lpt_train.flat import flatten
from lpt_train.losses.sft import sft_loss
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import load_model, placement
from lpt_train.packing import Row
from lpt_train.recompute import checkpoint_layers, draws, on_host
from manifests.errors import RefusedError

ROWS = [Row(n, np.arange(n, n + 40).astype(np.int32), np.ones(40, np.uint8)) for n in range(3)]


def micro_batch(tiny, *, lora: bool, execution: str = "eager", dropout: float = 0.0, dtype: str = "float32"):
    torch.manual_seed(0)
    place = placement("cpu", dtype)
    model = load_model(str(tiny), dtype=place.dtype if lora else torch.float32)
    model = attach(model, Lora(lora_r=4, lora_dropout=dropout)) if lora else model.requires_grad_(True)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)  # as after some steps: zeros would hide gradients of A
    return MicroBatch(
        model.train(), place, lambda logp, batch, _: (sft_loss(logp, batch.weights_N, torch.tensor(100.0)), {}),
        execution=execution, longest=64, most_tokens=120, most_rows=3, pad_id=0, chunk=32,
    )  # fmt: skip


def gradients(run: MicroBatch) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    run.zero_grad()
    run(ROWS, {})
    return {name: p.grad.clone() for name, p in run.model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    ("lora", "execution", "dropout", "dtype"),
    [(True, "eager", 0.0, "float32"), (True, "rows", 0.0, "float32"), (True, "eager", 0.3, "float32"),
     (True, "eager", 0.0, "bfloat16"), (False, "eager", 0.0, "float32"), (False, "eager", 0.0, "bfloat16")],
)  # fmt: skip
def test_gradients_are_those_of_a_plain_backward_pass_bit_for_bit(tiny, every, lora, execution, dropout, dtype):
    run = micro_batch(tiny, lora=lora, execution=execution, dropout=dropout, dtype=dtype)
    assert draws(run.model) == (dropout > 0)
    plain = gradients(run)
    assert all(float(gradient.abs().max()) > 0 for gradient in plain.values())
    assert checkpoint_layers(run.model, every) == 2 // every
    again = gradients(run)
    for name, gradient in plain.items():
        assert torch.equal(gradient, again[name]), name
    assert checkpoint_layers(run.model, 0) == 0
    assert all(torch.equal(gradient, plain[name]) for name, gradient in gradients(run).items())


def test_a_checkpointed_layer_keeps_its_input_alone(tiny):
    run = micro_batch(tiny, lora=True)
    batch = flatten(ROWS, 0, run._plain)

    def kept() -> int:
        return saved_bytes(lambda: run._hidden(batch), run.model.parameters())

    everything = kept()
    checkpoint_layers(run.model, 2)
    half = kept()
    checkpoint_layers(run.model, 1)
    inputs = kept()
    assert everything > half > inputs
    boundary = 120 * 32 * 4  # tokens x hidden x float32: the input of each of the two layers, …
    around = 120 * (32 * 4 + 4 + 2 * 16 * 4) + 120 * 8  # … the last norm, the rotation, the positions
    assert 2 * boundary <= inputs <= 2 * boundary + around + 2048


def test_nothing_is_checkpointed_outside_of_training(tiny):
    run = micro_batch(tiny, lora=True)
    checkpoint_layers(run.model, 1)
    run.model.eval()
    batch = flatten(ROWS, 0, run._plain)
    with torch.no_grad():
        assert torch.isfinite(run._hidden(batch)).all()
    before = saved_bytes(lambda: run._hidden(batch), run.model.parameters())
    checkpoint_layers(run.model, 0)
    assert saved_bytes(lambda: run._hidden(batch), run.model.parameters()) == before


def test_layers_that_cannot_are_refused(tiny):
    model = load_model(str(tiny))
    model.model.layers = torch.nn.ModuleList([torch.nn.Identity()])
    with pytest.raises(RefusedError, match="computed again"):
        checkpoint_layers(model, 1)


def test_what_is_on_the_host_already_stays_as_it_is(tiny):
    run = micro_batch(tiny, lora=True)
    plain = gradients(run)
    run.offload_activations = True
    assert all(torch.equal(gradient, plain[name]) for name, gradient in gradients(run).items())
    weight = torch.nn.Parameter(torch.ones(100, 100))
    with on_host([weight]):
        product = (torch.ones(100, 100) @ weight).sum()
    product.backward()
    assert torch.equal(weight.grad, torch.full((100, 100), 100.0))
