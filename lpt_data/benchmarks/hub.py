"""A benchmark fetched from the Hugging Face hub by the package `datasets`, and a quick answer where it cannot be."""

from __future__ import annotations

import importlib.util
import os
import urllib.error
import urllib.request
from pathlib import Path

import orjson

from lpt_data.benchmarks.known import Known
from manifests.errors import BadInputError, UsageError
from manifests.files import atomic_path, make_folder

SECONDS = 5.0  # for the hub to answer at all, before anything tries it again and again


def fetch(known: Known, path: Path) -> None:
    """Write the rows of a benchmark, as the hub has them, to `path` as JSON lines.

    Raises UsageError without the package, BadInputError where the hub does not answer or has no such data set.
    """
    instead = f"get the file elsewhere, then: lpt data benchmarks add {known.name}=FILE"
    if importlib.util.find_spec("datasets") is None:
        raise UsageError(
            f"the package `datasets` fetches {known.name}, and it is not installed",
            seen=known.hub,
            next=f"pip install datasets; or {instead}",
        )
    why = _unreachable()
    if why:
        raise BadInputError(f"the hub that has {known.name} cannot be reached", seen=why, next=instead)
    import datasets

    try:
        configs = [known.config] if known.config else datasets.get_dataset_config_names(known.hub)
        parts = [datasets.load_dataset(known.hub, config, split=known.split) for config in configs]
    except Exception as error:  # of many kinds, by the release of the package; all mean that the rows did not come
        raise BadInputError(
            f"{known.name} could not be fetched",
            seen=f"{known.hub}: {type(error).__name__}: {error}"[:400],
            next=instead,
        ) from error
    make_folder(path.parent)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        for rows in parts:
            for row in rows:
                file.write(orjson.dumps(row, default=str) + b"\n")


def _unreachable() -> str:
    """Why the hub cannot be asked; empty where it answers."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return "HF_HUB_OFFLINE is set"
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if not endpoint.startswith(("https://", "http://")):
        return f"HF_ENDPOINT is no web address: {endpoint}"
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return ""  # it answers, if not to this
    except (OSError, ValueError) as error:
        return f"{endpoint}: {getattr(error, 'reason', error)}"
    return ""
