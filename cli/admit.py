"""``lpt admit``: write the admission manifest; the verdict is the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.audit import encoder, show_checks, show_verdict, verifiers
from cli.next_commands import command
from cli.options import (
    Against,
    Benchmarks,
    CatalogDir,
    Contract,
    Json,
    Key,
    Languages,
    Layout,
    MaxLength,
    Policy,
    Previous,
    Scored,
    Seeds,
    TextColumn,
    Tokenizer,
    benchmark_paths,
    examples,
    names_of,
)
from cli.output import Progress_, as_json, disjoint, say, table, tell_head, tell_next, tell_notes

if TYPE_CHECKING:
    from lpt_data.admit import Admission

EXAMPLES = examples(
    "lpt admit gsm8k --contract rlvr --train train.jsonl --test test.jsonl",
    "lpt admit chats --contract sft --train clean.parquet --validation dev.jsonl --tokenizer ./model --max-length 2048",
    "lpt admit sums --contract rlvr --train splits/train.jsonl --test splits/test.jsonl --key countdown --out sums-v1/",
    "lpt admit made --contract synthetic --train made.jsonl --seeds seeds.jsonl",
    "lpt train grpo --admitted gsm8k:train --model ./model --out runs/first",
)

# The algorithm that a contract's rows are for, as the line after an admission names it.
TRAINED_BY = {"sft": "sft", "synthetic": "sft", "rlvr": "grpo", "preference": "dpo", "kto": "kto"}


def admit(
    name: Annotated[str, typer.Argument(help="Name of the data set; a version is added: NAME@1, NAME@2, …")],
    contract: Contract,
    train: Annotated[list[str], typer.Option(help="Files of the train split; repeatable.", show_default=False)],
    validation: Annotated[
        list[str] | None, typer.Option(help="Files of the validation split; repeatable.", show_default=False)
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(help="Files of the test split; repeatable.", show_default=False)
    ] = None,
    benchmark: Benchmarks = None,
    seeds: Seeds = None,
    previous: Previous = None,
    against: Against = None,
    policy: Policy = None,
    key: Key = None,
    tokenizer: Tokenizer = None,
    max_length: MaxLength = None,
    languages: Languages = None,
    scored: Scored = None,
    layout: Layout = None,
    text_column: TextColumn = "text",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write. Default: splits/NAME@V in the catalog.", show_default=False),
    ] = None,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Check, hash and write splits for training. Exit 0 accept, 3 tune, 4 reject, 5 a required check could not run."""
    from lpt_data.admit import admit as admit_splits
    from manifests.catalog import Catalog

    given = {"train": train, "validation": validation or [], "test": test or []}
    opened, progress = Catalog.open(catalog), Progress_()
    with verifiers() as lent:
        admission = admit_splits(
            name,
            contract,
            {split: paths for split, paths in given.items() if paths},
            catalog=opened,
            policy=policy,
            benchmarks=benchmark_paths(benchmark, catalog),
            against=against,
            seeds=seeds,
            previous=previous,
            key=key,
            encode=encoder(tokenizer, max_length),
            max_length=max_length,
            verifiers=lent,
            languages=names_of(languages),
            pass_rates=scored or None,
            layout=layout,
            text_column=text_column,
            out=out,
            progress=progress,
        )
    progress.close()
    tell_notes(opened)
    if json:
        as_json(admission.to_json())
    else:
        show_admission(admission.to_json())
        show_checks(admission.checks)
        show_verdict(admission.verdict, admission.checks)
        show_place(admission, contract, carried=out is not None, catalog=catalog)
    tell_head(opened)
    raise typer.Exit(admission.exit_code)


def show_place(admission: Admission, contract: str, *, carried: bool, catalog: Path | None) -> None:
    """Where the admitted splits lie, the command that trains on them, and their page."""
    if admission.reused:
        say("admitted before with the same rows and policy; that version stands", style="dim")
    elif admission.version > 1:
        name, before = admission.name, f"{admission.name}@{admission.version - 1}"
        say(
            f"there was {before}; this is {name}@{admission.version}, and what {name} means from now on", style="yellow"
        )
    say(f"{admission.name}@{admission.version}  {admission.folder}  manifest {admission.manifest_id[:16]}…")
    tell_training(admission, contract, carried=carried, catalog=catalog)
    page = command("lpt report", f"{admission.name}@{admission.version}", catalog=catalog)
    say(f"its page: {page}", style="dim")


def show_admission(body: dict) -> None:
    """The splits with their digests, and the proof that they share no key."""
    table(
        ["split", "rows", "keys", "content_root"],
        [
            (name, split["rows"], (split.get("key") or {}).get("count"), split["content_root"][:16] + "…")
            for name, split in body["splits"].items()
        ],
    )
    disjoint((pair["a"], pair["b"], pair["by"], pair["intersection"]) for pair in body.get("disjoint") or [])


def tell_training(admission: Admission, contract: str, *, carried: bool, catalog: Path | None) -> None:
    """The command that trains on what was admitted, where it may be trained on."""
    if admission.verdict == "reject" or admission.exit_code == 5 or contract not in TRAINED_BY:
        return
    where = f"{admission.folder}/manifest.json" if carried else f"{admission.name}@{admission.version}"
    words = ("--admitted", f"{where}:train", "--model", "MODEL", "--out", f"runs/{admission.name}")
    tell_next(command(f"lpt train {TRAINED_BY[contract]}", *words, catalog=catalog))
