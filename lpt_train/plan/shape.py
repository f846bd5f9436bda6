"""The shape of a decoder from its config.json alone, and what it counts: parameters by part, the linear layers.

Axes of a layer: `hidden`, `query` = heads x head size, `key` = key heads x head size (keys and values), `inner` of the
feed-forward part. Knows decoders of Llama's build (gated feed-forward, RMS norms, rotary positions); others, mixtures
of experts among them, are refused: their numbers would be wrong in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpt_train.adapter_folder import adapter_base
from lpt_train.checkpoint_folders import latest
from manifests.errors import BadInputError

# Of each type: are there biases on queries, keys and values, one on the output, and norms of queries and keys?
# None: as its config says under attention_bias.
_TYPES: dict[str, tuple[bool | None, bool | None, bool]] = {
    "llama": (None, None, False),
    "mistral": (False, False, False),
    "qwen2": (True, False, False),
    "qwen3": (None, None, True),
    "smollm3": (None, None, False),
}
# The model `tiny`, as `lpt_train.tiny.make_tiny` makes it.
TINY = {
    "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 259, "tie_word_embeddings": True,
}  # fmt: skip
_MOST, _MOST_LAYERS = 1 << 31, 10_000  # of a size that can be true
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PRESETS = {"all-linear": PROJECTIONS, "attention": PROJECTIONS[:4], "mlp": PROJECTIONS[4:]}


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder; `linear` is (inputs, outputs) of each projection of one layer."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    query: int
    key: int
    inner: int
    vocabulary: int
    tied: bool
    vectors: tuple[int, ...]  # values of each vector of one layer: norms and biases
    head_norms: bool  # are queries and keys normed, each head on its own?
    window: int | None = None  # tokens that attention looks back; None: all

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each projection of a layer, by the name of its module."""
        h, a, k, f = self.hidden, self.query, self.key, self.inner
        return dict(zip(PROJECTIONS, ((h, a), (h, k), (h, k), (a, h), (h, f), (h, f), (f, h)), strict=True))

    @property
    def linear_parameters(self) -> int:
        """Values of the projections' matrices, of all layers: what a 4-bit base quantises."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linear.values())

    @property
    def embedding_parameters(self) -> int:
        """Values of the vocabulary: once where input and head are tied, else twice."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All values."""
        return self.linear_parameters + self.embedding_parameters + self.layers * sum(self.vectors) + self.hidden

    @property
    def active_parameters(self) -> int:
        """Values that a token is multiplied with: all but the input embedding, which is looked up."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden)

    def tensors(self) -> list[tuple[int, bool]]:
        """The values of every tensor of the model, and whether it is a vocabulary table."""
        layer = [inputs * outputs for inputs, outputs in self.linear.values()] + list(self.vectors)
        tables = [(self.vocabulary * self.hidden, True)]
        if not self.tied:
            tables.append((self.vocabulary * self.hidden, False))
        return tables + [(size, False) for size in layer] * self.layers + [(self.hidden, False)]

    def targets(self, names: str) -> list[str]:
        """The projections that `lora_target_modules` names, by preset or name; what is no projection is left out."""
        wanted = {name for part in split_targets(names) for name in PRESETS.get(part, (part,))}
        return [name for name in PROJECTIONS if name in wanted]

    def adapter_tensors(self, rank: int, names: str = "all-linear", *, dora: bool = False) -> list[int]:
        """The values of each tensor of an adapter: A [rank, inputs], B [outputs, rank], DoRA's lengths [outputs]."""
        layer: list[int] = []
        for name in self.targets(names):
            inputs, outputs = self.linear[name]
            layer += [rank * inputs, rank * outputs, *([outputs] if dora else [])]
        return layer * self.layers

    def kv_bytes_per_token(self, width: int = 2) -> int:
        """Keys and values of one token in all layers, `width` bytes a value."""
        return 2 * self.layers * self.key * width


def read_shape(model: str) -> ModelShape:
    """The shape of `model`: a folder with config.json, a run, an adapter (its base), a hub name, or `tiny`.

    A hub name is taken from the cache, or fetched (config.json alone) when the hub may be asked. Raises
    `BadInputError` when there is no config, and for an architecture whose numbers are not known.
    """
    return shape_of(TINY if model == "tiny" else _config(model), model)


def shape_of(config: Mapping[str, Any], name: str = "the config") -> ModelShape:
    """The shape that a config.json tells; see `read_shape` for what is refused."""
    kind = config.get("model_type")
    if kind not in _TYPES or config.get("num_experts") or config.get("num_local_experts"):
        raise BadInputError(
            "the memory and compute of this architecture are not known", seen=f"{name}: model_type {kind}",
            next=f"plan with a model of type {', '.join(_TYPES)}",
        )  # fmt: skip
    try:
        heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
        size = _size(config, "head_dim") if config.get("head_dim") is not None else hidden // heads
        keys = _size(config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
        query, key = heads * size, keys * size
        inner, vocabulary = _size(config, "intermediate_size"), _size(config, "vocab_size")
        layers = _size(config, "num_hidden_layers", most=_MOST_LAYERS)
        if size < 1 or keys > heads:
            raise ValueError(f"{heads} heads, {keys} of keys, {hidden} hidden")
        window = config.get("sliding_window") if kind == "mistral" or config.get("use_sliding_window") else None
        window = window if window is None else _size(config, "sliding_window")
    except (KeyError, ValueError) as error:
        raise BadInputError(
            "the config does not tell the shape of the model", seen=f"{name}: {error!r}", next="copy config.json again"
        ) from error
    asked = bool(config.get("attention_bias", False))
    inputs, output, normed = _TYPES[kind]
    vectors = [hidden, hidden] + [size, size] * normed
    vectors += [query, key, key] * (asked if inputs is None else inputs) + [hidden] * (
        asked if output is None else output
    )
    vectors += [inner, inner, hidden] * bool(config.get("mlp_bias", False))
    return ModelShape(
        kind, layers, hidden, heads, query, key, inner, vocabulary,
        bool(config.get("tie_word_embeddings", kind == "smollm3")), tuple(vectors), normed, window,
    )  # fmt: skip


def _size(config: Mapping[str, Any], field: str, most: int = _MOST) -> int:
    value = config[field]
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{field} is {value!r}, and no whole number from 1 to {most:,}"[:200])
    return value


def _config(model: str) -> dict[str, Any]:
    folder = Path(model)
    if (folder / "run.json").is_file():
        folder = latest(folder / "checkpoints") or folder
    if (base := adapter_base(str(folder))) is not None:
        return _config(base)
    if (folder / "config.json").is_file():
        return _read(folder / "config.json")
    if folder.exists() or folder.is_absolute() or model.startswith(".") or model.count("/") > 1:
        raise BadInputError(
            "there is no config.json to plan with", seen=model, next="give the folder of config.json, or a hub name"
        )
    return _from_hub(model)


def _from_hub(model: str) -> dict[str, Any]:
    try:
        from huggingface_hub import hf_hub_download

        return _read(Path(hf_hub_download(model, "config.json")))
    except BadInputError:
        raise
    except Exception as error:  # offline, no such name, no such library: all the same to who asked
        raise BadInputError(
            f"the config of {model} could not be had", seen=f"{type(error).__name__}: {error}"[:400],
            next="give a local folder with config.json, or check the hub name",
        ) from error  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(body, dict):
            raise TypeError("no object")
    except (OSError, ValueError, TypeError) as error:
        raise BadInputError(
            "a config cannot be read", seen=f"{path}: {error}", next="copy the model's folder again"
        ) from error
    return body


def split_targets(names: str) -> list[str]:
    """The names in `lora_target_modules`, which stand between commas or plus signs."""
    return [part.strip() for part in names.replace("+", ",").split(",") if part.strip()]
