"""The same loop on one GPU: bfloat16 over float32 adapters, the CPU's losses in float32, bit-exact resume."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from line_cases import check_rows_of_a_line
from rank_cases import run_job
from reward_cases import ranked
from train_cases import chat, chats, preferences, write_jsonl

from lpt_train import sft
from lpt_train.adapter_files import read_adapter
from lpt_train.adapters import load_for_training
from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.config_lora import Lora
from lpt_train.config_preference import PreferenceConfig
from lpt_train.config_reward import RewardConfig
from lpt_train.heads import token_logprobs
from lpt_train.kto import train as train_kto
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import load_adapter, load_model, load_tokenizer, placement
from lpt_train.packing import epoch_order, render_rows
from lpt_train.preference import train as train_preference
from lpt_train.render import Renderer
from lpt_train.reward import train as train_reward
from lpt_train.sft import train
from lpt_train.speed import peak_rate
from lpt_train.varlen import _each_row, varlen_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def config(tiny, **options) -> SFTConfig:
    defaults = {"max_steps": 6, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "lora_r": 4}
    return from_mapping(SFTConfig, {"model": str(tiny), **defaults, **options})


def test_auto_is_bfloat16_on_the_gpu_and_trains(tiny, sft_split, tmp_path):
    result = train(config(tiny), split=sft_split, out=tmp_path / "run")
    assert result.body["proof"]["verdict"] == "effective"
    assert 0 < result.body["peak_memory_bytes"] < 2**31
    assert result.body["env"]["device"] == torch.cuda.get_device_name()


@pytest.mark.parametrize("use_peft", [True, False])
def test_float32_losses_are_those_of_the_cpu(tiny, sft_split, tmp_path, use_peft):
    options = {"use_peft": use_peft, "dtype": "float32", "packing": not use_peft, "max_length": 256}
    bodies = [
        train(config(tiny, device=device, **options), split=sft_split, out=tmp_path / device).body["metrics"]["loss"]
        for device in ("cpu", "cuda")
    ]
    assert bodies[0] == pytest.approx(bodies[1], abs=1e-3)


@pytest.mark.parametrize("options", [{"lora_dropout": 0.2}, {"use_peft": False, "packing": True, "max_length": 128}])
def test_resume_is_bit_exact_on_the_gpu(tiny, sft_split, tmp_path, options):
    train(config(tiny, **options), split=sft_split, out=tmp_path / "whole")

    def terminate(done, _total, _metrics):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    train(config(tiny, **options), split=sft_split, out=tmp_path / "halves", progress=terminate)
    torch.rand(3, device="cuda")
    train(config(tiny, **options), split=sft_split, out=tmp_path / "halves", resume=True)
    one, two = (latest(tmp_path / name / "checkpoints") for name in ("whole", "halves"))
    for path in one.glob("*.safetensors"):
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


def test_token_log_probs_are_those_of_the_cpu(tiny):
    model = load_model(str(tiny))
    ids = torch.randint(0, 256, (3, 40), generator=torch.Generator().manual_seed(0))
    attention, mask = torch.ones_like(ids), torch.ones_like(ids)
    attention[0, :9], mask[0, :10], mask[:, 0] = 0, 0, 0
    here = token_logprobs(model, ids, attention, mask)
    there = token_logprobs(model.cuda(), ids.cuda(), attention.cuda(), mask.cuda())
    torch.testing.assert_close(there.logp_B_T.cpu(), here.logp_B_T, atol=1e-4, rtol=0)
    torch.testing.assert_close(there.entropy_B_T.cpu(), here.entropy_B_T, atol=1e-4, rtol=0)


@pytest.mark.parametrize("packing", [True, False])
def test_every_way_gives_the_same_losses(tiny, sft_split, tmp_path, packing):
    found = {}
    for way in ("graph", "compiled", "eager", "rows"):
        options = {"execution": way, "packing": packing, "max_length": 256, "logits_chunk": 64}
        body = train(config(tiny, **options), split=sft_split, out=tmp_path / way).body
        assert body["execution"] == way
        found[way] = body["metrics"]["loss"]
    for way, ends in found.items():
        assert ends == pytest.approx(found["rows"], abs=2e-2), way


@pytest.mark.parametrize("use_peft", [True, False])
def test_gradients_of_accumulated_recordings_are_those_of_one_batch(tiny, sft_split, tmp_path, use_peft):
    whole = train(config(tiny, use_peft=use_peft, execution="graph"), split=sft_split, out=tmp_path / "whole").body
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "execution": "graph"}
    cut = train(config(tiny, use_peft=use_peft, **options), split=sft_split, out=tmp_path / "cut").body
    for name in ("loss", "grad_norm"):
        assert cut["metrics"][name] == pytest.approx(whole["metrics"][name], rel=3e-2), name


def test_pairs_and_marked_completions_by_recordings(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(16)), "preference")
    options = {"model": str(tiny), "max_steps": 12, "learning_rate": 1e-2, "lora_r": 4, "beta": 0.5}
    for kind, loop in ((PreferenceConfig, train_preference), (KTOConfig, train_kto)):
        found = {}
        for way in ("graph", "eager"):
            made = from_mapping(kind, {**options, "execution": way})
            body = loop(made, split=split, out=tmp_path / f"{kind.__name__}-{way}").body
            assert body["execution"] == way
            found[way] = body["metrics"]
        assert found["graph"]["loss"] == pytest.approx(found["eager"]["loss"], abs=3e-2)
        assert found["graph"]["rewards/margins"][1] > 0.5
        name = "kl_k1" if kind is PreferenceConfig else "kl"
        assert found["graph"][name][0] == pytest.approx(0, abs=0.05), name


@pytest.mark.parametrize("ranking", ["pairs", "prompts", "plackett_luce"])
def test_reward_models_by_recordings(tiny, tmp_path, ranking):
    split = load_unadmitted(write_jsonl(tmp_path / "ranked.jsonl", ranked(12)), "preference")
    options = {
        "model": str(tiny), "ranking": ranking, "max_steps": 8, "learning_rate": 1e-3, "lora_r": 4,
        "per_device_train_batch_size": 4, "max_length": 128,
    }  # fmt: skip
    losses = {}
    for way in ("graph", "compiled", "eager"):
        result = train_reward(
            from_mapping(RewardConfig, options | {"execution": way}), split=split, out=tmp_path / way, eval_split=split
        )
        assert result.body["execution"] == way
        assert result.body["reward_model"]["position"]["largest_difference"] < 0.05
        losses[way] = result.body["metrics"]["loss"]
    assert losses["graph"] == pytest.approx(losses["compiled"], abs=2e-2)
    assert losses["graph"] == pytest.approx(losses["eager"], abs=2e-2)
    narrow = {"dtype": "float32", "execution": "eager"}
    plain = [
        train_reward(
            from_mapping(RewardConfig, options | narrow | {"device": device}), split=split, out=tmp_path / device
        ).body["metrics"]["loss"]
        for device in ("cpu", "cuda")
    ]
    assert plain[0][0] == pytest.approx(plain[1][0], abs=1e-4)
    assert plain[0][1] == pytest.approx(plain[1][1], abs=2e-2)  # Adam's first steps follow the sign of what is rounded


def test_auto_falls_back_and_says_so(tiny, sft_split, tmp_path):
    result = train(config(tiny, use_dora=True), split=sft_split, out=tmp_path / "dora")
    assert result.body["execution"] in ("graph", "eager")
    assert result.body["execution"] == "graph" or any("execution" in note for note in result.notes)


@pytest.mark.parametrize("window", [None, 20])
def test_float32_rows_attend_in_groups_as_each_row_alone(window):
    ends = [0, 90, 91, 200, 200, 260, 390]
    line = [torch.randn(390, heads, 64, device="cuda", requires_grad=True) for heads in (6, 2, 2)]
    bounds = torch.tensor(ends, dtype=torch.int32, device="cuda")
    together = varlen_attention(
        torch.nn.Identity(), *(part.transpose(0, 1)[None] for part in line), None, cu_seqlens=bounds, longest=256,
        sliding_window=window,
    )[0][0]  # fmt: skip
    alone = _each_row(*line, ends, None, window)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    upstream = torch.randn_like(alone)
    for one, other in zip(*(torch.autograd.grad(out, line, upstream) for out in (alone, together)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("use_peft", [True, False])
def test_flash_attention_of_a_line_is_that_of_each_row_alone(window, use_peft):
    check_rows_of_a_line("cuda", window, use_peft)


def test_a_recorded_run_starts_from_its_reference(tiny, tmp_path):
    """Nothing is learned at a rate of zero, so every loss is log 2: the reference is read as the policy is, in bf16."""
    made = from_mapping(PreferenceConfig, {
        "model": str(tiny), "max_steps": 3, "per_device_train_batch_size": 4, "execution": "graph",
        "learning_rate": 0.0, "eval_steps": 1, "per_device_eval_batch_size": 3,
    })  # fmt: skip
    split, held_out = (
        load_unadmitted(write_jsonl(tmp_path / name, rows), "preference")
        for name, rows in (("pairs.jsonl", preferences(16)), ("held-out.jsonl", preferences(23)[16:]))
    )
    result = train_preference(made, split=split, out=tmp_path / "run", eval_split=held_out)
    assert result.body["execution"] == "graph"
    metrics = result.body["metrics"]
    assert metrics["loss"] == pytest.approx([math.log(2)] * len(metrics["loss"]), abs=1e-6)
    assert metrics["eval_loss"] == pytest.approx([math.log(2)] * len(metrics["eval_loss"]), abs=1e-6)


def test_a_recording_drops_other_inputs_each_time(tiny):
    """Dropout in a replayed graph: fresh in each step, of the right size, none in evaluation."""
    model = load_for_training(str(tiny), Lora(lora_r=4, lora_dropout=0.5), placement("cuda"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    rows = render_rows(chats(6), Renderer(load_tokenizer(str(tiny))), max_length=256).rows
    run = MicroBatch(
        model, placement("cuda"), lambda logp_N, batch, extras: (-(logp_N * batch.weights_N).sum(), {}),
        execution="graph", longest=256, most_tokens=2048, most_rows=8, pad_id=0,
    )  # fmt: skip
    state = torch.cuda.get_rng_state()
    losses = [float(run(rows, {})["loss"]) for _ in range(4)]
    assert run.way == "graph"
    assert len(set(losses)) == 4
    torch.cuda.set_rng_state(state)
    assert [float(run(rows, {})["loss"]) for _ in range(4)] == losses  # recording them took no draw
    model.eval()
    first, second = (run.row_logprobs(rows) for _ in range(2))
    assert torch.equal(first, second)


def test_dropout_in_layers_that_are_computed_again_runs_compiled(tiny, sft_split, tmp_path):
    options = {"lora_dropout": 0.2, "gradient_checkpointing": True}
    result = train(config(tiny, **options), split=sft_split, out=tmp_path / "run")
    assert result.body["execution"] == "compiled"
    assert any("gradient_checkpointing" in note and "dropout" in note for note in result.notes)
    assert result.body["proof"]["verdict"] == "effective"


@pytest.mark.parametrize("options", [{}, {"use_bnb_nested_quant": True, "use_dora": True}], ids=str)
def test_four_bits_train_resume_and_read_back_as_trained(tiny, sft_split, tmp_path, options):
    pytest.importorskip("bitsandbytes")
    options = {"load_in_4bit": True, "lr_scheduler_type": "constant", **options}
    whole = train(config(tiny, **options), split=sft_split, out=tmp_path / "whole")
    assert whole.body["proof"]["verdict"] == "effective"
    assert whole.body["metrics"]["loss"][1] < whole.body["metrics"]["loss"][0]
    train(config(tiny, **options, max_steps=3), split=sft_split, out=tmp_path / "halves")
    train(config(tiny, **options), split=sft_split, out=tmp_path / "halves", resume=True)
    one, two = (latest(tmp_path / name / "checkpoints") for name in ("whole", "halves"))
    assert (one / "adapter_model.safetensors").read_bytes() == (two / "adapter_model.safetensors").read_bytes()
    model = load_for_training(str(tiny), config(tiny, **options).lora, placement("cuda")).eval()
    read_adapter(model, one)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad(), placement("cuda").autocast():
        trained = model(ids.cuda()).logits.float().cpu()
        read_back = load_adapter(str(one)).cuda()(ids.cuda()).logits.float().cpu()
    torch.testing.assert_close(read_back, trained, atol=5e-2, rtol=0)


def test_codes_of_the_gpu_are_those_of_the_cpu():
    functional = pytest.importorskip("bitsandbytes").functional
    weights = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    for nested in (False, True):
        decoded = []
        for device in ("cpu", "cuda"):
            codes, state = functional.quantize_4bit(
                weights.to(device), blocksize=64, quant_type="nf4", compress_statistics=nested
            )
            decoded.append(functional.dequantize_4bit(codes, state).cpu())
        torch.testing.assert_close(*decoded, atol=5e-2 if nested else 1e-5, rtol=0)


def test_a_recorded_run_is_guarded_goes_back_and_tells_its_mfu(tiny, tmp_path, monkeypatch):
    honest = sft._objective

    def objective(logp_N, batch, extras):
        loss, report = honest(logp_N, batch, extras)
        return loss * torch.where((batch.input_ids_1_T == ord("~")).any(), 1e6, 1.0), report

    monkeypatch.setattr(sft, "_objective", objective)
    rows, order = chats(48), epoch_order(48, 42, 0)
    poisons = [int(order[at]) for at in (42, 44)]  # of steps 11 and 12, four rows each
    for at in poisons:
        rows[at]["messages"] = chat("say it", "~")
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", rows), "sft")
    options = {"max_steps": 12, "spike_guard": True, "save_steps": 4, "execution": "graph", "report_to": "none"}
    result = train(config(tiny, **options), split=split, out=tmp_path / "run")
    assert result.status == "done"
    assert [entry["suspect"] for entry in result.body["quarantined"]] == [split.record_ids[at] for at in poisons]
    assert "went back to step-000008: loss_spike in step 12" in result.notes
    assert result.body["proof"]["updates"] == 10
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert all(line["memory_gib"] > 0 for line in lines)
    if peak_rate(torch.cuda.get_device_name(), torch.bfloat16) is not None:
        assert all(0 < line["mfu"] < 1 for line in lines)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
@pytest.mark.parametrize("use_peft", [True, False])
def test_two_gpus_give_the_losses_of_one(tiny, tmp_path, sharding, use_peft):
    write_jsonl(tmp_path / "chats.jsonl", chats(25))
    options = {"model": str(tiny), "max_steps": 6, "per_device_train_batch_size": 2, "use_peft": use_peft}
    job = {"algorithm": "sft", "rows": str(tmp_path / "chats.jsonl")}
    alone = run_job({**job, "options": {**options, "gradient_accumulation_steps": 2}, "out": str(tmp_path / "one")})
    spread = {**job, "options": {**options, "sharding": sharding}, "out": str(tmp_path / "two")}
    asked = {"jobs": {"two": spread}, "results": str(tmp_path / "results.json"), "command": []}
    (tmp_path / "jobs.json").write_text(json.dumps(asked))
    script = Path(__file__).parent / "rank_cases.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*torchrun, str(script), str(tmp_path / "jobs.json")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parents[2]), *sys.path])}, check=True, timeout=300,
    )  # fmt: skip
    both = json.loads((tmp_path / "results.json").read_text())["two"]
    assert both["metrics"]["loss"] == pytest.approx(alone["metrics"]["loss"], abs=0.02)
    assert both["proof"]["verdict"] == "effective"
