"""A reward model as one folder that transformers and TRL read: adapter merged in float32, head, padding, tokenizer.

An adapter folder is peft's to read; transformers 5.17 by itself leaves its head out and draws a new one, and says so in
a warning. What is written here is read back by transformers and must give the rewards that we give.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from lpt_train.adapter_folder import PROVENANCE, adapter_base, read_provenance
from lpt_train.export_folder import (
    Exported,
    notes_of,
    origin_of,
    outputs_of,
    recorded,
    trained_weights,
    written_whole,
)
from lpt_train.models import load_tokenizer, model_digest, placement
from lpt_train.packing import Row
from lpt_train.render import Renderer
from lpt_train.reward_batch import rewards_of, scoring_batch
from lpt_train.reward_head import padding_for
from lpt_train.reward_model import load_reward_model
from manifests.catalog import Catalog
from manifests.errors import RefusedError

TOLERANCE = 1e-4  # of the largest difference, relative to the largest reward
_PROBE = ({"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"})  # rows end as it does
_LENGTHS = (1, 7, 30, 12)  # tokens of the rows that are compared


def export_reward(model: str, out: Path | str, *, catalog: Catalog | None = None) -> Exported:
    """Write the reward model of a run or folder to `out`, whole or not at all, and record it.

    The record is that of `export.export`, with `padding` and `largest_difference`. Raises `RefusedError` when
    transformers reads other rewards from it than we give, `BadInputError` for a damaged checkpoint.
    """
    out = Path(out)
    source = str(trained_weights(model))
    with written_whole(out) as temporary:
        loaded, tokenizer = load_reward_model(source), load_tokenizer(source)
        padding, text = padding_for(tokenizer, Renderer(tokenizer).encode(_PROBE).ids[-1:])
        cast(Any, loaded.config).pad_token_id = padding
        tokenizer.pad_token = text
        cast(PreTrainedModel, loaded).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        made_from = read_provenance(source) or {}
        (temporary / PROVENANCE).write_text(json.dumps(made_from, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        body = {
            **origin_of(model, Path(source)), "path": str(out), "digest": model_digest(temporary), "padding": text,
            "merged": adapter_base(source) is not None, "dtype": "float32", "measured": None,
            "largest_difference": _gap(loaded, temporary, padding), "outputs": outputs_of(temporary, out),
        }  # fmt: skip
    return recorded(Exported(out, body, notes=notes_of(body)), catalog)


@torch.no_grad()
def _gap(ours: torch.nn.Module, folder: Path, padding: int) -> float:
    """The largest difference between our rewards and those that transformers reads from the folder, in one batch."""
    theirs = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    rng, ids = np.random.default_rng(0), [i for i in range(min(256, theirs.config.vocab_size)) if i != padding]
    rows = [Row(n, rng.choice(ids, size).astype(np.int32), np.ones(size, np.uint8)) for n, size in enumerate(_LENGTHS)]
    filled = torch.full((len(rows), max(_LENGTHS)), padding)
    mask = torch.zeros_like(filled)
    for number, row in enumerate(rows):
        filled[number, : len(row.ids)], mask[number, : len(row.ids)] = torch.from_numpy(row.ids), 1
    read = theirs.eval()(input_ids=filled, attention_mask=mask).logits[:, 0]
    expected = rewards_of(scoring_batch(ours, placement("cpu"), max(_LENGTHS), padding), rows, len(rows))
    gap = float((read - expected).abs().max())
    if not gap <= TOLERANCE * (1 + float(expected.abs().max())):
        raise RefusedError(
            "transformers reads other rewards from what was written", seen=f"largest difference {gap:.3g}",
            next="use the run's folder with lpt reward score, or report the architecture",
        )  # fmt: skip
    return gap
