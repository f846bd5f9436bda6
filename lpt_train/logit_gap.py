"""How far two models are from one another on the same tokens: logits, distributions, first choices.

Axes: `N` positions, `V` vocabulary. Logits in float32, distributions in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from lpt_train.admitted import AdmittedSplit
from lpt_train.packing import render_rows
from lpt_train.render import Renderer
from lpt_train.render_pairs import render_pairs
from manifests.errors import RefusedError

LENGTH, POSITIONS = 128, 1024  # tokens of a row; positions in all


@dataclass(frozen=True)
class Gap:
    """Differences of logits, KL(first ‖ second) in nats, and the share of positions with the same largest logit."""

    positions: int
    max_abs_logit: float
    mean_abs_logit: float
    mean_kl: float
    max_kl: float
    top1_agreement: float

    def to_json(self) -> dict[str, float]:
        """As records keep it."""
        return asdict(self)


def split_rows(split: AdmittedSplit, renderer: Renderer) -> list[np.ndarray]:
    """Token ids of the first rows of a split, cut to `LENGTH` tokens, `POSITIONS` in all.

    Raises `RefusedError` for a split that has no whole text to measure on.
    """
    if split.kind in ("sft", "text"):
        rows = render_rows(split.rows(), renderer, max_length=LENGTH, truncation="keep_start").rows
    elif split.kind == "preference":
        made = render_pairs(split.rows(), renderer, max_length=LENGTH, truncation="keep_start")
        rows = [pair.chosen for pair in made.pairs]
    else:
        raise RefusedError(
            "this split has no rows that end in an answer", seen=f"{split.ref} is of kind {split.kind}",
            next="give a split of conversations, pairs or texts, or leave out --admitted: drawn tokens do as well",
        )  # fmt: skip
    taken, positions = [], 0
    for row in rows:
        if positions + len(row.ids) > POSITIONS:
            break
        taken.append(row.ids)
        positions += len(row.ids)
    return taken


def drawn_rows(vocabulary: int, seed: int) -> list[np.ndarray]:
    """Rows of token ids drawn evenly from the vocabulary: no data, the same for the same seed."""
    return list(np.random.default_rng(seed).integers(0, vocabulary, (POSITIONS // LENGTH, LENGTH), dtype=np.int32))


@torch.no_grad()
def logits_of(model: torch.nn.Module, rows: Iterable[np.ndarray]) -> list[torch.Tensor]:
    """Logits [N, V] of each row, float32 on the CPU; the model is asked in evaluation mode, one row at a time."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    found = [
        model(input_ids=torch.from_numpy(ids).long()[None].to(device), use_cache=False).logits[0].float().cpu()
        for ids in rows
    ]
    model.train(was_training)
    return found


def logit_gap(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> Gap:
    """The gap between the logits of two models on the same rows."""
    distances, kls, same = [], [], []
    for a_N_V, b_N_V in zip(first, second, strict=True):
        distances.append((a_N_V - b_N_V).abs())
        a, b = torch.log_softmax(a_N_V.double(), -1), torch.log_softmax(b_N_V.double(), -1)
        kls.append((a.exp() * (a - b)).sum(-1))
        same.append(a_N_V.argmax(-1) == b_N_V.argmax(-1))
    kl = torch.cat(kls).clamp(min=0)
    return Gap(
        len(kl), max(float(d.max()) for d in distances), float(sum(float(d.double().sum()) for d in distances))
        / sum(d.numel() for d in distances), float(kl.mean()), float(kl.max()), float(torch.cat(same).double().mean()),
    )  # fmt: skip
