"""A hint at what a given language model has read: benchmark items that it finds unusually likely. It removes nothing.

Measure: Min-K% Prob (Shi et al., 2024, arXiv 2310.16789), the mean log-probability of the K = 20 percent of an item's
tokens that the model expects least; a text that was read many times has few surprises. Its level is that of the text's
style, so an item is held against others:

    with paraphrases    its measure minus that of its paraphrase, among the same differences of all items
    without             its measure among those of all items of the benchmark

An item is flagged when the modified z-score (Iglewicz and Hoaglin, 1993: 0.6745 (x - median) / MAD) is at least 3.5. If
most items were read, none stands out: with paraphrases the share of items that are likelier than their own paraphrase
tells that, one half being what to expect of a model that saw neither.

Loads torch; nothing else of contamination does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpt_data.progress import Progress
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError
from manifests.intervals import wilson

K = 0.2  # share of the tokens that count
FLAG = 3.5  # modified z-score
SHORTEST = 8  # tokens; shorter items are not measured
_MOST_TOKENS, _BATCH_TOKENS = 1024, 1024  # of a text that are read; of a batch
_MEASURE = "Min-20% Prob"


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model in a folder; the digest is that of weights, tokenizer and config."""

    name: str
    folder: Path
    digest: str


def find_language_model(folder: Path) -> LanguageModel:
    """Name the model of a folder; BadInputError where there is none with safetensors and a tokenizer.json."""
    weights = sorted(folder.glob("*.safetensors"))
    needed = [folder / "config.json", folder / "tokenizer.json"]
    if not weights or not all(path.is_file() for path in needed):
        raise BadInputError(
            "the folder holds no language model with safetensors weights and a tokenizer.json",
            seen=str(folder),
            next="--perplexity FOLDER of a transformers model",
        )
    digest = hashlib.sha256()
    for path in (*needed, *weights):
        digest.update(f"{path.name}\0{bytes_sha256(path)}\0".encode())
    return LanguageModel(folder.name, folder, digest.hexdigest())


def min_k(log_probabilities: np.ndarray) -> float:
    """Min-K% Prob of the log-probabilities of a text's tokens, nats; NaN for fewer than SHORTEST."""
    if len(log_probabilities) < SHORTEST:
        return float("nan")
    count = max(1, int(len(log_probabilities) * K))
    return float(np.sort(log_probabilities)[:count].mean())


def modified_z(values: np.ndarray) -> np.ndarray:
    """Modified z-scores; NaN stays NaN, and all are 0 where more than half of the values are equal."""
    known = values[~np.isnan(values)]
    if not len(known):
        return values.copy()
    middle = np.median(known)
    spread = np.median(np.abs(known - middle))
    return np.where(np.isnan(values), np.nan, 0.6745 * (values - middle) / spread if spread else 0.0)


def anomalies(
    items: Sequence[str], paraphrases: Sequence[str | None], model: LanguageModel, progress: Progress
) -> dict[str, Any]:
    """Return which items (by place) stand out; ``paraphrases`` has one for each item, or None."""
    other = [place for place, text in enumerate(paraphrases) if text]
    texts = [*items, *(paraphrases[place] or "" for place in other)]
    measured = np.array([min_k(found) for found in log_probabilities(texts, model, progress)])
    own, compared = measured[: len(items)], np.full(len(items), np.nan)
    compared[other] = own[other] - measured[len(items) :]
    values = compared if other else own
    z = modified_z(values)
    flagged = [
        place for place in np.argsort(-np.nan_to_num(z, nan=-np.inf), kind="stable").tolist() if z[place] >= FLAG
    ]
    told: dict[str, Any] = {
        "model": model.name,
        "digest": model.digest,
        "measure": _MEASURE + (" minus that of the paraphrase" if other else ""),
        "flag_from_z": FLAG,
        "items": len(items),
        "not_measured": int(np.isnan(values).sum()),
        "median": _rounded(np.nanmedian(values)) if (~np.isnan(values)).any() else None,
        "flagged": [{"place": p, "value": _rounded(values[p]), "z": _rounded(z[p])} for p in flagged],
    }
    if other:
        known = compared[~np.isnan(compared)]
        above, n = int((known > 0).sum()), len(known)
        low, high = (round(end, 6) for end in wilson(above, n))
        told["likelier_than_own_paraphrase"] = {"items": above, "of": n, "low": low, "high": high}
    return told


def log_probabilities(texts: Sequence[str], model: LanguageModel, progress: Progress) -> list[np.ndarray]:
    """Return the log-probability of each token after the first, nats, float32; a text is cut at 1,024 tokens."""
    import torch

    tokenizer, network, limit = _load(model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = network.eval().to(device)
    ids = [encoding.ids[:limit] for encoding in tokenizer.encode_batch([text[: 16 * limit] for text in texts])]
    order = sorted(range(len(ids)), key=lambda place: (len(ids[place]), place))
    found: list[np.ndarray] = [np.zeros(0, np.float32)] * len(ids)
    at = 0
    while at < len(order):
        width = max(len(ids[order[at]]), 1)
        end = at
        while end < len(order) and (end == at or len(ids[order[end]]) * (end - at + 1) <= _BATCH_TOKENS):
            width = max(len(ids[order[end]]), width)
            end += 1
        some = order[at:end]
        batch = torch.zeros((len(some), width), dtype=torch.long)
        mask = torch.zeros_like(batch)
        for row, place in enumerate(some):
            batch[row, : len(ids[place])] = torch.tensor(ids[place], dtype=torch.long)
            mask[row, : len(ids[place])] = 1
        with torch.inference_mode():
            logits = network(input_ids=batch.to(device), attention_mask=mask.to(device)).logits[:, :-1].float()
            picked = logits.gather(2, batch[:, 1:, None].to(device))[..., 0] - logits.logsumexp(2)
        for row, place in enumerate(some):
            found[place] = picked[row, : max(len(ids[place]) - 1, 0)].cpu().numpy()
        at = end
        progress(at, len(order), "texts measured")
    return found


def _load(model: LanguageModel) -> tuple[Any, Any, int]:
    try:
        from tokenizers import Tokenizer
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging
    except ImportError as error:
        raise BadInputError(
            "a language model needs a package that is not installed", seen=error.name, next="pip install 'lpt[train]'"
        ) from error
    logging.disable_progress_bar()
    try:
        tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model.folder, trust_remote_code=False, use_safetensors=True, local_files_only=True, output_loading_info=True
        )
        network, read = loaded
        if read["missing_keys"]:  # which transformers would draw by chance
            raise ValueError(f"weights are missing: {', '.join(sorted(read['missing_keys'])[:4])}")
        config = json.loads((model.folder / "config.json").read_text("utf-8"))
    except Exception as error:  # three libraries with errors of their own
        raise BadInputError(
            "the language model cannot be loaded",
            seen=f"{model.folder}: {(str(error).splitlines() or [type(error).__name__])[0][:300]}",
            next="fetch the model again; a model that needs code of its own is not run",
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, network, min(_MOST_TOKENS, int(config.get("max_position_embeddings") or _MOST_TOKENS))


def _rounded(value: float) -> float:
    return round(float(value), 4)
