"""Models and tokenizers: loading, where they run and in which precision, and what they are (a digest).

Weights are safetensors (or GGUF, by a path that ends in .gguf); pickled checkpoints and remote code are refused,
because both run code of whoever made the file.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from lpt_train.adapter_folder import PROVENANCE, adapter_base, quantisation_of, read_provenance
from lpt_train.checkpoint_folders import STATE, latest
from lpt_train.disk import WRITE_ERRORS, cannot_save
from lpt_train.quantised import rounded_to_4bit
from lpt_train.reward_head import has_reward_head
from lpt_train.tiny import make_tiny
from lpt_train.whole_weights import read_adapter_over, read_whole
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, LptError, RefusedError, UsageError
from manifests.files import make_folder

transformers_logging.disable_progress_bar()  # the run has its own progress line
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WEIGHTS = ("config.json", "adapter_config.json", "model*.safetensors", "adapter_model.safetensors")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class Placement:
    """Where a run computes (`device`) and in which precision its forward passes are (`dtype`)."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of a forward pass: bf16 products over whatever precision the parameters are kept in."""
        if self.dtype is torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def placement(device: str = "auto", dtype: str = "auto") -> Placement:
    """Resolve the options `device` and `dtype`: auto is CUDA in bfloat16 where there is one, else CPU in float32.

    On CUDA, what earlier runs of this process left in memory is freed: recordings and models refer to each other.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "there is no CUDA device", seen="torch.cuda.is_available() is False", next="use --set device=cpu"
        )
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    if dtype == "float16":
        raise UsageError(
            "float16 needs loss scaling, which the loops do not do", seen=dtype, next="use --set dtype=bfloat16"
        )
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    return Placement(torch.device(device), _DTYPES[dtype])


def resolve(model: str, folder: Path, *, seed: int = 0) -> str:
    """The path or hub name to load: a run's folder is its last checkpoint, and `tiny` is made under `folder` first.

    Raises `BadInputError` for a checkpoint whose files are not as they were written: it would be trained from or
    measured under the name of a run that is not its own.
    """
    from lpt_train.checkpoint import verify_files  # which is built on adapters, and they on this module

    if (Path(model) / "run.json").is_file():
        newest = latest(Path(model) / "checkpoints")
        if newest is None:
            raise BadInputError("the run has no checkpoint", seen=model, next="resume the run, or give another model")
        verify_files(newest)
        return str(newest)
    if (Path(model) / STATE).is_file():
        verify_files(Path(model))
    if model != "tiny":
        return model
    target = make_folder(folder) / "tiny"
    if not (target / "model.safetensors").exists():
        _make_tiny_whole(target, seed)
    return str(target)


def _make_tiny_whole(target: Path, seed: int) -> None:
    """The tiny model, whole or not at all: the weights, by which it is found again, are put in place last."""
    temporary = target.with_name(f".tmp-tiny-{os.getpid()}")
    try:
        make_tiny(temporary, seed=seed)
        target.mkdir(exist_ok=True)
        for path in sorted(temporary.iterdir(), key=lambda path: path.suffix == ".safetensors"):
            path.replace(target / path.name)
    except WRITE_ERRORS as error:
        raise cannot_save(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_tokenizer(model: str) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a folder, hub name or .gguf file. Raises `BadInputError` when there is none."""
    own = (Path(model) / "tokenizer_config.json").is_file()
    if not own and (base := adapter_base(model)) is not None:
        return load_tokenizer(base)
    source, options = (model, {}) if own else source_of(model)
    with in_three_parts(model, "tokenizer"):
        tokenizer = _declared_generic(Path(source)) or AutoTokenizer.from_pretrained(
            source, trust_remote_code=False, **options
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise BadInputError(
            f"the tokenizer of {model} is not a fast one", seen=type(tokenizer).__name__,
            next="use a model that ships tokenizer.json",
        )  # fmt: skip
    if not set(tokenizer.get_vocab()).difference(tokenizer.added_tokens_encoder):  # transformers makes one up
        raise BadInputError(
            f"the tokenizer of {model} has no vocabulary: every text would become nothing",
            seen=f"{len(tokenizer)} tokens, all of them added ones", next="copy tokenizer.json into the folder",
        )  # fmt: skip
    return tokenizer


def load_model(
    model: str,
    *,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    merge: bool = True,
) -> torch.nn.Module:
    """The causal language model with parameters kept in `dtype` (`auto`: as stored), in evaluation mode.

    A folder with an adapter is its base with the adapter merged, in float32, before the cast to `dtype`; without
    `merge` the adapter stays beside it, as it was trained, and all of it in float32.
    Raises `BadInputError` for pickled, remote-code or non-finite weights, and where tensors are missing or too many.
    """
    refuse_mistyped(model)
    if has_reward_head(model):
        raise BadInputError(
            "this is a reward model: it gives a number and no text", seen=model,
            next="give the language model it was trained from; lpt reward score uses it",
        )  # fmt: skip
    if adapter_base(model) is not None:
        with in_three_parts(model, "model"):
            adapted = load_adapter(model)
            merged = adapted.merge_and_unload(safe_merge=True) if merge else adapted
        loaded = merged if isinstance(dtype, str) or not merge else merged.to(dtype)
    else:
        source, options = source_of(model)
        refuse_pickles(model, Path(source))
        with in_three_parts(model, "model"):
            loaded = read_whole(AutoModelForCausalLM, source, dtype, options)
    loaded.name_or_path = model  # what an adapter of it will name as its base
    torch.nn.Module.to(loaded, device)
    for name, parameter in loaded.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise BadInputError(
                f"the weights of {model} are not finite", seen=name, next="use another copy of the model"
            )
    return loaded.eval()


def load_adapter(model: str) -> PeftModel:
    """The adapter in a folder over its base, in float32 on the CPU, in evaluation mode.

    The base is what the adapter was trained on: another adapter's folder with that one merged, and where it was
    quantised the weights that the codes stand for.
    """
    base = adapter_base(model)
    if base is None:
        raise BadInputError("the folder holds no adapter", seen=model, next="give the folder of adapter_config.json")
    refuse_pickles(model, Path(model))
    check_base(model, base)
    under = load_model(base)
    if (quantisation := quantisation_of(model)) is not None:
        under = rounded_to_4bit(under, quantisation)
    with in_three_parts(model, "adapter"):
        return read_adapter_over(under, model)


def check_base(adapter: str, base: str) -> None:
    """Raise `RefusedError` when the weights under an adapter of ours are others than those it was trained over."""
    own = Path(adapter) / PROVENANCE
    told = ((read_provenance(adapter) or {}).get("model") or {}).get("digest") if own.is_file() else None
    if told is not None and told != (found := model_digest(base)):
        raise RefusedError(
            "the weights under the adapter are not those that it was trained over",
            seen=f"{base} has the digest {found[:16]}…, the adapter in {adapter} says {str(told)[:16]}…",
            next="put the model back as it was, or correct base_model_name_or_path in adapter_config.json",
        )  # fmt: skip


def stored_dtype(model: str) -> torch.dtype:
    """The precision in which the weights of a model, or those under every adapter, are stored, as its config says."""
    while (under := adapter_base(model)) is not None:
        model = under
    source, options = source_of(model)
    with in_three_parts(model, "configuration"):
        return AutoConfig.from_pretrained(source, trust_remote_code=False, **options).dtype or torch.float32


def check_vocabulary(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast) -> None:
    """Raise `RefusedError` when the tokenizer can produce an id that the model has no embedding for."""
    rows = cast(torch.nn.Embedding, cast(PreTrainedModel, model).get_input_embeddings()).weight.shape[0]
    largest = max(tokenizer.get_vocab().values())
    if largest >= rows:
        raise RefusedError(
            "the tokenizer is not this model's", seen=f"largest id {largest}, {rows} rows in the embedding",
            next="use the tokenizer that was shipped with the model",
        )  # fmt: skip


def pad_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """An id to fill batches with; masks are by position, so any id does and pad == eos is fine."""
    for candidate in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if candidate is not None:
            return int(candidate)
    return 0


def model_digest(model: str | Path) -> str:
    """sha256 over the config and weight files (names and contents) of a folder, .gguf file or cached hub name."""
    path = Path(model)
    if not path.exists():
        with in_three_parts(str(model), "model"):
            path = Path(str(cached_file(str(model), "config.json"))).parent
    files = [path] if path.is_file() else [file for pattern in _WEIGHTS for file in sorted(path.glob(pattern))]
    digest = hashlib.sha256(b"lpt-model/1\0")
    for file in files:
        digest.update(f"{file.name}\0{_file_sha256(file)}\n".encode())
    base = adapter_base(str(model))
    if base:
        digest.update(f"base\0{model_digest(base)}\n".encode())
    return digest.hexdigest()


# What lay still when it was read: a base is asked for when its adapter is loaded, and again in the digest of both.
_hashed: dict[tuple[Any, ...], str] = {}


def _file_sha256(path: Path) -> str:
    """The sha256 of a file; read once while it stays as it is, unless it was written within the last second: a change
    that soon after another may leave no trace in its times."""
    told = path.stat()
    key = (path.absolute(), told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns)
    if key in _hashed:
        return _hashed[key]
    found = bytes_sha256(path)
    if time.time_ns() - max(told.st_mtime_ns, told.st_ctime_ns) > 1_000_000_000:
        _hashed[key] = found
    return found


def source_of(model: str) -> tuple[str, dict[str, Any]]:
    """What from_pretrained takes for `model`, with the options that name the file inside it."""
    path = Path(model)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise BadInputError("there is no such GGUF file", seen=model, next="check the path")
        return str(path.parent), {"gguf_file": path.name}
    beside = path.parent != Path() and path.parent.is_dir()  # runs/sftt, where there is a folder runs, is no hub name
    if not path.exists() and (path.is_absolute() or model.startswith(".") or model.count("/") > 1 or beside):
        raise BadInputError("there is no such model folder", seen=model, next="check the path, or give a hub name")
    if path.is_dir() and not (path / "config.json").exists():
        raise BadInputError(
            "the folder holds no model", seen=f"{model} has no config.json", next="give the folder of config.json"
        )
    if path.is_file():
        raise BadInputError("a model is a folder, a hub name or a .gguf file", seen=model, next="give its folder")
    return model, {}


def refuse_mistyped(model: str) -> None:
    """Raise `BadInputError` for what can only be a path and holds no model, before the hub is asked for it."""
    if adapter_base(model) is None:
        source_of(model)


def _declared_generic(folder: Path) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a folder that declares the generic class: AutoTokenizer would swap in the model type's own
    normaliser and splitter, and the ids would not be those of tokenizer.json."""
    declaration = folder / "tokenizer_config.json"
    if not declaration.is_file() or not (folder / "tokenizer.json").is_file():
        return None
    declared = json.loads(declaration.read_text(encoding="utf-8")).get("tokenizer_class")
    if declared not in ("TokenizersBackend", "PreTrainedTokenizerFast"):
        return None
    return PreTrainedTokenizerFast.from_pretrained(folder)


def refuse_pickles(model: str, folder: Path) -> None:
    """Raise `BadInputError` for a folder that has no safetensors (or GGUF) weights, whatever else it holds."""
    if not folder.is_dir() or any(folder.glob("*.safetensors")) or any(folder.glob("*.gguf")):
        return
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    raise BadInputError(
        f"{model} has no safetensors weights" + (", only pickles, which are programs" if pickles else ""),
        seen=", ".join(pickles[:5]) or sorted(path.name for path in folder.iterdir())[:10],
        next="convert it once, in a place where you trust it: load it with torch and save_pretrained() it",
    )


@contextlib.contextmanager
def in_three_parts(model: str, what: str) -> Iterator[None]:
    """Turn the many ways in which loading fails into one `BadInputError`."""
    try:
        yield
    except LptError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip()
        if "trust_remote_code" in text or "custom code" in text:
            advice = "remote code stays off; use a model whose architecture is in transformers"
        elif "gguf" in text.lower():
            advice = "pip install gguf, or give the safetensors folder"
        else:
            advice = "check the path or the hub name; offline, give a local folder with safetensors and tokenizer.json"
        raise BadInputError(f"the {what} of {model} could not be loaded", seen=text[:600], next=advice) from error
