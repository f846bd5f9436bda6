"""Checkpoints: all that a bit-exact resume needs, in safetensors and JSON, there whole or not at all.

    step-000010/
      adapter_model.safetensors + adapter_config.json    (or model.safetensors + config.json when every weight trains)
      optimizer.safetensors  rng.safetensors  extra.safetensors
      state.json      step, cursor, optimizer groups, random states, what it was trained on, sha256 of every file
      lpt.json        provenance for whoever meets the weights alone: run, manifest, split, tainted or not

A checkpoint is written in a hidden folder, flushed, then renamed; a kill at any moment leaves the earlier ones usable.
Nothing is pickled, and weights that are not finite are never saved.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from lpt_train.adapter_files import read_adapter, write_adapter
from lpt_train.adapter_folder import PROVENANCE
from lpt_train.adapter_folder import read_provenance as read_provenance
from lpt_train.checkpoint_folders import STATE, name_of, put_in_place, recover
from lpt_train.disk import WRITE_ERRORS, cannot_save
from lpt_train.optimizers import restore
from manifests.errors import BadInputError, LptError, RefusedError
from manifests.files import fsync_file, fsync_folder


@dataclass(frozen=True)
class Restored:
    """What a resumed loop goes on from: `step` updates done, the data `cursor`, the algorithm's own state."""

    path: Path
    step: int
    cursor: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def save_checkpoint(
    directory: Path,
    *,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    cursor: Mapping[str, Any],
    provenance: Mapping[str, Any],
    config: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    keep_last: int = 2,
    keep: Collection[str] = (),
) -> Path:
    """Write `directory/step-NNNNNN` and return it; keeps the newest `keep_last`, and those named in `keep`.

    `provenance` is what `runs.Run.provenance` says; `extra` (JSON) and `tensors` are the algorithm's own state. Raises
    `LptError` when a trained weight is not finite and `BadInputError` when the disk is full or read-only.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not bool(torch.isfinite(parameter).all()):
            raise LptError(
                "the weights are not finite and are not saved", seen=f"{name} at step {step}",
                next="resume from the last checkpoint with a lower learning rate",
            )  # fmt: skip
    final = directory / name_of(step)
    temporary = directory / f".tmp-{final.name}-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        recover(directory)
        temporary.mkdir()
        _write_model(model, temporary)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        numbers, groups = _split_optimizer(optimizer)
        random_tensors, random_numbers = _random_state()
        save_file(numbers, temporary / "optimizer.safetensors")
        save_file(random_tensors, temporary / "rng.safetensors")
        own_state = {name: value.detach().cpu().contiguous() for name, value in (tensors or {}).items()}
        save_file(own_state, temporary / "extra.safetensors")
        _write_json(temporary / PROVENANCE, {**provenance, "step": step})
        state = {
            "type": "lpt.checkpoint-state/1", "step": step, "cursor": dict(cursor), "extra": dict(extra or {}),
            "config": dict(config), "provenance": dict(provenance), "optimizer": groups, "random": random_numbers,
            "trainable": [name for name, parameter in model.named_parameters() if parameter.requires_grad],
            "files": {str(path.relative_to(temporary)): _sha256(path) for path in _files(temporary)},
        }  # fmt: skip
        _write_json(temporary / STATE, {**state, "sha256": _state_sha256(state)})
        for path in _files(temporary):
            path.chmod((temporary / STATE).stat().st_mode)  # safetensors makes files that only their owner can read
            fsync_file(path)
        fsync_folder(temporary)
        put_in_place(temporary, final, keep_last, keep)
    except WRITE_ERRORS as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise cannot_save(final, error) from error
    return final


def load_checkpoint(
    path: Path, *, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, provenance: Mapping[str, Any]
) -> Restored:
    """Put weights, optimizer and random states back in place.

    Raises `BadInputError` when a file is not as it was written, and `RefusedError` when the checkpoint is of another
    run, split or tokenizer than `provenance` says, or trains other tensors than `model`.
    """
    state = verify_files(path)
    for name in ("run_id", "manifest", "split", "content_root", "tainted", "tokenizer"):
        if state["provenance"].get(name) != provenance.get(name):
            raise RefusedError(
                f"the checkpoint is of another {name}", seen=f"{state['provenance'].get(name)}, {provenance.get(name)}",
                next="resume with what the run started with, or start a new run in another folder",
            )  # fmt: skip
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if trainable != state["trainable"]:
        raise RefusedError(
            "the checkpoint trains other tensors than this model", seen=f"{len(state['trainable'])} there, "
            f"{len(trainable)} here", next="resume with the model and adapter options of the run",
        )  # fmt: skip
    _read_model(model, path)
    if optimizer is not None:
        _join_optimizer(optimizer, state["optimizer"], load_file(path / "optimizer.safetensors"))
    _restore_random_state(load_file(path / "rng.safetensors"), state["random"])
    return Restored(path, state["step"], state["cursor"], state["extra"], load_file(path / "extra.safetensors"))


def read_state(path: Path) -> dict[str, Any]:
    """The JSON half of a checkpoint."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInputError(
            "there is no readable checkpoint", seen=f"{path}: {error}", next="check the path"
        ) from error
    if not isinstance(state, dict) or state.get("sha256") != _state_sha256(state):
        raise BadInputError(
            "a checkpoint is damaged", seen=f"{path / STATE} is not as it was written",
            next=f"remove the folder {path} to resume from the one before it",
        )  # fmt: skip
    return state


def verify_files(path: Path) -> dict[str, Any]:
    """The JSON half of a checkpoint whose files are as they were written; raises `BadInputError` when one is not."""
    state = read_state(path)
    for name, digest in state["files"].items():
        if not (path / name).is_file() or _sha256(path / name) != digest:
            raise BadInputError(
                "a checkpoint is damaged", seen=f"{path / name} is not as it was written",
                next=f"remove the folder {path} to resume from the one before it",
            )  # fmt: skip
    return state


def checkpoint_sha256(path: Path) -> str:
    """One digest for a whole checkpoint: sha256 over its sorted list of file names and digests."""
    lines = [f"{digest}  {name}\n" for name, digest in sorted(read_state(path)["files"].items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _state_sha256(state: Mapping[str, Any]) -> str:
    """The digest of the JSON half, as it is after a round trip, without the place of the digest itself."""
    plain = json.loads(json.dumps({name: value for name, value in state.items() if name != "sha256"}))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _write_model(model: torch.nn.Module, folder: Path) -> None:
    if isinstance(model, PeftModel):
        write_adapter(model, folder)
    else:
        cast(PreTrainedModel, model).save_pretrained(folder)


def _read_model(model: torch.nn.Module, folder: Path) -> None:
    if isinstance(model, PeftModel):
        read_adapter(model, folder)
        return
    # Through the library's own reader: some architectures store their weights under other names than their modules.
    dtype = next(model.parameters()).dtype
    saved_model = type(cast(PreTrainedModel, model)).from_pretrained(folder, dtype=dtype, use_safetensors=True)
    model.load_state_dict(saved_model.state_dict())


def _split_optimizer(optimizer: torch.optim.Optimizer | None) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    if optimizer is None:
        return {}, {"groups": [], "numbers": {}}
    state = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, Any] = {}
    seen: set[int] = set()

    def take(name: str, value: Any) -> None:
        if isinstance(value, Mapping):  # bitsandbytes keeps its tensors one level deeper
            for key, inner in value.items():
                take(f"{name}.{key}", inner)
        elif isinstance(value, torch.Tensor):
            plain = value.detach().cpu().contiguous()
            tensors[name] = plain.clone() if plain.data_ptr() in seen else plain  # bitsandbytes shares its code books
            seen.add(plain.data_ptr())
        else:
            numbers[name] = value

    for index, values in state["state"].items():
        take(str(index), values)
    return tensors, {"groups": state["param_groups"], "numbers": numbers}


def _join_optimizer(
    optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *saved["numbers"].items()]:
        index, *path, key = name.split(".")
        inside = state.setdefault(int(index), {})
        for part in path:
            inside = inside.setdefault(part, {})
        inside[key] = value
    groups = [
        {key: tuple(value) if key == "betas" else value for key, value in group.items()} for group in saved["groups"]
    ]
    restore(optimizer, {"state": state, "param_groups": groups})


def _random_state() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors |= {f"cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    legacy = dict(np.random.get_state(legacy=False))  # noqa: NPY002  (the global generator, which libraries use)
    legacy["state"] = {"key": legacy["state"]["key"].tolist(), "pos": legacy["state"]["pos"]}
    return tensors, {"python": random.getstate(), "numpy": legacy}


def _restore_random_state(tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> None:
    torch.set_rng_state(tensors["torch"])
    cuda = [tensors[f"cuda.{i}"] for i in range(len(tensors) - 1)]
    if torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
    version, internal, gauss = numbers["python"]
    random.setstate((version, tuple(internal), gauss))
    state = numbers["numpy"]
    key = np.asarray(state["state"]["key"], dtype=np.uint32)
    np.random.set_state({**state, "state": {**state["state"], "key": key}})  # noqa: NPY002


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
