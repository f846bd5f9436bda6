"""Checkpoints: there whole or not at all, no pickles, and refused when they are not what they say."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lpt_train.adapters import attach
from lpt_train.checkpoint import (
    checkpoint_sha256,
    load_checkpoint,
    read_provenance,
    read_state,
    save_checkpoint,
)
from lpt_train.checkpoint_folders import checkpoints, latest, recover
from lpt_train.config import Lora, Optim
from lpt_train.models import load_model, resolve
from lpt_train.optimizers import make_optimizer
from manifests.errors import BadInputError, LptError, RefusedError
from manifests.files import FILE, unfinished_name

PROVENANCE = {
    "run_id": "r", "manifest": "m", "split": "a@1:train", "content_root": "c", "tainted": False,
    "tokenizer": {"f": "1"},
}  # fmt: skip


def trained(tiny, *, lora: bool):
    """A model and an optimizer after one update."""
    torch.manual_seed(0)
    model = load_model(str(tiny))
    model = attach(model, Lora(lora_r=2)) if lora else model
    optimizer = make_optimizer(model, Optim(weight_decay=0.1))
    model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    optimizer.step()
    return model, optimizer


def save(directory, model, optimizer, step=1, **named):
    return save_checkpoint(
        directory, step=step, model=model, optimizer=optimizer, cursor={"place": 8}, provenance=PROVENANCE,
        config={"a": 1}, **named,
    )  # fmt: skip


@pytest.mark.parametrize("lora", [True, False])
def test_what_is_saved_comes_back_bit_for_bit(tiny, tmp_path, lora):
    model, optimizer = trained(tiny, lora=lora)
    random.seed(3), np.random.seed(3), torch.manual_seed(3)  # noqa: NPY002
    own = {"buffer": torch.tensor([1.5, -2.0])}
    path = save(tmp_path, model, optimizer, extra={"pending": [1, 2]}, tensors=own)
    drawn = random.random(), np.random.random(), torch.rand(3)  # noqa: NPY002
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    fresh = load_model(str(tiny))
    fresh = attach(fresh, Lora(lora_r=2)) if lora else fresh
    again = make_optimizer(fresh, Optim(weight_decay=0.1))
    back = load_checkpoint(path, model=fresh, optimizer=again, provenance=PROVENANCE)
    assert (back.step, back.cursor, back.extra) == (1, {"place": 8}, {"pending": [1, 2]})
    assert torch.equal(back.tensors["buffer"], own["buffer"])
    for name, parameter in fresh.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    assert (random.random(), np.random.random()) == drawn[:2]  # noqa: NPY002
    assert torch.equal(torch.rand(3), drawn[2])
    before, after = optimizer.state_dict(), again.state_dict()
    assert before["param_groups"] == after["param_groups"]
    assert before["state"].keys() == after["state"].keys()
    for index, values in before["state"].items():
        for key, value in values.items():
            assert torch.equal(value, after["state"][index][key]), (index, key)


def test_an_adapter_checkpoint_holds_the_adapter_alone_and_nothing_is_a_pickle(tiny, tmp_path):
    path = save(tmp_path, *trained(tiny, lora=True))
    names = {file.name for file in path.iterdir()}
    assert {file.suffix for file in path.iterdir()} == {".json", ".safetensors"}
    assert "adapter_model.safetensors" in names
    assert "model.safetensors" not in names
    assert all("lora_" in name for name in load_file(path / "adapter_model.safetensors"))
    assert read_provenance(path) == PROVENANCE | {"step": 1}


def test_only_the_newest_are_kept(tiny, tmp_path):
    model, optimizer = trained(tiny, lora=True)
    for step in (1, 2, 3, 4):
        save(tmp_path, model, optimizer, step=step, keep_last=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000004"]
    save(tmp_path, model, optimizer, step=4, keep_last=2)  # the same step again replaces it
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000003", "step-000004"]


@pytest.mark.parametrize("keep_last", [1, 2])
def test_a_kill_while_a_step_is_written_again_never_leaves_none(tiny, tmp_path, monkeypatch, keep_last):
    """Killed before and after each change of a name: the old weights or the new ones are there, whole."""

    class Killed(BaseException):
        pass

    model, optimizer = trained(tiny, lora=True)
    rename, kills, found = Path.rename, 0, set()
    for at in range(20):
        directory = tmp_path / str(at)
        old = checkpoint_sha256(save(directory, model, optimizer, step=4, keep_last=keep_last))
        calls = 0

        def killing(self, target, at=at):
            nonlocal calls
            calls += 1
            if calls - 1 == at / 2:
                raise Killed
            renamed = rename(self, target)
            if calls - 1 == (at - 1) / 2:
                raise Killed
            return renamed

        monkeypatch.setattr(Path, "rename", killing)
        try:
            save(directory, model, optimizer, step=4, keep_last=keep_last, extra={"again": True})
        except Killed:
            kills += 1
        monkeypatch.setattr(Path, "rename", rename)
        (kept,) = checkpoints(directory)
        found.add(checkpoint_sha256(kept) == old and not read_state(kept)["extra"])
        load_checkpoint(kept, model=model, optimizer=optimizer, provenance=PROVENANCE)
        final = save(directory, model, optimizer, step=4, keep_last=keep_last, extra={"third": True})
        assert [path.name for path in directory.iterdir()] == ["step-000004"]
        assert read_state(final)["extra"] == {"third": True}
    assert kills >= 4
    assert found == {True, False}


def test_what_is_resumed_after_such_a_kill_has_its_name_again(tiny, tmp_path):
    kept = save(tmp_path, *trained(tiny, lora=True), step=4)
    old = kept.rename(tmp_path / ".old-step-000004")
    assert checkpoints(tmp_path) == [old]
    recover(tmp_path)
    assert checkpoints(tmp_path) == [kept]


def test_checkpoints_are_ordered_by_number(tiny, tmp_path):
    model, optimizer = trained(tiny, lora=True)
    for step in (999_999, 1_000_000, 1_000_001):
        save(tmp_path / "checkpoints", model, optimizer, step=step, keep_last=2)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-1000000", "step-1000001"]
    save(
        tmp_path / "checkpoints", model, optimizer, step=999_998, keep_last=2
    )  # what was just written is never removed
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-999998", "step-1000001"]
    (tmp_path / "run.json").write_text("{}")
    assert resolve(str(tmp_path), tmp_path) == str(latest(tmp_path / "checkpoints"))
    (tmp_path / "checkpoints" / "step-9999999x").mkdir()
    (tmp_path / "checkpoints" / "step-9999999x" / "state.json").write_text("{}")
    assert latest(tmp_path / "checkpoints").name == "step-1000001"


def test_a_write_that_fails_leaves_the_one_before(tiny, tmp_path, monkeypatch):
    model, optimizer = trained(tiny, lora=True)
    first = save(tmp_path, model, optimizer, step=1)
    digest = checkpoint_sha256(first)

    def full(*_a, **_k):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lpt_train.checkpoint.save_file", full)
    with pytest.raises(BadInputError, match="cannot be written") as error:
        save(tmp_path, model, optimizer, step=2)
    assert "space" in error.value.next
    assert latest(tmp_path) == first
    assert checkpoint_sha256(first) == digest
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_weights_that_are_not_finite_are_never_saved(tiny, tmp_path):
    model, optimizer = trained(tiny, lora=True)
    first = save(tmp_path, model, optimizer, step=1)
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad)[0, 0] = float("nan")
    with pytest.raises(LptError, match="not finite"):
        save(tmp_path, model, optimizer, step=2)
    assert checkpoints(tmp_path) == [first]


def test_a_damaged_file_is_named(tiny, tmp_path):
    model, optimizer = trained(tiny, lora=True)
    path = save(tmp_path, model, optimizer)
    with open(path / "optimizer.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(BadInputError, match="damaged") as error:
        load_checkpoint(path, model=model, optimizer=optimizer, provenance=PROVENANCE)
    assert "optimizer.safetensors" in str(error.value)


@pytest.mark.parametrize("change", [{"step": 99}, {"cursor": {}}, {"files": {}}, {"sha256": None}, "list", "empty"])
def test_an_edited_state_is_damage(tiny, tmp_path, change):
    model, optimizer = trained(tiny, lora=True)
    path = save(tmp_path, model, optimizer)
    state = json.loads((path / "state.json").read_text())
    edited = [] if change == "list" else {} if change == "empty" else state | change
    (path / "state.json").write_text(json.dumps(edited))
    with pytest.raises(BadInputError, match="damaged"):
        load_checkpoint(path, model=model, optimizer=optimizer, provenance=PROVENANCE)


@pytest.mark.parametrize(
    "change", [{"split": "b@1:train"}, {"manifest": "n"}, {"tokenizer": {"f": "2"}}, {"run_id": "s"}]
)
def test_a_checkpoint_of_something_else_is_refused(tiny, tmp_path, change):
    model, optimizer = trained(tiny, lora=True)
    path = save(tmp_path, model, optimizer)
    with pytest.raises(RefusedError, match=f"another {next(iter(change))}"):
        load_checkpoint(path, model=model, optimizer=optimizer, provenance=PROVENANCE | change)


def test_other_adapter_options_are_refused(tiny, tmp_path):
    path = save(tmp_path, *trained(tiny, lora=True))
    other = attach(load_model(str(tiny)), Lora(lora_r=2, lora_target_modules="q_proj"))
    with pytest.raises(RefusedError, match="other tensors"):
        load_checkpoint(path, model=other, optimizer=None, provenance=PROVENANCE)


def test_a_folder_without_its_last_file_is_no_checkpoint(tiny, tmp_path):
    model, optimizer = trained(tiny, lora=True)
    first, second = save(tmp_path, model, optimizer, step=1), save(tmp_path, model, optimizer, step=2)
    (second / "state.json").unlink()
    assert latest(tmp_path) == first
    assert json.loads((first / "state.json").read_text())["type"] == "lpt.checkpoint-state/1"


def test_an_adapter_of_another_program_is_as_marked_as_its_base(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir(), adapter.mkdir()
    (base / "lpt.json").write_text(json.dumps(PROVENANCE | {"tainted": True}))
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert read_provenance(adapter)["tainted"] is True
    (base / "lpt.json").write_text("{half")
    with pytest.raises(BadInputError, match="cannot be read"):
        read_provenance(adapter)


def test_what_a_kill_left_half_written_beside_the_checkpoints_goes(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    living = unfinished_name(FILE)  # such as the metrics that another process of the run is writing
    gone = living.replace(f"-{os.getpid()}-", "-999999999-")
    for name in (f"{gone}.json", f"{gone}.jsonl", f"{living}.jsonl", "run.json", ".lock"):
        (tmp_path / name).write_text("{")
    recover(tmp_path / "checkpoints")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", f"{living}.jsonl", "checkpoints", "run.json"]
