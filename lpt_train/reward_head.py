"""A reward model: a decoder and one number, the product of a vector with the hidden state of a row's last token.

It is what transformers calls a sequence classification model of one label, so that its folders can be read there. One
thing is done otherwise: the last token is known by the length of its row. Transformers looks for the last token that is
not the padding, and where padding and end are the same token it reads the one before the end; `padding_for` therefore
names a padding that no row ends with.

Axes: `T` tokens of a line, `S` its rows, `H` hidden.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import cached_file

from lpt_train.flat import FlatBatch
from lpt_train.heads import causal_model
from manifests.errors import BadInputError

TASK = "SEQ_CLS"  # what peft calls an adapter of such a model: it keeps the head beside the adapter
_CLASS = "ForSequenceClassification"


def with_reward_head(causal: torch.nn.Module, seed: int = 0) -> PreTrainedModel:
    """The decoder of a causal language model under a new head in float32; the vocabulary head is left behind.

    The head is drawn from a generator of its own: runs with the same seed start from the same one.
    Raises `BadInputError` for an architecture that transformers has no such model of.
    """
    causal = cast(PreTrainedModel, causal)
    config = causal.config
    config.num_labels = 1
    try:
        with torch.device("meta"):  # the shape alone; the weights are those that are there
            model = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise BadInputError(
            "transformers has no sequence classification model of this architecture, which a reward model is",
            seen=type(config).__name__, next="use an architecture that has one, such as Llama, Qwen2 or Qwen3",
        ) from error  # fmt: skip
    if not isinstance(getattr(model, "score", None), torch.nn.Linear) or model.score.bias is not None:
        raise BadInputError(
            "the head of this architecture is no single vector", seen=type(model).__name__,
            next="use an architecture such as Llama, Qwen2 or Qwen3",
        )  # fmt: skip
    prefix = model.base_model_prefix
    setattr(model, prefix, getattr(causal, causal.base_model_prefix))
    model.config = config
    weight = cast(torch.nn.Embedding, causal.get_input_embeddings()).weight
    generator = torch.Generator().manual_seed(seed)
    width = cast(int, model.score.in_features)
    drawn_1_H = torch.randn(1, width, generator=generator) * getattr(config, "initializer_range", 0.02)
    model.score = torch.nn.Linear(width, 1, bias=False, device=weight.device, dtype=torch.float32)
    with torch.no_grad():
        model.score.weight.copy_(drawn_1_H)
    return model


def last_token_rewards(model: torch.nn.Module, hidden_T_H: torch.Tensor, batch: FlatBatch) -> torch.Tensor:
    """The reward of each row of a line, float32 [S], whatever the precision of the hidden states; 0 has no meaning."""
    last_S = (batch.cu_seqlens[1:] - 1).long()
    with torch.autocast(hidden_T_H.device.type, enabled=False):
        return causal_model(model).score(hidden_T_H[last_S].float()).squeeze(-1)


def has_reward_head(model: str) -> bool:
    """Whether a folder or hub name holds a reward model, or an adapter that ends in one, and no language model."""
    adapter = Path(model) / "adapter_config.json"
    if adapter.is_file():
        return _read(adapter).get("task_type") == TASK
    config = Path(model) / "config.json"
    if not Path(model).exists() and not Path(model).is_absolute() and model.count("/") <= 1:
        try:
            config = Path(str(cached_file(model, "config.json")))
        except (OSError, ValueError):
            return False  # whoever loads it says what is wrong
    if not config.is_file():
        return False
    named = _read(config).get("architectures")
    return isinstance(named, list) and any(str(name).endswith(_CLASS) for name in named)


def padding_for(tokenizer: PreTrainedTokenizerFast, last_ids: Iterable[int]) -> tuple[int, str]:
    """A padding token (id, text) that no row ends with: the tokenizer's own, else another special token of it.

    Raises `BadInputError` where every special token ends some row.
    """
    ends = set(last_ids)
    own = tokenizer.pad_token_id
    others = sorted(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
    for candidate in ([] if own is None else [own]) + others:
        if candidate not in ends:
            return int(candidate), str(tokenizer.convert_ids_to_tokens(int(candidate)))
    raise BadInputError(
        "no special token of the tokenizer can be the padding, because rows end with each of them",
        seen=", ".join(str(tokenizer.convert_ids_to_tokens(i)) for i in others) or "no special token",
        next="add a padding token to the tokenizer of the model",
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # whoever loads it says what is wrong
    return body if isinstance(body, dict) else {}
