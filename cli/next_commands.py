"""What may be typed next: words quoted for the shell, and the catalog that was typed for the command before."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The option of `lpt admit` for the files of a split. What was held out is never one that is trained on; rows that were
# given without a name are.
ADMITTED_AS = {"data": "train", "train": "train", "test": "test", "hidden_test": "test"}
ADMITTED_AS |= dict.fromkeys(("validation", "valid", "val", "eval", "dev", "calibration"), "validation")
MEASURED_ON = ("validation", "test", "hidden_test")  # the last should be looked at least often


def command(start: str, *words: object, catalog: Path | None = None) -> str:
    """A command that can be pasted: `start` as it is, each of the words quoted, and `--catalog` where it was typed."""
    more = [] if catalog is None else ["--catalog", catalog]
    return " ".join([start, *(shlex.quote(str(word)) for word in (*words, *more))])


def admission(splits: Mapping[str, Sequence[str]], options: Mapping[str, Any]) -> tuple[str, str]:
    """The command that admits what was audited with the options that were typed, and ""; or "" and why there is
    none."""
    if unknown := [name for name in splits if name not in ADMITTED_AS]:
        return "", (
            f"lpt admit has no split for {', '.join(unknown)}: give those files as --train, --validation or --test, "
            "as they are used"
        )
    if "train" not in {ADMITTED_AS[name] for name in splits}:
        return "", f"lpt admit needs a train split, and {', '.join(splits)} is held out: add --train FILE"
    words = [word for split, paths in splits.items() for path in paths for word in (f"--{ADMITTED_AS[split]}", path)]
    for name, value in options.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        if (name, value) != ("text_column", "text"):
            words += [word for each in values for word in (f"--{name.replace('_', '-')}", each)]
    return command("lpt admit NAME", *words), ""


def held_out(admitted: str | None, eval_split: str | None, catalog: Any) -> str:
    """A split to measure a run on that it was not trained on: the one it was evaluated on, else another of its
    manifest, else a placeholder."""
    from manifests.admission import load_manifest, parse_split_ref

    if admitted is None:
        return eval_split or "NAME:test"
    manifest, trained = parse_split_ref(admitted)
    loaded = load_manifest(catalog, manifest)
    if eval_split is not None:
        other, evaluated = parse_split_ref(eval_split)
        if evaluated != trained or load_manifest(catalog, other).id != loaded.id:
            return eval_split
    held = (name for name in MEASURED_ON if name != trained and name in loaded.body["splits"])
    return next((f"{manifest}:{name}" for name in held), "NAME:test")
