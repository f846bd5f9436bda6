"""The SFT loop: it learns, its losses are TRL's, a resumed run is the uninterrupted one bit for bit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from train_cases import admit_by_hand, chat, chats, write_jsonl

from lpt_train import sft as loop
from lpt_train.admitted import load_split, load_unadmitted
from lpt_train.checkpoint import read_provenance
from lpt_train.checkpoint_folders import checkpoints, latest
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.packing import epoch_order
from lpt_train.render import Renderer
from lpt_train.sft import train
from manifests.catalog import Catalog
from manifests.errors import BadInputError, LptError, RefusedError

TIMES = ("tokens_per_second", "step_seconds", "eta_seconds")


def config(tiny, **options) -> SFTConfig:
    defaults = {"max_steps": 4, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "lora_r": 4}
    return from_mapping(SFTConfig, {"model": str(tiny), **defaults, **options})


def logged(out: Path) -> list[dict]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


@pytest.mark.parametrize("use_peft", [True, False])
def test_it_learns_and_proves_it(tiny, sft_split, tmp_path, use_peft):
    seen = []
    result = train(
        config(tiny, max_steps=12, use_peft=use_peft, lr_scheduler_type="cosine", warmup_steps=1),
        split=sft_split, out=tmp_path / "run", progress=lambda *line: seen.append(line),
    )  # fmt: skip
    first, last = result.body["metrics"]["loss"]
    assert last < first - 0.2
    proof = result.body["proof"]
    assert proof["verdict"] == "effective"
    assert proof["frozen_unchanged"]
    assert (proof["updates"], proof["nonzero_gradients"]) == (12, 12)
    assert [(done, total) for done, total, _ in seen] == [(n, 12) for n in range(1, 13)]
    assert {"loss", *TIMES} <= set(seen[0][2])
    assert result.body["steps"] == len(logged(tmp_path / "run")) == 12
    assert result.body["data"]["epoch_order_sha256"]


def test_an_admitted_split_leaves_no_mark_and_a_record_with_parents(tiny, tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    ref = admit_by_hand(catalog, "sft", {"train": chats(8), "validation": chats(10)[8:]})
    split, held_out = (load_split(f"{ref}:{name}", catalog=catalog) for name in ("train", "validation"))
    result = train(config(tiny), split=split, out=tmp_path / "run", catalog=catalog, eval_split=held_out)
    assert (result.body["verified"], result.body["tainted"], result.body["verdict"]) == ("admitted", False, "accept")
    assert result.body["parents"] == [split.manifest_id]
    assert result.body["eval"] == {"ref": "chats@1:validation", "content_root": held_out.content_root}
    before, after = result.body["metrics"]["eval_loss"]
    assert after < before
    (_, checkpoint), *_ = catalog.find("lpt.checkpoint/1")
    assert checkpoint["parents"] == [result.object_id]
    assert checkpoint["step"] == 4
    assert read_provenance(latest(tmp_path / "run" / "checkpoints"))["split"] == "chats@1:train"


def test_what_is_not_admitted_marks_the_run_its_artifacts_and_what_is_made_from_them(tiny, sft_split, tmp_path):
    result = train(config(tiny), split=sft_split, out=tmp_path / "first")
    assert result.body["tainted"]
    assert read_provenance(result.body["checkpoint"]["path"])["tainted"] is True
    catalog = Catalog.open(tmp_path / "catalog")
    split = load_split(f"{admit_by_hand(catalog, 'sft', {'train': chats(8)})}:train", catalog=catalog)
    child = train(config(tmp_path / "first"), split=split, out=tmp_path / "second", catalog=catalog)
    assert child.body["verified"] == "admitted"
    assert child.body["tainted"]
    assert child.body["model"]["made_from"]["run_id"] == result.run_id


def test_text_trains_on_every_token_but_the_first(tiny, tmp_path):
    rows = [{"text": f"a plain document, number {n}"} for n in range(8)]
    split = load_unadmitted(write_jsonl(tmp_path / "text.jsonl", rows), "text")
    result = train(config(tiny, max_steps=1), split=split, out=tmp_path / "run")
    # One token a byte and the end token, of which the first has no context.
    assert result.body["metrics"]["supervised_tokens"][0] == 4 * len(rows[0]["text"])


@pytest.mark.parametrize("packing", [False, True])
def test_a_run_is_the_same_however_its_steps_are_cut(tiny, sft_split, tmp_path, packing):
    """Rows of different lengths: the mean of the means of micro-batches would be another loss."""
    found = {}
    for name, size, accumulation in (("whole", 4, 1), ("cut", 1, 4)):
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
        made = config(tiny, **options, packing=packing, max_length=192 if packing else 512)
        train(made, split=sft_split, out=tmp_path / name)
        found[name] = logged(tmp_path / name)
    for metric in ("loss", "grad_norm", "supervised_tokens"):
        values = [[line[metric] for line in lines] for lines in found.values()]
        assert values[0] == pytest.approx(values[1], rel=1e-4), metric


RESUMED = [
    {"use_peft": True, "lora_dropout": 0.2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
    {"use_peft": False, "weight_decay": 0.1, "packing": True, "max_length": 128, "lr_scheduler_type": "cosine"},
]


@pytest.mark.parametrize("options", RESUMED, ids=["lora", "full"])
def test_stopped_and_resumed_is_uninterrupted_bit_for_bit(tiny, sft_split, tmp_path, options):
    options = {"max_steps": 6, "save_total_limit": 9, **options}
    whole = train(config(tiny, **options), split=sft_split, out=tmp_path / "whole")

    def terminate(done, _total, _metrics):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    first = train(config(tiny, **options), split=sft_split, out=tmp_path / "halves", progress=terminate)
    assert (first.status, first.body["steps"], first.body["failures"]) == ("stopped", 3, ["stopped by SIGTERM"])
    assert first.body["stopped_by"] == "SIGTERM"
    torch.rand(7)  # the process that resumes has another past
    second = train(config(tiny, **options), split=sft_split, out=tmp_path / "halves", resume=True)
    assert (second.status, second.run_id, second.body["steps"]) == ("done", first.run_id, 6)
    one, two = (latest(tmp_path / name / "checkpoints") for name in ("whole", "halves"))
    assert one.name == two.name == "step-000006"
    names = sorted(path.name for path in one.iterdir() if path.suffix == ".safetensors")
    assert len(names) == 4
    for name in names:  # weights, optimizer and random states
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    assert logged(tmp_path / "whole") == logged(tmp_path / "halves")
    for key in ("start", "end", "updates", "changed_tensors", "verdict"):
        assert whole.body["proof"][key] == second.body["proof"][key]
    assert whole.body["metrics"]["loss"] == second.body["metrics"]["loss"]


@pytest.mark.parametrize("lengths", [{"max_steps": (3, 6)}, {"num_train_epochs": (1, 2), "max_steps": (-1, -1)}])
def test_n_steps_made_longer_by_n_are_2n_bit_for_bit(tiny, sft_split, tmp_path, lengths):
    """A run that ended, resumed for as much again: under a constant schedule that is the run of the whole length."""
    options = {"lr_scheduler_type": "constant", "warmup_steps": 2, "lora_dropout": 0.1}
    short, long = (options | {name: ends[i] for name, ends in lengths.items()} for i in (0, 1))
    whole = train(config(tiny, **long), split=sft_split, out=tmp_path / "whole")
    first = train(config(tiny, **short), split=sft_split, out=tmp_path / "halves")
    second = train(config(tiny, **long), split=sft_split, out=tmp_path / "halves", resume=True)
    assert (first.status, second.status) == ("done", "done")
    assert whole.body["steps"] == second.body["steps"] == 2 * first.body["steps"]
    assert whole.body["proof"]["end"] == second.body["proof"]["end"]
    assert logged(tmp_path / "whole") == logged(tmp_path / "halves")


def test_a_run_that_ended_in_a_short_step_is_not_made_longer(tiny, sft_split, tmp_path):
    options = {"lr_scheduler_type": "constant", "max_steps": -1, "per_device_train_batch_size": 5}
    first = train(config(tiny, **options), split=sft_split, out=tmp_path / "run")  # 16 rows: 5, 5, 5, 1
    assert first.body["steps"] == 4
    record = (tmp_path / "run/run.json").read_bytes()
    with pytest.raises(RefusedError, match="fewer rows"):
        train(config(tiny, **options, num_train_epochs=2), split=sft_split, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run/run.json").read_bytes() == record
    again = train(config(tiny, **options), split=sft_split, out=tmp_path / "run", resume=True)
    assert (again.status, again.body["steps"]) == ("done", 4)


def test_a_refused_resume_leaves_the_run_as_it_was(tiny, sft_split, tmp_path):
    out = tmp_path / "run"
    first = train(config(tiny, max_steps=2), split=sft_split, out=out)
    before = {path: path.read_bytes() for path in (out / "run.json", out / "metrics.jsonl")}
    damaged = latest(out / "checkpoints") / "optimizer.safetensors"
    whole = damaged.read_bytes()
    with pytest.raises(RefusedError, match="aims at the length"):
        train(config(tiny, max_steps=4), split=sft_split, out=out, resume=True)
    damaged.write_bytes(whole[:-1])
    with pytest.raises(BadInputError, match="damaged"):
        train(config(tiny, max_steps=2), split=sft_split, out=out, resume=True)
    assert {path: path.read_bytes() for path in before} == before
    damaged.write_bytes(whole)  # and the folder is free again
    assert train(config(tiny, max_steps=2), split=sft_split, out=out, resume=True).run_id == first.run_id


def test_a_test_split_is_not_trained_on_and_a_validation_split_is_said(tiny, tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    ref = admit_by_hand(catalog, "sft", {name: chats(8) for name in ("test", "order_robustness", "test_hard")})
    for name in ("test", "order_robustness", "test_hard"):
        split = load_split(f"{ref}:{name}", catalog=catalog)
        with pytest.raises(RefusedError, match="measures, it does not train") as refused:
            train(config(tiny), split=split, out=tmp_path / "run", catalog=catalog)
        assert f"{ref}:train" in refused.value.next
    assert not (tmp_path / "run").exists()
    ref = admit_by_hand(catalog, "sft", {"validation": chats(8), "test": chats(10)[8:]}, name="more")
    split, test = (load_split(f"{ref}:{name}", catalog=catalog) for name in ("validation", "test"))
    result = train(config(tiny, max_steps=1), split=split, out=tmp_path / "run", catalog=catalog, eval_split=test)
    assert result.notes == [f"{ref}:validation is trained on, so that it can no longer choose between models"]


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
import lpt_train.checkpoint as checkpoint
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.sft import train
model, data, out, at = sys.argv[1:]
write, calls = checkpoint.save_file, 0
def killing(tensors, path, *rest):
    global calls
    calls += 1
    if calls == int(at):
        open(path, "wb").write(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    return write(tensors, path, *rest)
checkpoint.save_file = killing
options = dict(model=model, max_steps=4, learning_rate=1e-2, per_device_train_batch_size=4, lora_r=4, save_steps=1)
train(from_mapping(SFTConfig, options), split=load_unadmitted(data, "sft"), out=out)
"""


def test_kill_9_in_the_middle_of_a_checkpoint_leaves_the_one_before(tiny, sft_split, warm, tmp_path):
    whole = train(config(tiny, save_steps=1), split=sft_split, out=tmp_path / "whole")
    arguments = (tiny, sft_split.name, tmp_path / "killed", 5)  # three files a checkpoint: the second one
    killed = warm.run(*arguments, cwd=tmp_path, code=KILLED)
    assert killed.returncode == -signal.SIGKILL
    directory = tmp_path / "killed" / "checkpoints"
    assert [path.name for path in checkpoints(directory)] == ["step-000001"]
    assert len(list(directory.glob(".tmp-*"))) == 1
    result = train(config(tiny, save_steps=1), split=sft_split, out=tmp_path / "killed", resume=True)
    assert result.status == "done"
    assert result.body["proof"]["end"] == whole.body["proof"]["end"]
    assert logged(tmp_path / "killed") == logged(tmp_path / "whole")
    assert not list(directory.glob(".tmp-*"))


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tiny, sft_split, tmp_path, monkeypatch
):
    import lpt_train.sft as module

    honest, calls = module.sft_loss, []

    def spoiled(*arguments):
        calls.append(1)
        return honest(*arguments) * (float("nan") if len(calls) == 3 else 1)

    monkeypatch.setattr(module, "sft_loss", spoiled)
    catalog = Catalog.open(tmp_path / "catalog")
    with pytest.raises(LptError, match="loss of step 3 is not finite") as error:
        train(config(tiny, save_steps=1), split=sft_split, out=tmp_path / "run", catalog=catalog)
    assert "step-000002" in error.value.next
    kept = latest(tmp_path / "run" / "checkpoints")
    assert kept.name == "step-000002"
    (_, body), *_ = catalog.find("lpt.run/1")
    assert body["status"] == "failed"
    assert body["checkpoint"]["path"] == str(kept)
    assert body["proof"]["updates"] == 2


def test_a_learning_rate_of_zero_is_no_effective_update(tiny, sft_split, tmp_path):
    result = train(config(tiny, learning_rate=0, max_steps=2), split=sft_split, out=tmp_path / "run")
    assert result.body["verdict"] == "no_effective_update"
    assert result.body["proof"]["changed_tensors"] == 0


def test_another_split_another_contract_and_another_tokenizer_are_refused(tiny, renderer, tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    lists = {"train": chats(8), "other": chats(9)[1:]}
    ours = {"name": "x", "fingerprint": renderer.fingerprint, "max_length": 9, "template_sha256": "0" * 64}
    ref = admit_by_hand(catalog, "sft", lists, tokenizer=ours)
    split, other = (load_split(f"{ref}:{name}", catalog=catalog) for name in lists)
    train(config(tiny, max_steps=1), split=split, out=tmp_path / "run", catalog=catalog)
    with pytest.raises(RefusedError, match="another content_root"):
        train(config(tiny, max_steps=2), split=other, out=tmp_path / "run", catalog=catalog, resume=True)
    ref = admit_by_hand(catalog, "sft", lists, tokenizer={**ours, "fingerprint": "f" * 64})
    theirs = load_split(f"{ref}:train", catalog=catalog)
    with pytest.raises(RefusedError, match="another tokenizer"):
        train(config(tiny), split=theirs, out=tmp_path / "theirs", catalog=catalog)
    sums = [{"prompt": chat("1+1"), "answer": "2", "verifier": "integer"}]
    rlvr = load_split(f"{admit_by_hand(catalog, 'rlvr', {'train': sums}, name='sums')}:train", catalog=catalog)
    with pytest.raises(RefusedError, match="not for sft"):
        train(config(tiny), split=rlvr, out=tmp_path / "sums", catalog=catalog)
    assert not (tmp_path / "sums").exists()


class Told:
    """A progress that keeps what it is told before the first step."""

    def __init__(self):
        self.notes, self.waited, self.steps = [], [], 0

    def begin(self, line, notes):
        assert self.steps == 0
        self.notes = list(notes)

    @contextlib.contextmanager
    def waiting(self, text):
        self.waited.append(text)
        yield

    def __call__(self, step, total, metrics):
        self.steps += 1


def test_rows_that_are_dropped_are_said_before_the_first_step_and_counted(tiny, tmp_path):
    rows = [*chats(8), {"messages": chat("long", "x" * 3000)}, {"messages": chat("nobody answers")}]
    split, told = load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows), "sft"), Told()
    result = train(config(tiny, max_steps=1), split=split, out=tmp_path / "run", progress=told)
    assert result.body["data"]["dropped"] == {"no_supervised_token": 1, "too_long": 1}
    (note,) = result.notes
    assert note.startswith("2 of 10 rows were dropped: no_supervised_token 1, too_long 1; a larger max_length")
    assert told.notes == result.notes
    assert told.waited == []  # without an evaluation split nothing is measured


def test_rows_that_are_cut_are_said_and_counted(tiny, tmp_path):
    rows = [*chats(3), {"messages": chat("long", "x" * 3000)}]
    split = load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows), "sft")
    asked = config(tiny, max_steps=1, max_length=100, truncation="keep_start")
    result = train(asked, split=split, out=tmp_path / "run", eval_split=split)
    read = result.body["data"]
    assert (read["dropped"], read["cut"]["rows"], read["cut"]["without_stop"]) == ({}, 1, 1)
    share = f"{read['supervised_share']:.0%} of what is left is supervised"
    for whose, note in zip(("rows", "evaluation rows"), result.notes[:2], strict=True):
        assert note.startswith(f"1 of 4 {whose} were cut to 100 tokens: 1 end in the middle of a reply")
        assert note.endswith(share)


@pytest.mark.parametrize("model", ["tiny", "given"])
def test_a_folder_that_cannot_be_made_is_bad_input(tiny, sft_split, tmp_path, model):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInputError, match="cannot be written"):
        train(config(tiny if model == "given" else "tiny", max_steps=1), split=sft_split, out=tmp_path / "file" / "run")


def test_rows_that_are_evaluated_and_trained_on_are_said(tiny, sft_split, tmp_path):
    told = Told()
    train_on = {"split": sft_split, "eval_split": sft_split, "progress": told}
    result = train(config(tiny, max_steps=1), out=tmp_path / "run", **train_on)
    assert result.notes == told.notes == ["16 rows that the run is evaluated on are trained on as well"]
    assert told.waited == ["measuring the evaluation split before the first step …"]


def test_the_rate_of_a_run_is_that_of_its_steps(tiny, sft_split, tmp_path, monkeypatch):
    measured = loop.evaluate
    monkeypatch.setattr(loop, "evaluate", lambda *given: (time.sleep(0.3), measured(*given))[1])
    result = train(config(tiny, eval_steps=2), split=sft_split, out=tmp_path / "run", eval_split=sft_split)
    first, *steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert set(first) == {"step", "eval_loss"}
    rate = sum(step["tokens"] for step in steps) / sum(step["step_seconds"] for step in steps)
    assert result.body["tokens_per_second"] == pytest.approx(rate, rel=1e-3)
    least = (0.6, 0.3, 0.3, 0)
    assert all(step["eta_seconds"] >= seconds for step, seconds in zip(steps, least, strict=True))
    assert steps[-1]["eta_seconds"] == 0
    assert max(step["step_seconds"] for step in steps[2:]) < 0.3  # what follows an evaluation is no longer for it


def test_epochs_and_packing_set_the_number_of_steps(tiny, sft_split, tmp_path):
    options = {"max_steps": -1, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    result = train(config(tiny, num_train_epochs=1.5, **options), split=sft_split, out=tmp_path / "rows")
    assert result.body["steps"] == 4  # 16 rows × 1.5 = 24 rows, 6 a step
    result = train(config(tiny, packing=True, max_length=256, **options), split=sft_split, out=tmp_path / "packed")
    assert result.body["data"]["units"] == 3
    assert result.body["steps"] == 1


def test_bfloat16_on_cpu_trains(tiny, sft_split, tmp_path):
    result = train(config(tiny, dtype="bfloat16", max_steps=6), split=sft_split, out=tmp_path / "run")
    assert result.body["proof"]["verdict"] == "effective"
    exact = train(config(tiny, max_steps=6), split=sft_split, out=tmp_path / "exact")
    assert result.body["metrics"]["loss"] == pytest.approx(exact.body["metrics"]["loss"], abs=0.03)


@pytest.mark.parametrize("use_peft", [True, False])
def test_losses_are_those_of_trl_step_by_step(tiny, tokenizer, tmp_path, use_peft):
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM

    rows, seed = chats(20), 42
    options = {
        "max_steps": 5, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-2,
        "warmup_steps": 1, "use_peft": use_peft, "seed": seed, "weight_decay": 0.0, "lora_r": 4,
    }  # fmt: skip
    split = load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows), "sft")
    train(config(tiny, **options), split=split, out=tmp_path / "ours")
    ours = [(row["loss"], row["grad_norm"]) for row in logged(tmp_path / "ours")]

    class InOrder(trl.SFTTrainer):
        """TRL over the order that our epoch has."""

        def _get_train_sampler(self, dataset=None):
            return SequentialSampler(self.train_dataset if dataset is None else dataset)

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    peft_config = None
    if use_peft:
        from peft import LoraConfig

        peft_config = LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        torch.manual_seed(seed)
    trainer = InOrder(
        model=model,
        processing_class=tokenizer,
        peft_config=peft_config,
        train_dataset=datasets.Dataset.from_list([rows[i] for i in epoch_order(len(rows), seed, 0)]),
        args=trl.SFTConfig(
            output_dir=str(tmp_path / "trl"), max_steps=5, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            learning_rate=1e-2, lr_scheduler_type="linear", warmup_steps=1, weight_decay=0.0, max_grad_norm=1.0,
            logging_steps=1, bf16=False, use_cpu=True, gradient_checkpointing=False, report_to=[], save_strategy="no",
            assistant_only_loss=True, max_length=1024, packing=False, seed=seed, disable_tqdm=True,
        ),
    )  # fmt: skip
    trainer.train()
    theirs = [(row["loss"], row["grad_norm"]) for row in trainer.state.log_history if "loss" in row]
    assert len(theirs) == len(ours) == 5
    for step, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine == pytest.approx(other, abs=1e-4), step


def test_the_mask_trained_on_is_the_one_that_is_shown(renderer: Renderer):
    encoded = renderer.encode(chats(1)[0]["messages"])
    shown = renderer.tokenizer.decode([i for i, counts in zip(encoded.ids, encoded.loss_mask, strict=True) if counts])
    assert shown == "one<|im_end|>"
