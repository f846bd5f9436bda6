"""What meanings are compared with: the options that commands share, and what a threshold is chosen by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import one_line, say, table
from manifests.errors import UsageError

if TYPE_CHECKING:
    from lpt_data.config import SemanticConfig
    from lpt_data.semantic.alike import Semantics

Embedder = Annotated[
    str,
    typer.Option(
        help="Of meanings: minilm (inside an installed package), a folder (sentence-transformers or model2vec) or a "
        "hub name. Safetensors only; code that a model brings is never run."
    ),
]
SemanticThreshold = Annotated[
    float, typer.Option(help="Cosine at which a row means the same as a kept one. Read the pairs by band first.")
]
Floor = Annotated[
    float | None,
    typer.Option(
        help="Cosine from which pairs are kept for --rethreshold. Default: 0.2 below the threshold, not below 0.5.",
        show_default=False,
    ),
]
SameNumbers = Annotated[
    bool,
    typer.Option(
        "--same-numbers/--any-numbers",
        help="Whether texts that name different numbers, which embedders hardly see, are no semantic duplicates.",
    ),
]
ExactLimit = Annotated[
    int | None,
    typer.Option(
        help="Distinct vectors up to which all pairs are compared; above, an index, whose recall is measured. "
        "Default: 200,000 on a CPU, 1,000,000 on a GPU.",
        show_default=False,
    ),
]
Rethreshold = Annotated[
    float | None,
    typer.Option(
        help="Decide anew at this cosine from the pairs that an earlier run kept: nothing is embedded or compared.",
        show_default=False,
    ),
]


def chosen(
    embedder: str,
    catalog: Path,
    methods: tuple[str, ...],
    threshold: float,
    floor: float | None,
    same_numbers: bool,
    exact_limit: int | None,
    rethreshold: float | None,
) -> tuple[Semantics | None, SemanticConfig | None]:
    """What meanings are compared with and how; nothing when they are not.

    Raises UsageError for --rethreshold without the method.
    """
    if "semantic" not in methods:
        if rethreshold is not None:
            raise UsageError(
                "a new threshold is for the method semantic",
                seen=f"--method {','.join(methods)}",
                next=f"--method {','.join((*methods, 'semantic'))}",
            )
        return None, None
    from lpt_data.config import SemanticConfig
    from lpt_data.semantic.alike import Semantics
    from lpt_data.semantic.models import find_model
    from lpt_data.semantic.vectors import source_of

    source = source_of(find_model(embedder), catalog)
    cosine = threshold if rethreshold is None else rethreshold
    config = SemanticConfig(source.digest, cosine, floor, same_numbers, exact_limit)
    return Semantics(source, catalog, kept_only=rethreshold is not None), config


def show_weakest(weakest: list[dict[str, Any]] | None, title: str) -> None:
    """Removals on the lowest scores, both texts side by side."""
    if weakest:
        table(
            ["score", "removed row", "its text", "kept row", "its text"],
            [
                (w["score"], str(w["row"]), one_line(w["text"]), str(w["witness_row"]), one_line(w["witness_text"]))
                for w in weakest
            ],
            title=title,
        )


def show_embedder(meant: dict[str, Any]) -> None:
    """Which model made the vectors, what it did not read, and what of the cache could not be used."""
    model = meant["embedder"]
    say(
        f"embedder {model['name']} {model['digest'][:12]}… on {model['device']} in {model['precision']}: "
        f"{meant['distinct_texts']:,} texts, {meant['embedded']:,} embedded in {meant['embedding_seconds']:.1f} s, "
        f"the others known" + (" (pairs of an earlier run)" if meant["pairs_reused"] else "")
    )
    if meant["truncated_texts"]:
        say(
            f"{meant['truncated_texts']:,} texts are longer than the {model['max_tokens'] or 'many'} tokens it reads "
            "and were compared by their beginning",
            style="yellow",
        )
    for note in meant["cache_notes"]:
        say(f"note: {note}", style="bold yellow")


def show_semantic(meant: dict[str, Any]) -> None:
    """What a threshold of meaning is chosen by: pairs of every band of scores."""
    show_embedder(meant)
    search = meant["search"]
    told = f", recall {search['recall']['recall']} on a sample" if search.get("recall") else ""
    say(
        f"{meant['pairs']:,} pairs at or above {meant['floor']:g} ({search['method']} search{told}), "
        f"{meant['pairs_at_threshold']:,} at or above {meant['threshold']:g}; "
        f"{meant['kept_apart_by_numbers']:,} comparisons kept apart by their numbers"
    )
    if meant["borderline"]["pairs"]:
        say(f"{meant['borderline']['pairs']:,} pairs lie within {meant['borderline']['within']:g} of the threshold")
    table(
        ["score", "numbers", "a text", "another"],
        [
            (p["score"], "same" if p["same_numbers"] else "differ", *map(one_line, p["texts"]))
            for band in meant["bands"]
            for p in band["shown"]
        ],
        title="pairs by score: "
        + ", ".join(f"{band['from']:g}–{band['to']:g} {band['pairs']:,}" for band in meant["bands"]),
    )
    show_weakest(meant["weakest"], "weakest removals by meaning")
    say("another threshold, at once: --rethreshold 0.95", style="dim")
