"""A run's weights as a folder for others: the adapter alone, or merged into its base and read back.

    OUT/  adapter_model.safetensors + adapter_config.json, or config.json + model.safetensors
          tokenizer with its chat template, generation_config.json (with the stop tokens of the template)
          lpt.json: what it was made from, marked or not, and what was measured
          README.md

A reward model is merged with its head: see `reward_export`.
Merging is done in float32, once, in a copy; rounding to another precision comes last. What is measured is the written
folder, read back, against the model with its adapter on. The folder appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from lpt_train.adapter_files import WEIGHTS
from lpt_train.adapter_folder import PROVENANCE, adapter_base, read_provenance
from lpt_train.admitted import AdmittedSplit, check_tokenizer
from lpt_train.config import DTYPES
from lpt_train.config_checks import at_least, one_of
from lpt_train.export_folder import (
    Exported,
    mapping_in,
    notes_of,
    origin_of,
    outputs_of,
    recorded,
    trained_weights,
    written_whole,
)
from lpt_train.logit_gap import Gap, drawn_rows, logit_gap, logits_of, split_rows
from lpt_train.model_card import model_card
from lpt_train.models import load_adapter, load_model, load_tokenizer, model_digest, stored_dtype
from lpt_train.render import Renderer
from lpt_train.reward_export import export_reward
from lpt_train.reward_head import has_reward_head
from manifests.catalog import Catalog
from manifests.errors import RefusedError, UsageError

LIMIT = 0.01  # nats of mean KL between the model with its adapter on and what was written …
SHARE = 0.1  # … and as a share of what the adapter itself changes; the smaller of the two
FLOOR = 1e-8  # rounding of float32 over a model that the adapter hardly changes


def export(
    source: str,
    out: Path | str,
    *,
    merge: bool = False,
    dtype: str = "auto",
    split: AdmittedSplit | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    catalog: Catalog | None = None,
) -> Exported:
    """Write the newest checkpoint of a run (or a folder of weights) to `out` for use elsewhere.

    An adapter goes alone, or `merge`d. `dtype` is that of the written weights (`auto`: of the base as stored). Rows to
    measure on come from `split`, else token ids are drawn by `seed`. `tolerance` in nats of mean KL replaces the limit.
    A reward model goes whole, in float32, as `export_reward` says.
    Raises `RefusedError` when what was written is further than that from the model with its adapter on, `UsageError`
    for options that do not fit the weights, `BadInputError` for a damaged checkpoint.
    """
    out = Path(out)
    one_of("dtype", dtype, DTYPES)
    if tolerance is not None:
        at_least("tolerance", tolerance, 0)
    folder = trained_weights(source)
    if has_reward_head(str(folder)):
        _check_reward(dtype, split, tolerance)
        return export_reward(source, out, catalog=catalog)
    base = adapter_base(str(folder))
    _check(folder, base, merge, dtype)
    with written_whole(out) as temporary:
        tokenizer = load_tokenizer(str(folder))
        if base is not None and not merge:
            measured, kept = None, _write_adapter(folder, base, temporary)
        else:
            rows = _rows(split, tokenizer, seed)
            kept, gap, effect = _write_whole(folder, base, temporary, dtype, rows)
            measured = _measured(gap, effect, tolerance, split, seed)
        tokenizer.save_pretrained(temporary)
        _write_generation(folder, base, tokenizer, temporary)
        body = {**origin_of(source, folder), **kept, "measured": measured}
        (temporary / PROVENANCE).write_text(json.dumps(_provenance(folder, body), indent=1, sort_keys=True) + "\n")
        (temporary / "README.md").write_text(model_card(body, out.name), encoding="utf-8")
        if measured is not None and not measured["mean_kl"] <= measured["limit"]:
            raise _too_far(measured, kept)
        body |= {"digest": model_digest(temporary), "outputs": outputs_of(temporary, out)}
    return recorded(Exported(out, {**body, "path": str(out)}, notes=notes_of(body)), catalog)


def _check(folder: Path, base: str | None, merge: bool, dtype: str) -> None:
    if base is None and merge:
        raise UsageError(
            "every weight was trained: there is no adapter to merge", seen=str(folder), next="leave out --merge"
        )
    if base is None or merge:
        return
    if dtype != "auto":
        raise UsageError(
            "an adapter is exported as it was trained", seen=f"--dtype {dtype} without --merge",
            next="--merge, or leave out --dtype",
        )  # fmt: skip
    if adapter_base(base) is not None:
        raise UsageError(
            "the adapter sits on another adapter, which no other reader puts under it", seen=base,
            next="--merge, which puts both into the weights",
        )  # fmt: skip


def _check_reward(dtype: str, split: AdmittedSplit | None, tolerance: float | None) -> None:
    given = {
        "--dtype": None if dtype in ("auto", "float32") else dtype, "--admitted": split and split.ref,
        "--tolerance": tolerance,
    }  # fmt: skip
    if typed := [f"{name} {value}" for name, value in given.items() if value is not None]:
        raise UsageError(
            "a reward model is written in float32, and read back on rows that are drawn", seen=" ".join(typed),
            next=f"leave out {typed[0].split()[0]}",
        )  # fmt: skip


def _rows(split: AdmittedSplit | None, tokenizer: PreTrainedTokenizerFast, seed: int) -> list[np.ndarray]:
    if split is None:
        return drawn_rows(len(tokenizer), seed)
    renderer = Renderer(tokenizer)
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    return split_rows(split, renderer)


def _write_adapter(folder: Path, base: str, target: Path) -> dict[str, Any]:
    """The adapter's own files; the base by a path that holds from anywhere."""
    shutil.copyfile(folder / WEIGHTS, target / WEIGHTS)
    options = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    options["base_model_name_or_path"] = str(Path(base).resolve()) if Path(base).exists() else base
    (target / "adapter_config.json").write_text(json.dumps(options, indent=2, sort_keys=True) + "\n")
    return {"merged": False, "dtype": None}


def _write_whole(
    folder: Path, base: str | None, target: Path, dtype: str, rows: Sequence[np.ndarray]
) -> tuple[dict[str, Any], Gap, Gap | None]:
    """Merged or whole weights in `dtype`; the gap of what was written, read back, and that which the adapter makes."""
    effect = None
    if base is None:
        whole = cast(PreTrainedModel, load_model(str(folder)))
        wanted, stored = logits_of(whole, rows), stored_dtype(str(folder))
    else:
        adapted = load_adapter(str(folder))
        wanted = logits_of(adapted, rows)
        with adapted.disable_adapter():
            effect = logit_gap(wanted, logits_of(adapted, rows))
        whole, stored = cast(PreTrainedModel, adapted.merge_and_unload(safe_merge=True)), stored_dtype(base)
    written = stored if dtype == "auto" else getattr(torch, dtype)
    whole.tie_weights()
    torch.nn.Module.to(whole, written)
    for name, parameter in whole.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise RefusedError(
                f"a weight has no value in {written}", seen=name, next="--dtype bfloat16 or --dtype float32"
            )
    whole.generation_config = GenerationConfig()  # what the base says of generation is written as it stands, later
    whole.save_pretrained(target)
    del whole
    gap = logit_gap(wanted, logits_of(load_model(str(target)), rows))
    return {"merged": base is not None, "dtype": str(written).removeprefix("torch.")}, gap, effect


def _measured(
    gap: Gap, effect: Gap | None, tolerance: float | None, split: AdmittedSplit | None, seed: int
) -> dict[str, Any]:
    limit = min(LIMIT, SHARE * effect.mean_kl) if effect is not None else LIMIT
    return {
        **gap.to_json(), "on": split.ref if split is not None else f"token ids drawn by seed {seed}",
        "limit": max(FLOOR, limit) if tolerance is None else tolerance, "limit_stated": tolerance is not None,
        "adapter_effect": effect.to_json() if effect is not None else None,
    }  # fmt: skip


def _too_far(measured: dict[str, Any], kept: dict[str, Any]) -> RefusedError:
    effect = measured["adapter_effect"]
    whole = "" if effect is None else f"; the adapter itself changes it by {effect['mean_kl']:.3g}"
    wider = "--dtype float32, or " if kept["dtype"] != "float32" else ""
    return RefusedError(
        f"what was written in {kept['dtype']} is not the model that was trained, so nothing is kept",
        seen=f"mean KL {measured['mean_kl']:.3g} nats, limit {measured['limit']:.3g}; largest difference of a logit "
        f"{measured['max_abs_logit']:.3g}; same first choice at {measured['top1_agreement']:.1%}{whole}",
        next=f"{wider}--tolerance {measured['mean_kl'] * 1.1:.2g} to take it as it is",
    )  # fmt: skip


def _write_generation(folder: Path, base: str | None, tokenizer: PreTrainedTokenizerFast, target: Path) -> None:
    """What the base says of generation, and every token that ends a turn: without it a chat model never stops."""
    told: dict[str, Any] = {}
    place: str | None = str(folder)
    while place is not None and not told:
        path = Path(place) / "generation_config.json"
        if path.is_file():
            told = mapping_in(path)
        elif not Path(place).exists():  # a name of the hub, whose files are there since the weights were loaded
            with contextlib.suppress(OSError):
                told = GenerationConfig.from_pretrained(place).to_diff_dict()
        place = adapter_base(place)
    ends = told.get("eos_token_id")
    known = {i for i in (ends if isinstance(ends, list) else [ends]) if type(i) is int}
    if tokenizer.chat_template:
        known |= set(Renderer(tokenizer).stop_ids)
    elif tokenizer.eos_token_id is not None:
        known.add(int(tokenizer.eos_token_id))
    told["eos_token_id"] = sorted(known) if len(known) != 1 else min(known)
    if told.get("pad_token_id") is None and tokenizer.pad_token_id is not None:
        told["pad_token_id"] = int(tokenizer.pad_token_id)
    (target / "generation_config.json").write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")


def _provenance(folder: Path, body: dict[str, Any]) -> dict[str, Any]:
    made_from = read_provenance(folder) or {
        "type": "lpt.provenance/1", "run_id": None, "verified": "unknown", "tainted": False,
    }  # fmt: skip
    kept = ("merged", "dtype", "checkpoint_sha256", "base", "measured", "run_status", "run_verdict", "created")
    return {**made_from, "export": {name: body[name] for name in kept}}
