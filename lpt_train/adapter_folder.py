"""What the folder of an adapter or a model says about itself: its base, what it was made from, how its base was kept.

Free of models and tensors, so that whoever reads weights can ask first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from manifests.errors import BadInputError

PROVENANCE = "lpt.json"


def adapter_base(model: str) -> str | None:
    """What the adapter in a folder was trained on; None for a folder that is a whole model.

    Raises `BadInputError` when the adapter does not say it, and for adapters that are each other's base.
    """
    base = under = _base_of(model)
    passed = {Path(model).resolve()}
    while under is not None and Path(under).exists():
        if Path(under).resolve() in passed:
            raise BadInputError(
                f"the adapter in {model} is its own base", seen=f"base_model_name_or_path {base}",
                next="write the folder of the model that it was trained on into adapter_config.json",
            )  # fmt: skip
        passed.add(Path(under).resolve())
        under = _base_of(under)
    return base


def _base_of(model: str) -> str | None:
    path = Path(model) / "adapter_config.json"
    if not path.is_file():
        return None
    try:
        base = json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]
        if not isinstance(base, str):
            raise TypeError("base_model_name_or_path is no text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInputError(
            f"the adapter in {model} does not say what it was trained on", seen=f"{path.name}: {error!r}",
            next="copy the adapter's folder again from where it was made",
        ) from error  # fmt: skip
    # A run's folder that was moved, or is seen from another working folder, still holds the tiny model it made.
    beside = Path(model).resolve().parent.parent / Path(base).name
    return str(beside) if not Path(base).exists() and (beside / "config.json").is_file() else base


def read_provenance(model: str | Path) -> dict[str, Any] | None:
    """The `lpt.json` beside the weights of a folder, if it is one of ours; an adapter without one is made of its base.

    Raises `BadInputError` when the file cannot be read: a mark that is there must not be lost.
    """
    path = Path(model) / PROVENANCE
    if not path.is_file():
        base = adapter_base(str(model))
        return read_provenance(base) if base is not None else None
    try:
        made_from = dict(json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(made_from.get("model") or {}, dict):
            raise TypeError("its model is no object")
        return made_from
    except (OSError, ValueError, TypeError) as error:
        raise BadInputError(
            "what a model was made from cannot be read", seen=f"{path}: {error}", next="copy the model's folder again"
        ) from error


def quantisation_of(adapter: str | Path) -> dict[str, Any] | None:
    """How the base was quantised under the adapter in a folder; None where it was not, or nobody said so."""
    if not (Path(adapter) / "adapter_config.json").is_file() or not (Path(adapter) / PROVENANCE).is_file():
        return None
    return ((read_provenance(adapter) or {}).get("model") or {}).get("quantisation")
