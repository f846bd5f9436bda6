"""Memory on one GPU: optimizers to the bit, layers computed again in recordings, the ladder, running out for real."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.models import placement
from lpt_train.sft import train
from lpt_train.tiny import make_tiny
from manifests.errors import LptError, RefusedError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BITSANDBYTES = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")


def config(tiny, **options) -> SFTConfig:
    defaults = {"max_steps": 4, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "lora_r": 64}
    return from_mapping(SFTConfig, {"model": str(tiny), **defaults, **options})


def weights(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in latest(folder / "checkpoints").glob("*.safetensors")}


@pytest.mark.parametrize("use_peft", [True, False])
def test_offloaded_is_the_fused_adamw_to_the_bit(tiny, sft_split, tmp_path, use_peft):
    for optim in ("adamw_torch", "adamw_torch_offload"):
        options = {"optim": optim, "use_peft": use_peft, "execution": "eager", "weight_decay": 0.1}
        train(config(tiny, **options), split=sft_split, out=tmp_path / optim)
    assert weights(tmp_path / "adamw_torch") == weights(tmp_path / "adamw_torch_offload")


@pytest.mark.parametrize(
    "optim",
    ["adamw_torch_offload"]
    + [pytest.param(n, marks=BITSANDBYTES) for n in ("adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit")],
)
def test_resume_is_bit_exact(sft_split, tmp_path, optim):
    # wide enough for pages: bitsandbytes pages moments of 100,000 values or more
    wide = make_tiny(tmp_path / "wide", hidden=256, layers=1)
    options = {"optim": optim, "use_peft": False, "execution": "eager"}
    train(config(wide, **options), split=sft_split, out=tmp_path / "whole")

    def terminate(done, _total, _metrics):
        if done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    train(config(wide, **options), split=sft_split, out=tmp_path / "halves", progress=terminate)
    train(config(wide, **options), split=sft_split, out=tmp_path / "halves", resume=True)
    assert weights(tmp_path / "halves") == weights(tmp_path / "whole")


@pytest.mark.parametrize("use_peft", [True, False])
@pytest.mark.parametrize("way", ["graph", "compiled", "eager"])
def test_layers_computed_again_give_the_same_losses_in_every_way(tiny, sft_split, tmp_path, way, use_peft):
    found = []
    for every in (0, 1):
        options = {"execution": way, "gradient_checkpointing": bool(every), "lora_r": 4, "use_peft": use_peft}
        body = train(config(tiny, **options), split=sft_split, out=tmp_path / str(every)).body
        assert body["execution"] == way
        found.append(body["metrics"])
    for name in ("loss", "grad_norm"):
        assert found[1][name] == pytest.approx(found[0][name], rel=2e-2), name


def test_activations_on_the_host_run_compiled_and_say_so(tiny, sft_split, tmp_path):
    plain = train(config(tiny, lora_r=4), split=sft_split, out=tmp_path / "plain")
    options = {"activation_offloading": True, "gradient_checkpointing": True, "lora_r": 4}
    moved = train(config(tiny, **options), split=sft_split, out=tmp_path / "moved")
    assert moved.body["execution"] == "compiled"
    assert any("does not go with activation_offloading" in note for note in moved.notes)
    assert moved.body["metrics"]["loss"] == pytest.approx(plain.body["metrics"]["loss"], abs=2e-2)


def test_dropout_in_layers_computed_again_runs_compiled_and_says_so(tiny, sft_split, tmp_path):
    options = {"gradient_checkpointing": True, "lora_dropout": 0.2, "lora_r": 4}
    result = train(config(tiny, **options), split=sft_split, out=tmp_path / "run")
    assert result.body["execution"] == "compiled"
    assert any("does not go with dropout" in note for note in result.notes)
    with pytest.raises(RefusedError, match="recording"):
        train(config(tiny, execution="graph", **options), split=sft_split, out=tmp_path / "graph")


def alone(work: Callable[..., Any], *args: Any) -> Any:
    """The value of `work` in a process of its own: a peak is a process's, and libraries keep what earlier runs used."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *args).result()


def ladder(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The memory of a run without a limit and of one under four fifths of what was predicted for it."""
    model, split = make_tiny(folder / "model", hidden=256, layers=8), load_unadmitted(folder / "chats.jsonl", "sft")
    plain = train(config(model, execution="eager"), split=split, out=folder / "plain").body["memory"]
    options = {"execution": "eager", "max_memory_gb": 0.8 * plain["predicted"]["reserved_bytes"] / 1e9}
    fitted = train(config(model, **options), split=split, out=folder / "fitted")
    return plain, fitted.body["memory"], fitted.notes


def test_the_ladder_fits_a_budget_and_the_peak_is_recorded(sft_split, tmp_path):
    plain, fitted, notes = alone(ladder, tmp_path)
    assert plain["rungs"] == []
    assert 0.5 < plain["predicted_over_measured"] < 2  # a small model: workspaces are most of it
    assert fitted["rungs"]
    assert fitted["measured_peak_bytes"] < plain["measured_peak_bytes"]
    assert any("predicted" in note and "measured" in note for note in notes)


def run_out(folder: Path) -> str:
    """What the error of a run says to type next that has six tenths of the memory it needs."""
    model, split = make_tiny(folder / "model", hidden=512, layers=8), load_unadmitted(folder / "chats.jsonl", "sft")
    options = {"execution": "eager", "memory": "off", "per_device_train_batch_size": 16, "max_steps": 1}
    peak = train(config(model, **options), split=split, out=folder / "free").body["memory"]["measured_peak_bytes"]
    placement("cuda")  # frees what that run left
    torch.cuda.set_per_process_memory_fraction(0.6 * peak / torch.cuda.get_device_properties(0).total_memory)
    with pytest.raises(LptError, match="not enough memory") as error:
        train(config(model, **options), split=split, out=folder / "out")
    return str(error.value.next)


def test_running_out_is_answered_with_a_batch_that_then_runs(sft_split, tmp_path):
    assert "per_device_train_batch_size=" in alone(run_out, tmp_path)
