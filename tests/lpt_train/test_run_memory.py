"""A run and its memory: the ladder in a real loop, the record, resumes, and what is said when memory runs out."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch
from train_cases import preferences, write_jsonl

from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_preference import PreferenceConfig
from lpt_train.memory import Fitted
from lpt_train.micro_batch import MicroBatch
from lpt_train.optimizers import OffloadedAdamW
from lpt_train.preference import train as train_preference
from lpt_train.proof import Proof
from lpt_train.runs import Run
from lpt_train.sft import train
from lpt_train.tiny import make_tiny
from manifests.errors import LptError, RefusedError, UsageError

OUT_OF_MEMORY = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB\nmore lines"
)


def config(tiny, **options) -> SFTConfig:
    defaults = {"max_steps": 2, "learning_rate": 1e-2, "per_device_train_batch_size": 8, "lora_r": 4}
    return from_mapping(SFTConfig, {"model": str(tiny), **defaults, **options})


def weights(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in latest(folder / "checkpoints").glob("*.safetensors")}


def test_a_run_records_its_prediction_and_takes_no_rung_without_a_budget(tiny, sft_split, tmp_path):
    body = train(config(tiny), split=sft_split, out=tmp_path / "run").body
    memory = body["memory"]
    assert (memory["rungs"], memory["budget_bytes"], memory["fits"]) == ([], None, True)
    assert memory["predicted"]["peak_bytes"] == sum(
        size for part in ("static", "moving") for size in memory["predicted"][part].values()
    )
    if not torch.cuda.is_available():
        assert memory["measured_peak_bytes"] is None
        assert memory["predicted_over_measured"] is None
    assert json.loads((tmp_path / "run" / "run.json").read_text())["memory"] == memory


@pytest.mark.parametrize("use_peft", [True, False])
def test_every_rung_of_a_real_run_gives_the_same_weights(tiny, sft_split, tmp_path, use_peft):
    # The chunk stays: with another one the products of the head are summed in another order.
    options = {"use_peft": use_peft, "logits_chunk": 256}
    plain = train(config(tiny, **options), split=sft_split, out=tmp_path / "plain")
    peak = plain.body["memory"]["predicted"]["reserved_bytes"]
    found = set()
    for number, share in enumerate((0.9, 0.6, 0.01)):
        out = tmp_path / str(number)
        result = train(config(tiny, **options, max_memory_gb=share * peak / 1e9), split=sft_split, out=out)
        memory = result.body["memory"]
        assert memory["rungs"]
        assert memory["fits"] == (memory["predicted"]["reserved_bytes"] <= memory["budget_bytes"])
        said = "so that the step fits" if memory["fits"] else "the run is tried"
        assert sum(said in note and memory["rungs"][0] in note for note in result.notes) == 1
        assert weights(out) == weights(tmp_path / "plain")
        found.add(tuple(memory["rungs"]))
    assert len(found) > 1


def test_a_resumed_run_keeps_its_rung_whatever_is_free_now(tiny, sft_split, tmp_path):
    options = {"max_steps": 4, "per_device_train_batch_size": 4, "max_memory_gb": 1e-3}
    whole = train(config(tiny, **options), split=sft_split, out=tmp_path / "whole")
    assert whole.body["memory"]["rungs"]

    def terminate(done, _total, _metrics):
        if done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    train(config(tiny, **options), split=sft_split, out=tmp_path / "halves", progress=terminate)
    back = train(
        config(tiny, **options | {"max_memory_gb": 0.0}), split=sft_split, out=tmp_path / "halves", resume=True
    )
    assert back.body["memory"]["work"] == whole.body["memory"]["work"]
    assert weights(tmp_path / "halves") == weights(tmp_path / "whole")


def test_what_is_asked_for_is_done_and_what_is_off_is_not(tiny, sft_split, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("lpt_train.memory.checkpoint_layers", lambda model, every: made.append(every))
    asked = {"gradient_checkpointing": "true", "gradient_checkpointing_every": 2, "optim": "adamw_torch_offload"}
    body = train(config(tiny, **asked), split=sft_split, out=tmp_path / "asked").body
    assert body["memory"]["work"]["checkpoint_every"] == 2
    assert body["memory"]["predicted"]["host"]["optimizer"] > 0
    off = {"memory": "off", "max_memory_gb": 1e-6}
    result = train(config(tiny, **off), split=sft_split, out=tmp_path / "off")
    assert result.body["memory"]["rungs"] == []
    assert any("the run is tried" in note for note in result.notes)
    no = {"gradient_checkpointing": False, "max_memory_gb": 1e-6}
    body = train(config(tiny, **no), split=sft_split, out=tmp_path / "no").body
    assert body["memory"]["work"]["checkpoint_every"] == 0
    assert made == [2, 0, 0]


@pytest.mark.parametrize(
    "wrong", [{"gradient_checkpointing": "sometimes"}, {"memory": "most"}, {"gradient_checkpointing_every": 0},
              {"max_memory_gb": -1}, {"activation_offloading": "maybe"}],
)  # fmt: skip
def test_options_are_checked(tiny, wrong):
    with pytest.raises(UsageError):
        config(tiny, **wrong)


def test_what_does_not_go_with_recordings_leaves_them_and_says_so():
    run = MicroBatch.__new__(MicroBatch)
    run.way, run._asked, run.notes = "graph", "auto", []
    run.leave_recordings("activation_offloading", "why")
    assert run.way == "compiled"
    assert run.notes == ["execution=graph does not go with activation_offloading (why); compiled layers are used"]
    run.leave_recordings("gradient_checkpointing", "why")
    assert len(run.notes) == 1
    run.way, run._asked = "graph", "graph"
    with pytest.raises(RefusedError, match="recording"):
        run.leave_recordings("gradient_checkpointing", "why")


def answer(tiny, split, out, memory: Fitted | None, **options) -> LptError:
    run = Run.create(
        out, "sft", config(tiny, **options), split, {"name": str(tiny), "digest": "d"},
        tokenizer={"fingerprint": "f", "template_sha256": "t"},
    )  # fmt: skip
    run.memory = memory
    with pytest.raises(LptError) as error, run.guarded(Proof(torch.nn.Linear(1, 1))):
        raise OUT_OF_MEMORY
    assert json.loads((out / "run.json").read_text())["status"] == "failed"
    assert error.value.seen == str(OUT_OF_MEMORY).splitlines()[0]
    return error.value


def test_out_of_memory_is_answered_with_the_batch_that_fits_and_the_next_rung(sft_split, tmp_path, monkeypatch):
    """The prediction of a real run, then the device says no: half the rows at most, the same update."""
    wide = make_tiny(tmp_path / "wide", hidden=64, layers=4)
    options = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 3}
    kept = []
    monkeypatch.setattr("lpt_train.sft.Updates", lambda run, *args, **named: kept.append(run.memory) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(config(wide, **options), split=sft_split, out=tmp_path / "run")
    (memory,) = kept
    memory.budget = int(0.6 * memory.choice.memory.reserved)
    told = answer(wide, sft_split, tmp_path / "oom", memory, **options)
    assert told.what == "there is not enough memory for this batch"
    size, accumulation = (int(part.split("=")[1].split()[0]) for part in told.next.split("--set ")[1:3])
    assert size in (3, 4)
    assert size * accumulation == 24
    assert "gradient_checkpointing=true" in told.next
    memory.budget = 1
    hopeless = answer(wide, sft_split, tmp_path / "hopeless", memory, **options)
    assert "no batch of whole rows" in hopeless.next
    assert "per_device_train_batch_size" not in hopeless.next


def test_out_of_memory_without_a_prediction_is_answered_too(tiny, sft_split, tmp_path):
    told = answer(tiny, sft_split, tmp_path / "a", None, per_device_train_batch_size=6, gradient_accumulation_steps=2)
    assert "per_device_train_batch_size=3 --set gradient_accumulation_steps=4" in told.next
    told = answer(tiny, sft_split, tmp_path / "b", None, per_device_train_batch_size=1)
    assert told.next == "use a smaller model or a larger GPU"


def test_out_of_memory_before_the_first_step_is_answered_too(tiny, tmp_path, monkeypatch):
    def full(self, rows, policy="policy"):
        raise OUT_OF_MEMORY

    monkeypatch.setattr(MicroBatch, "row_logprobs", full)
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(8)), "preference")
    made = from_mapping(PreferenceConfig, {"model": str(tiny), "max_steps": 1, "lora_r": 4})
    with pytest.raises(LptError, match="not enough memory"):
        train_preference(made, split=split, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "next_"),
    [({"use_peft": False}, "use_peft=true"), ({}, "load_in_4bit=true"), ({"load_in_4bit": True}, "a smaller model")],
)
def test_weights_that_are_too_large_are_answered_too(tiny, sft_split, tmp_path, monkeypatch, options, next_):
    def full(*_args, **_named):
        raise OUT_OF_MEMORY

    monkeypatch.setattr("lpt_train.adapters._loaded", full)
    with pytest.raises(LptError, match="for the weights") as error:
        train(config(tiny, **options), split=sft_split, out=tmp_path / "run")
    assert next_ in error.value.next
    assert "lpt plan memory" in error.value.next


def test_moments_move_to_the_host_when_the_ladder_says_so(tiny, sft_split, tmp_path, monkeypatch):
    made = []
    original = OffloadedAdamW.__init__
    monkeypatch.setattr(OffloadedAdamW, "__init__", lambda self, *a, **k: made.append(1) or original(self, *a, **k))
    options = {"use_peft": False, "max_memory_gb": 1e-6, "max_steps": 1}
    body = train(config(tiny, **options), split=sft_split, out=tmp_path / "run").body
    assert made
    assert body["memory"]["work"]["offload_optimizer"]
    assert body["config"]["optim"]["optim"] == "adamw_torch"
