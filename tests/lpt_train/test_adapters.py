"""Adapters: scale, start, targets, what trains, and that our path and a plain loop over peft agree."""

from __future__ import annotations

import json
import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from train_cases import chats, preferences, reference_of, write_jsonl
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lpt_train.adapter_targets import linear_modules, resolve_targets
from lpt_train.adapters import attach, changes_base, load_for_training, parameter_report, report_line
from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_lora import Lora
from lpt_train.config_preference import PreferenceConfig
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import load_adapter, load_model, load_tokenizer, placement
from lpt_train.packing import epoch_order, render_rows
from lpt_train.preference import train as train_preference
from lpt_train.render import Renderer
from lpt_train.sft import train
from manifests.errors import RefusedError, UsageError

VARIANTS = {"lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True}}
IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """The adapter moved away from its start."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and ("lora_B" in name or "magnitude" in name):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def layer(model: torch.nn.Module) -> LoraLayer:
    return next(module for module in model.modules() if isinstance(module, LoraLayer))


@pytest.mark.parametrize(("options", "scale"), [({}, 12 / 4), ({"use_rslora": True}, 12 / 2)])
def test_an_adapted_layer_is_the_base_and_scaled_factors(tiny, options, scale):
    """By hand: h = W x + b + s B A x with s = alpha / r, or alpha / sqrt(r)."""
    model = shaken(attach(load_model(str(tiny)), Lora(lora_r=4, lora_alpha=12, **options)))
    adapted = layer(model)
    a, b, w = adapted.lora_A["default"].weight, adapted.lora_B["default"].weight, adapted.base_layer
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    by_hand = x @ w.weight.T + w.bias + scale * (x @ a.T) @ b.T
    torch.testing.assert_close(adapted(x), by_hand, atol=1e-5, rtol=0)


def test_dora_is_a_magnitude_times_a_direction(tiny):
    """By hand: rows of W + s B A are scaled to the length m; at the start m is the length of W's rows."""
    model = attach(load_model(str(tiny)), Lora(lora_r=4, lora_alpha=12, use_dora=True))
    adapted = layer(model)
    magnitude = adapted.lora_magnitude_vector["default"].weight
    torch.testing.assert_close(magnitude, adapted.base_layer.weight.norm(dim=1), atol=1e-6, rtol=0)
    shaken(model)
    direction = adapted.base_layer.weight + 3 * adapted.lora_B["default"].weight @ adapted.lora_A["default"].weight
    weight = direction * (magnitude / direction.norm(dim=1))[:, None]
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(adapted(x), x @ weight.T + adapted.base_layer.bias, atol=1e-5, rtol=0)


STARTS = [{"init_lora_weights": name} for name in (True, "gaussian", "orthogonal", "pissa", "pissa_niter_4", "olora")]


@pytest.mark.parametrize("options", [*STARTS, *VARIANTS.values()], ids=str)
def test_the_first_step_computes_what_the_base_computes(tiny, options):
    torch.manual_seed(0)
    adapted = load_for_training(str(tiny), Lora(lora_r=4, **options), placement("cpu")).eval()
    with torch.no_grad():
        torch.testing.assert_close(adapted(IDS).logits, load_model(str(tiny))(IDS).logits, atol=2e-5, rtol=0)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_the_first_step_in_bfloat16(tiny, options):
    place = placement("cpu", "bfloat16")
    adapted = load_for_training(str(tiny), Lora(lora_r=4, **options), place).eval()
    base = load_model(str(tiny), dtype=place.dtype)
    with torch.no_grad(), place.autocast():
        torch.testing.assert_close(adapted(IDS).logits.float(), base(IDS).logits.float(), atol=2e-2, rtol=0)
    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_rows_end_to_end_give_the_log_probs_of_the_adapted_model(tiny, tmp_path, options):
    model = shaken(attach(load_model(str(tiny)), Lora(lora_r=4, **options)))
    rows = render_rows(chats(6), Renderer(load_tokenizer(str(tiny))), max_length=256).rows
    run = MicroBatch(
        model, placement("cpu"), lambda logp_N, *_: (logp_N.sum(), {}), execution="eager", longest=256,
        most_tokens=2048, most_rows=8, pad_id=0,
    )  # fmt: skip
    found = run.row_logprobs(rows)
    model.base_model.model.set_attn_implementation("sdpa")
    for row, ours in zip(rows, found, strict=True):
        ids = torch.from_numpy(row.ids).long()[None]
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1)
        mask = torch.from_numpy(row.loss_mask)[1:].bool()
        theirs = logp.gather(-1, ids[0, 1:, None])[:, 0][mask].sum()
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_five_steps_are_those_of_a_plain_loop_over_peft(tiny, tmp_path, options):
    rows = chats(12)
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", rows), "sft")
    settings = {
        "model": str(tiny), "max_steps": 5, "per_device_train_batch_size": 4, "learning_rate": 5e-3, "lora_r": 4,
        "lr_scheduler_type": "constant", "max_grad_norm": 0, "weight_decay": 0.0, "seed": 7, **options,
    }  # fmt: skip
    result = train(from_mapping(SFTConfig, settings), split=split, out=tmp_path / "run")
    ours = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]

    rendered = render_rows(rows, Renderer(load_tokenizer(str(tiny))), max_length=1024).rows
    torch.manual_seed(7)
    plain = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=32, target_modules="all-linear", **options)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32), plain)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3, weight_decay=0.0)
    order = [int(i) for epoch in range(2) for i in epoch_order(12, 7, epoch)]
    theirs = []
    for step in range(5):
        taken = [rendered[i] for i in order[4 * step : 4 * step + 4]]
        loss = torch.tensor(0.0)
        for row in taken:
            ids, mask = torch.from_numpy(row.ids).long()[None], torch.from_numpy(row.loss_mask).bool()
            logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
            loss = loss - logp[mask[1:]].sum()
        loss = loss / sum(row.supervised for row in taken)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(float(loss.detach()))
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert ours[-1] < ours[0]
    saved = load_adapter(str(latest(result.path / "checkpoints")))
    with torch.no_grad():
        torch.testing.assert_close(saved(IDS).logits, model.eval()(IDS).logits, atol=1e-4, rtol=0)


SMALL = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40,
}  # fmt: skip


def llama(**more) -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=1, **more))


def gpt2() -> torch.nn.Module:
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40))


ATTENTION, MLP = ["k_proj", "o_proj", "q_proj", "v_proj"], ["down_proj", "gate_proj", "up_proj"]


@pytest.mark.parametrize(
    ("make", "names", "found"),
    [
        (llama, "all-linear", sorted(ATTENTION + MLP)),
        (llama, "attention", ATTENTION),
        (llama, "mlp", MLP),
        (llama, "attention+mlp", sorted(ATTENTION + MLP)),
        (llama, "attention, down_proj", sorted([*ATTENTION, "down_proj"])),
        (gpt2, "attention", ["attn.c_proj", "c_attn"]),  # c_proj alone would find that of the mlp, too
        (gpt2, "mlp", ["c_fc", "mlp.c_proj"]),
        (gpt2, "all-linear", ["c_attn", "c_fc", "c_proj"]),
        (llama, "1.self_attn.q_proj", ["1.self_attn.q_proj"]),
    ],
)
def test_presets_find_the_modules_of_a_part_and_no_other(make, names, found):
    model = make()
    targets = resolve_targets(model, names)
    assert targets == found
    adapted = attach(model, Lora(lora_r=2, lora_target_modules=names))
    hit = {n.removeprefix("base_model.model.") for n, m in adapted.named_modules() if isinstance(m, LoraLayer)}
    ends = tuple(f".{target}" for target in targets)
    assert hit == {name for name in linear_modules(make()) if name.endswith(ends)}


def test_exclusions_take_modules_out_again():
    assert resolve_targets(llama(), "all-linear", "mlp") == ATTENTION
    assert resolve_targets(llama(), "attention", "q_proj,o_proj") == ["k_proj", "v_proj"]
    assert resolve_targets(llama(), "q_proj", "layers.0") == ["1.self_attn.q_proj"]
    for exclude, what in (("nothing", "names no module"), ("self_attn", "excluded again")):
        with pytest.raises(UsageError, match=what):
            resolve_targets(llama(), "attention", exclude)


@pytest.mark.parametrize("names", ["q_proj,v_porj", "query_key_value", "proj", "q_proj,"])
def test_a_name_that_finds_nothing_is_an_error_with_what_there_is(names):
    if names == "q_proj,":
        assert resolve_targets(llama(), names) == ["q_proj"]
        return
    with pytest.raises(UsageError) as error:
        resolve_targets(llama(), names)
    assert error.value.seen in names.split(",")
    assert "q_proj 16→16 ×2" in error.value.next
    assert "down_proj 24→16 ×2" in error.value.next


def test_a_head_that_is_the_embedding_takes_no_adapter_and_is_not_saved_apart(tiny):
    for options in ({"lora_target_modules": "q_proj,lm_head"}, {"lora_modules_to_save": "embed_tokens"}):
        with pytest.raises(UsageError, match="one matrix"):
            attach(load_model(str(tiny)), Lora(**options))
    adapted = attach(llama(tie_word_embeddings=False), Lora(lora_r=2, lora_target_modules="q_proj,lm_head"))
    assert any("lm_head.lora_A" in name for name, _ in adapted.named_parameters())


def test_modules_to_save_train_whole_in_float32_and_are_off_with_the_adapter():
    model = attach(
        llama(tie_word_embeddings=False).to(torch.bfloat16), Lora(lora_r=2, lora_modules_to_save="lm_head,norm")
    )
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert {p.dtype for p in trained.values()} == {torch.float32}
    heads = [p for name, p in trained.items() if "lm_head" in name]
    assert [tuple(p.shape) for p in heads] == [(40, 16)]
    model.float().eval()
    before = model(IDS).logits
    with torch.no_grad():
        heads[0].add_(1.0)
    assert (model(IDS).logits - before).abs().max() > 0.1
    with model.disable_adapter():
        torch.testing.assert_close(model(IDS).logits, before)


def test_dropout_falls_on_the_input_of_a(tiny):
    """In training mode h - W x - b is s B A of x with inputs either 0 or x / (1 - p)."""
    model = shaken(attach(load_model(str(tiny)), Lora(lora_r=4, lora_dropout=0.5))).train()
    adapted = layer(model)
    with torch.no_grad():
        adapted.lora_A["default"].weight.copy_(torch.eye(32)[:4])
        adapted.lora_B["default"].weight.copy_(torch.eye(32)[:, :4])
        x = torch.ones(200, 32)
        added = (adapted(x) - adapted.base_layer(x))[:, :4] / adapted.scaling["default"]
    assert set(added.round(decimals=3).unique().tolist()) == {0.0, 2.0}
    assert 0.4 < float((added > 1).float().mean()) < 0.6


def test_dropout_is_drawn_anew_in_each_step_and_not_in_evaluation(tiny):
    model = shaken(attach(load_model(str(tiny)), Lora(lora_r=4, lora_dropout=0.5))).train()
    rows = render_rows(chats(6), Renderer(load_tokenizer(str(tiny))), max_length=256).rows
    run = MicroBatch(
        model, placement("cpu"), lambda logp_N, *_: (logp_N.sum(), {}), execution="auto", longest=256,
        most_tokens=2048, most_rows=8, pad_id=0,
    )  # fmt: skip
    torch.manual_seed(1)
    first, second = (float(run(rows, {})["loss"]) for _ in range(2))
    torch.manual_seed(1)
    assert first != second
    assert float(run(rows, {})["loss"]) == first
    model.eval()
    assert torch.equal(run.row_logprobs(rows), run.row_logprobs(rows))


def test_dropout_that_is_drawn_twice_is_known(tiny):
    """A recording cannot draw the same mask again: such a model runs compiled on a GPU, and says so once."""
    from lpt_train.memory import fit

    def twice(model, again=0):
        run = MicroBatch(
            model, placement("cpu"), lambda logp_N, *_: (logp_N.sum(), {}), execution="eager", longest=64,
            most_tokens=64, most_rows=2, pad_id=0,
        )  # fmt: skip
        run.way = "graph"  # what a GPU would choose
        fit(run, from_mapping(SFTConfig, {"model": "tiny", "gradient_checkpointing": bool(again)}))
        assert (run.way, len(run.notes)) == (("compiled", 1) if run.draws_twice() else ("graph", 0))
        return run.draws_twice()

    assert not twice(attach(load_model(str(tiny)), Lora(lora_r=2, lora_dropout=0.5)))
    assert not twice(attach(load_model(str(tiny)), Lora(lora_r=2)), again=1)
    assert twice(attach(load_model(str(tiny)), Lora(lora_r=2, lora_dropout=0.5)), again=1)
    untied = llama(tie_word_embeddings=False)
    assert twice(attach(untied, Lora(lora_r=2, lora_dropout=0.5, lora_target_modules="q_proj,lm_head")))


def test_dropout_of_an_adapted_head_is_the_same_in_the_backward_pass():
    """The head is projected once more on the way back: another mask there would be the gradient of another function."""
    from lpt_train.heads import head_logprobs

    torch.manual_seed(0)
    model = attach(
        llama(tie_word_embeddings=False), Lora(lora_r=4, lora_dropout=0.5, lora_target_modules="q_proj,lm_head")
    )
    shaken(model).train()
    hidden, targets = torch.randn(6, 16), torch.arange(6)
    b = next(p for name, p in model.named_parameters() if "lm_head.lora_B" in name)

    def value() -> torch.Tensor:
        torch.manual_seed(5)
        return head_logprobs(model, hidden, targets, entropy=False)[0].sum()

    value().backward()
    step = torch.zeros_like(b)
    step[1, 2] = 1e-2
    with torch.no_grad():
        b.add_(step)
        up = value()
        b.sub_(2 * step)
        down = value()
    assert float(b.grad[1, 2]) == pytest.approx(float(up - down) / 2e-2, rel=2e-2, abs=1e-3)


def test_the_report_counts_by_hand():
    """Llama of two layers: q 16→16, k and v 16→8, o 16→16, gate and up 16→24, down 24→16; rank 2."""
    report = parameter_report(attach(llama(), Lora(lora_r=2)))
    factors = 2 * 2 * ((16 + 16) * 2 + (16 + 8) * 2 + (16 + 24) * 3)
    assert report["trainable_parameters"] == factors == 928
    assert report["parameters"] == sum(p.numel() for p in llama().parameters()) + factors
    assert (report["trainable_bytes"], report["optimizer_bytes"]) == (4 * factors, 8 * factors)
    kinds = {entry["module"]: entry for entry in report["trained_modules"]}
    assert kinds["self_attn.k_proj"] == {
        "module": "self_attn.k_proj", "count": 2, "shapes": {"lora_A": [2, 16], "lora_B": [8, 2]}, "parameters": 96,
    }  # fmt: skip
    assert sum(entry["parameters"] for entry in kinds.values()) == factors
    assert report_line(report).startswith("928 of ")
    assert parameter_report(attach(llama(), Lora(lora_r=2)), "sgd")["optimizer_bytes"] == 0
    dora = parameter_report(attach(llama(), Lora(lora_r=2, use_dora=True)))
    assert dora["trainable_parameters"] == factors + 2 * (16 + 8 + 8 + 16 + 24 + 24 + 16)
    whole = parameter_report(llama())
    assert whole["trainable_share"] == 1.0
    assert {entry["module"] for entry in whole["trained_modules"]} >= {"model.norm", "self_attn.q_proj"}


@pytest.mark.parametrize(
    ("options", "more"),
    [({"init_lora_weights": "pissa_niter_4"}, {"use_rslora": True}), ({"init_lora_weights": "olora"}, {})],
)
def test_a_start_taken_out_of_the_base_is_saved_as_an_adapter_of_the_base(tiny, sft_split, tmp_path, options, more):
    settings = {"model": str(tiny), "max_steps": 3, "learning_rate": 1e-2, "lora_r": 4, "save_total_limit": 9}
    settings |= options | more
    whole = train(from_mapping(SFTConfig, settings), split=sft_split, out=tmp_path / "whole")
    assert whole.body["proof"]["verdict"] == "effective"
    folder = latest(tmp_path / "whole" / "checkpoints")
    saved = json.loads((folder / "adapter_config.json").read_text())
    assert (saved["r"], saved["init_lora_weights"]) == (8, True)
    assert saved["lora_alpha"] == pytest.approx(64 if "use_rslora" not in more else 32 * math.sqrt(2))
    longer = settings | {"max_steps": 4, "lr_scheduler_type": "constant"}
    shorter = settings | {"lr_scheduler_type": "constant"}
    four = train(from_mapping(SFTConfig, longer), split=sft_split, out=tmp_path / "four")
    train(from_mapping(SFTConfig, shorter), split=sft_split, out=tmp_path / "halves")
    resumed = train(from_mapping(SFTConfig, longer), split=sft_split, out=tmp_path / "halves", resume=True)
    assert resumed.body["proof"]["frozen_unchanged"]
    one, two = (latest(tmp_path / name / "checkpoints") / "adapter_model.safetensors" for name in ("four", "halves"))
    assert one.read_bytes() == two.read_bytes()
    assert four.body["metrics"]["loss"][1] == resumed.body["metrics"]["loss"][1]


def test_what_is_saved_of_such_a_start_computes_what_was_trained(tiny, tmp_path):
    from lpt_train.adapter_files import read_adapter, write_adapter

    for options in ({}, {"use_rslora": True}, {"use_dora": True}):
        torch.manual_seed(0)
        model = shaken(attach(load_model(str(tiny)), Lora(lora_r=4, init_lora_weights="pissa", **options))).eval()
        assert changes_base(model)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        write_adapter(model, folder)
        with torch.no_grad():
            torch.testing.assert_close(load_adapter(str(folder))(IDS).logits, model(IDS).logits, atol=1e-4, rtol=0)
        torch.manual_seed(0)
        again = attach(load_model(str(tiny)), Lora(lora_r=4, init_lora_weights="pissa", **options)).eval()
        read_adapter(again, folder)
        with torch.no_grad():
            assert torch.equal(again(IDS).logits, model(IDS).logits)
        other = attach(load_model(str(tiny)), Lora(lora_r=4, init_lora_weights="olora", **options))
        with pytest.raises(RefusedError, match="took out of the base"):
            read_adapter(other, folder)


def test_the_reference_of_a_start_taken_out_of_the_base_is_the_base(tiny, tmp_path):
    """With the adapter off such a model is neither the base nor what the run starts from."""
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(8)), "preference")
    logps, margins = {}, {}
    for start in (True, "pissa"):
        options = {"model": str(tiny), "max_steps": 1, "lora_r": 8, "init_lora_weights": start, "beta": 0.5}
        result = train_preference(from_mapping(PreferenceConfig, options), split=split, out=tmp_path / str(start))
        logps[start] = reference_of(result.body, tmp_path)
        margins[start] = result.body["metrics"]["rewards/margins"][0]
    torch.testing.assert_close(torch.tensor(logps["pissa"]), torch.tensor(logps[True]), atol=2e-4, rtol=0)
    assert margins["pissa"] == pytest.approx(0, abs=1e-4)
    model = load_for_training(str(tiny), Lora(lora_r=8, init_lora_weights="pissa"), placement("cpu")).eval()
    with torch.no_grad(), model.disable_adapter():
        assert (model(IDS).logits - load_model(str(tiny))(IDS).logits).abs().max() > 1e-2


def test_an_adapter_over_an_adapter_keeps_both(tiny, sft_split, tmp_path):
    settings = {"model": str(tiny), "max_steps": 3, "learning_rate": 1e-2, "lora_r": 4}
    train(from_mapping(SFTConfig, settings), split=sft_split, out=tmp_path / "one")
    train(from_mapping(SFTConfig, settings | {"model": str(tmp_path / "one")}), split=sft_split, out=tmp_path / "two")
    first, second = (latest(tmp_path / name / "checkpoints") for name in ("one", "two"))
    assert json.loads((second / "adapter_config.json").read_text())["base_model_name_or_path"] == str(first)
    by_hand = attach(load_model(str(first)), Lora(lora_r=4))
    by_hand.load_adapter(str(second), "trained")
    by_hand.set_adapter("trained")
    with torch.no_grad():
        found = load_model(str(second))(IDS).logits
        torch.testing.assert_close(found, by_hand.eval()(IDS).logits, atol=1e-4, rtol=0)
        for other in (tiny, first):
            assert (found - load_model(str(other))(IDS).logits).abs().max() > 1e-2


@pytest.mark.parametrize(
    "options",
    [
        {"init_lora_weights": "loftq"},
        {"init_lora_weights": "false"},
        {"init_lora_weights": "pissa_niter_0"},
        {"init_lora_weights": "orthogonal", "lora_r": 3},
        {"load_in_4bit": True, "use_peft": False},
        {"load_in_4bit": True, "init_lora_weights": "pissa"},
        {"bnb_4bit_quant_type": "int4"},
        {"bnb_4bit_compute_dtype": "float16"},
        {"lora_alpha": 0},
    ],
    ids=str,
)
def test_what_cannot_be_is_a_usage_error(options):
    with pytest.raises(UsageError) as error:
        from_mapping(SFTConfig, options)
    assert error.value.next
