"""Scored completions as a file, and the record of where they come from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lpt_train.admitted import AdmittedSplit
from lpt_train.checkpoint import read_provenance
from lpt_train.models import resolve
from lpt_train.runs import env, now
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.files import make_folder, write_atomic


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, whole or not at all."""
    make_folder(path.parent)
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows).encode("ascii"))


def record(
    catalog: Catalog, path: Path, rows: Sequence[Mapping[str, Any]], split: AdmittedSplit, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Record the file as `lpt.samples/1` and return the body with its id; marked where a model or the split is."""
    named = {name: settings[name] for name in ("policy", "model") if settings[name] != "tiny"}
    made_from = {name: read_provenance(resolve(model, Path())) for name, model in named.items()}
    body = {
        "type": "lpt.samples/1", **settings, "manifest": split.manifest_id, "split": split.ref,
        "verified": split.verified,
        "tainted": split.tainted or any(one and one.get("tainted") for one in made_from.values()),
        "made_from": made_from, "output": str(path), "sha256": bytes_sha256(path), "completions": len(rows),
        "prompts_sampled": len({row["prompt_id"] for row in rows}),
        "not_scored": dict(sorted(Counter(row["not_scored"] for row in rows if row["not_scored"]).items())),
        "created": now(), "env": env(), "parents": [split.manifest_id] if split.manifest_id else [],
    }  # fmt: skip
    return body | {"object": catalog.put(body)}
