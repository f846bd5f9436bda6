"""The ladder: nothing when it fits, the cheapest rung that fits, what is fixed left alone, the batch that fits."""

from __future__ import annotations

from dataclasses import replace

from lpt_train.plan.ladder import LADDER, advice, choose, fitting_batch
from lpt_train.plan.memory import Workload, predict
from lpt_train.plan.shape import shape_of

SEVEN = shape_of({
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False,
})  # fmt: skip
LORA = Workload(tokens=16384, rank=4)
FULL = Workload(tokens=8192, scope="full")


def reserved(work: Workload) -> int:
    return predict(SEVEN, work).reserved


def test_nothing_gives_way_while_it_fits_or_without_a_budget():
    for budget in (None, reserved(LORA)):
        choice = choose(SEVEN, LORA, budget)
        assert (choice.work, choice.rungs, choice.fits) == (LORA, (), True)


def test_the_first_rung_that_fits_is_taken():
    for every, name in ((4, "every 4th layer"), (2, "every 2nd layer"), (1, "every layer")):
        wanted = replace(LORA, checkpoint_every=every)
        choice = choose(SEVEN, LORA, reserved(wanted))
        assert choice.work == wanted
        assert choice.fits
        assert choice.rungs[-1].startswith(name)
        assert sum("computed again" in rung for rung in choice.rungs) == 1
        assert choose(SEVEN, LORA, reserved(wanted) - 1).work != wanted


def test_a_rung_that_frees_nothing_is_passed_over():
    """The moments of an adapter are a thousandth of the step: the activations go first, and alone."""
    lightest = choose(SEVEN, LORA, 0)
    assert not lightest.fits
    assert not lightest.work.offload_optimizer
    assert lightest.work.offload_activations
    full = choose(SEVEN, FULL, 0)
    assert full.work.offload_optimizer
    assert len(full.rungs) <= len(LADDER)


def test_a_chunk_of_the_head_goes_first_where_the_vocabulary_is_large():
    small = shape_of({
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    })  # fmt: skip
    work = Workload(tokens=2048, counted=2048)
    choice = choose(small, work, predict(small, work).reserved - 1)
    assert (choice.work, choice.rungs) == (replace(work, chunk=256), ("logits_chunk 256",))


def test_what_is_fixed_stays():
    choice = choose(SEVEN, FULL, 0, fixed={"checkpoint_every", "offload_optimizer"})
    assert (choice.work.checkpoint_every, choice.work.offload_optimizer) == (0, False)
    everything = {name for _, name, _ in LADDER}
    assert choose(SEVEN, FULL, 0, fixed=everything).work == FULL


def test_less_memory_never_asks_for_less():
    """Over all budgets: a smaller one leads to a prediction that is no larger, and one that fits where one can."""
    floor, last = choose(SEVEN, FULL, 0).memory.reserved, None
    for budget in range(int(20e9), int(260e9), int(5e9)):
        choice = choose(SEVEN, FULL, budget)
        assert choice.fits == (choice.memory.reserved <= budget)
        assert choice.fits or budget < floor
        assert last is None or choice.memory.reserved >= last
        last = choice.memory.reserved


def test_the_fitting_batch_keeps_the_update_and_is_the_largest():
    work, budget = replace(LORA, tokens=32 * 1024), int(80e9)
    found = fitting_batch(SEVEN, work, budget, size=32, accumulation=2)
    assert found is not None
    size = found.per_device_train_batch_size
    assert size * found.gradient_accumulation_steps == 64
    assert reserved(replace(work, tokens=size * 1024)) <= budget
    larger = [rows for rows in range(size + 1, 32) if 64 % rows == 0]
    assert all(reserved(replace(work, tokens=rows * 1024)) > budget for rows in larger)


def test_a_prediction_that_was_too_low_is_scaled_by_what_was_needed():
    """It fits on paper and ran out of memory: the batch that is proposed is smaller all the same."""
    work = replace(LORA, tokens=8 * 1024)
    budget = 2 * reserved(work)
    assert fitting_batch(SEVEN, work, budget, size=8, accumulation=1, needed=budget).per_device_train_batch_size == 4
    assert fitting_batch(SEVEN, work, int(15e9), size=8, accumulation=1) is None  # the weights alone
    assert fitting_batch(SEVEN, replace(work, tokens=1024), int(80e9), size=1, accumulation=1) is None


def test_advice_names_what_would_help_and_nothing_else():
    assert advice(SEVEN, FULL) == [
        "gradient_checkpointing=true", "optim=adamw_torch_offload", "activation_offloading=true", "optim=adamw_8bit",
        "use_peft=true",
    ]  # fmt: skip
    light = replace(LORA, checkpoint_every=1, offload_activations=True)
    assert advice(SEVEN, light) == []
    assert advice(SEVEN, LORA) == ["gradient_checkpointing=true", "activation_offloading=true"]
