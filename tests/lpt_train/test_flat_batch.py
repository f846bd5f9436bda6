"""A line of rows: laid out by hand, filled up without changing anything, and blind between its rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from line_cases import check_rows_of_a_line
from train_cases import chats
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from lpt_train.flat import Shape, flatten
from lpt_train.losses.sft import sft_loss
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import load_model, placement
from lpt_train.packing import Row, render_rows
from lpt_train.varlen import _by_groups, _each_row, groups
from manifests.errors import RefusedError


def row(index: int, *ids: int) -> Row:
    return Row(index, np.array(ids, np.int32), np.ones(len(ids), np.uint8))


def objective(logp_N, batch, extras):
    return sft_loss(logp_N, batch.weights_N, extras["denominator"]), {}


def made(model, execution="eager", **options):
    sizes = {"longest": 512, "most_tokens": 4096, "most_rows": 8, "pad_id": 0, "chunk": 16} | options
    return MicroBatch(model, placement("cpu"), objective, execution=execution, **sizes)


def test_a_line_by_hand():
    batch = flatten([row(0, 1, 2, 3), row(1, 4), row(2, 6, 7)], 9, Shape(longest=3))
    assert batch.input_ids_1_T.tolist() == [[1, 2, 3, 4, 6, 7]]
    assert batch.position_ids_1_T.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]
    # The first token of each row has no context of its own, so a row of one token has no target.
    assert batch.predict_N.tolist() == [0, 1, 4]
    assert batch.targets_N.tolist() == [2, 3, 7]
    assert batch.rows_N.tolist() == [0, 0, 2]
    assert (batch.tokens, batch.supervised) == (6, 3)


def test_filler_is_segments_of_its_own_and_targets_of_no_weight():
    batch = flatten([row(0, 1, 2, 3), row(1, 6, 7)], 9, Shape(longest=3, tokens=12, targets=4, rows=6))
    assert batch.input_ids_1_T.tolist() == [[1, 2, 3, 6, 7] + [9] * 7]
    assert batch.cu_seqlens.tolist() == [0, 3, 5, 8, 11, 12, 12]  # no segment is longer than three
    assert batch.weights_N.tolist() == [1, 1, 1, 0]
    assert (batch.tokens, batch.supervised) == (5, 3)


def test_padding_that_is_the_stop_token_takes_no_target_away():
    """What counts is the mask of the rows, whatever the filler is."""
    rows, shape, stop = [row(0, 1, 2, 9), row(1, 6, 9)], Shape(longest=3, tokens=12, targets=4, rows=6), 9
    found, other = (flatten(rows, pad_id, shape) for pad_id in (stop, 0))
    for name in ("predict_N", "targets_N", "weights_N", "rows_N", "cu_seqlens", "position_ids_1_T"):
        assert torch.equal(getattr(found, name), getattr(other, name)), name
    counted = found.targets_N[found.weights_N > 0].tolist()
    assert counted == [2, stop, stop]
    assert found.supervised == 3


def test_lines_have_at_most_eight_lengths_and_enough_segments():
    shape = Shape.of(longest=100, most_tokens=3000, most_rows=40, chunk=64)
    lines = [flatten([row(0, *range(n))], 0, shape) for n in range(2, 100)]
    assert {len(line.cu_seqlens) for line in lines} == {shape.rows + 1}
    assert 3000 / shape.tokens <= 8
    assert all(line.predict_N.shape[0] % 64 == 0 for line in lines)


@pytest.mark.parametrize("filled", [False, True])
def test_log_probs_in_a_line_are_those_of_each_row_alone(tiny, renderer, filled):
    model = load_model(str(tiny))
    rows = render_rows(chats(5), renderer, max_length=512).rows
    run = made(model)
    if filled:
        run._plain = Shape(longest=200, tokens=512, targets=256, rows=16)
    logp_N, batch = run.logprobs(rows)
    logp_N = logp_N[batch.weights_N > 0]
    model.set_attn_implementation("eager")
    start = 0
    for member in rows:
        ids = torch.from_numpy(member.ids).long()[None]
        with torch.no_grad():
            alone = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
        alone = alone[torch.from_numpy(member.loss_mask[1:]).bool()]
        torch.testing.assert_close(logp_N[start : start + len(alone)], alone, atol=1e-5, rtol=0)
        start += len(alone)
    assert start == len(logp_N)


@pytest.mark.parametrize("window", [None, 4])
def test_rows_that_are_filled_up_attend_as_each_row_alone(window):
    ends = [0, 9, 9, 10, 22, 30, 31, 43]  # one row is empty, two have one token
    made = groups(ends, torch.device("cpu"))
    assert [list(part.shape) for part in made.tokens] == [[4, 12], [2, 1]]  # of 9, 8, 12 and 12 tokens, and of 1
    generator = torch.Generator().manual_seed(0)
    line = [torch.randn(43, heads, 8, generator=generator, requires_grad=True) for heads in (4, 2, 2)]
    alone, together = _each_row(*line, ends, None, window), _by_groups(*line, made, None, window)
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    upstream = torch.randn(alone.shape, generator=generator)
    for one, other in zip(*(torch.autograd.grad(out, line, upstream) for out in (alone, together)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_sliding_window_is_kept():
    config = MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=4, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = MistralForCausalLM(config).eval()
    rows = [row(0, *range(1, 13)), row(1, *range(20, 27))]
    alone = made(model, "rows").logprobs(rows)[0]
    found = made(model).logprobs(rows)[0]
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)
    model.config.sliding_window = None
    for layer in model.model.layers:
        layer.self_attn.config.sliding_window = None
    wide = made(model, "rows").logprobs(rows)[0]
    assert not torch.allclose(wide, alone, atol=1e-4)


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("use_peft", [True, False])
def test_bfloat16_rows_of_a_line_are_those_of_each_row_alone(window, use_peft):
    check_rows_of_a_line("cpu", window, use_peft)


def test_layers_that_carry_state_from_row_to_row_run_each_row_alone():
    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    rows = [row(0, 1, 2, 3, 4), row(1, 5, 6, 7)]
    forward = model.backbone.forward
    model.backbone.forward = lambda input_ids, **_: forward(input_ids=input_ids, use_cache=False)
    run = made(model, "auto")
    assert run.way == "rows"
    assert "does not fit this model" in run.notes[0]
    with torch.no_grad():
        ids = torch.tensor([[5, 6, 7]])
        alone = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(run.logprobs(rows)[0][3:], alone, atol=1e-5, rtol=0)


def test_capped_scores_are_not_dropped_silently():
    config = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, attn_implementation="eager",
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    run = made(model, "auto")
    assert run.way == "rows"
    assert "softcap" in run.notes[0]
    with pytest.raises(RefusedError, match="execution=eager"):
        made(model, "eager")


def test_graphs_need_a_gpu(tiny):
    if not torch.cuda.is_available():
        with pytest.raises(RefusedError, match="execution=graph"):
            made(load_model(str(tiny)), "graph")
