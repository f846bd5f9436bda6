"""``lpt data tokens``: what tokenizers cost on given data, and one trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.groups import Group
from cli.options import Inputs, Json, Layout, TextColumn, examples
from cli.output import Progress_, as_json, say, shown, table

if TYPE_CHECKING:
    from lpt_data.tokenizer_file import TokenizerFile

DEFAULT = "measure"
RUNS = {"digits": "number", "indentation": "indent", "identifiers": "name", "operators": "operator"}


class _MeasuresByDefault(Group):
    """`lpt data tokens IN…` is `lpt data tokens measure IN…`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("help", *ctx.help_option_names):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Tokenizers: compression, fragmentation, vocabulary; BPE training. `lpt data tokens IN…` measures.",
    no_args_is_help=True,
    rich_markup_mode=None,
    cls=_MeasuresByDefault,
)


@app.command(
    DEFAULT,
    epilog=examples(
        "lpt data tokens corpus.jsonl --tokenizer ./model --tokenizer mine/tokenizer.json",
        "lpt data tokens measure code.jsonl --tokenizer tiny --domain-column source --hidden 4096 --json",
    ),
)
def measure(
    inputs: Inputs,
    tokenizer: Annotated[
        list[str], typer.Option(help="tokenizer.json, model folder, or `tiny`; repeatable.", show_default=False)
    ],
    language_column: Annotated[
        str | None, typer.Option(help="Column with the language. Default: the script of each text.", show_default=False)
    ] = None,
    domain_column: Annotated[
        str | None, typer.Option(help="Column with the domain. Default: `domain`, where there is one.")
    ] = None,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the model, for the cost of the embedding.")] = 2048,
    layout: Layout = None,
    text_column: TextColumn = "text",
    json: Json = False,
) -> None:
    """Characters and bytes a token by language and domain, numbers, code, vocabulary, attention."""
    from lpt_data.dataset import Dataset
    from lpt_data.tokens import measure as measure_tokens

    opened = [open_any(name) for name in tokenizer]
    dataset = Dataset.open(inputs, layout=layout, text_column=text_column)
    progress = Progress_()
    told = measure_tokens(
        dataset, opened, language=language_column, domain=domain_column, hidden=hidden, progress=progress
    )
    progress.close()
    if json:
        as_json(told)
    else:
        show(told)


@app.command(
    "train",
    epilog=examples(
        "lpt data tokens train corpus.jsonl --vocab-size 8000 --out tokenizer.json",
        "lpt data tokens train sums.jsonl --vocab-size 4096 --single-digits --special '<|im_end|>' --out t.json",
    ),
)
def train(
    inputs: Inputs,
    vocab_size: Annotated[int, typer.Option("--vocab-size", min=1, help="Ids at most.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The tokenizer.json to write.", show_default=False)],
    special: Annotated[list[str] | None, typer.Option(help="A special token; repeatable.")] = None,
    min_frequency: Annotated[int, typer.Option(min=1, help="How often a pair must occur to be merged.")] = 2,
    single_digits: Annotated[bool, typer.Option("--single-digits", help="A token for every digit.")] = False,
    layout: Layout = None,
    text_column: TextColumn = "text",
    json: Json = False,
) -> None:
    """Train a byte-level BPE tokenizer on the text of the rows."""
    from lpt_data.dataset import Dataset
    from lpt_data.tokens_train import train as train_tokenizer

    progress = Progress_()
    made = train_tokenizer(
        Dataset.open(inputs, layout=layout, text_column=text_column),
        out,
        vocab_size=vocab_size,
        special=special or (),
        min_frequency=min_frequency,
        single_digits=single_digits,
        progress=progress,
    )
    progress.close()
    if json:
        as_json(made)
        return
    say(f"{made['vocabulary']:,} ids in {made['output']}, from {made['rows_in'] - made['quarantined']:,} rows")
    if made["vocabulary"] < made["asked"]:
        say(f"warning: the data has no more pairs to merge than that; {made['asked']:,} were asked", style="yellow")
    say(f"what it costs: lpt data tokens {inputs[0]} --tokenizer {made['output']}", style="dim")


def open_any(name: str) -> TokenizerFile:
    """A tokenizer by path, or the byte-level one of the tiny model."""
    from lpt_data.tokenizer_file import open_tokenizer, wrap

    if name != "tiny":
        return open_tokenizer(name)
    from lpt_train.tiny import byte_tokenizer

    return wrap("tiny", byte_tokenizer().backend_tokenizer)


def show(told: dict[str, Any]) -> None:
    """The tokenizers side by side, then by language and by domain."""
    tokenizers = told["tokenizers"]
    table(
        [
            "tokenizer",
            "tokens",
            "chars/token",
            "bytes/token",
            *(f"tokens/{name}" for name in RUNS.values()),
            "attention",
        ],
        [
            (
                t["name"],
                f"{t['tokens']:,}",
                shown(t["characters_per_token"]),
                shown(t["bytes_per_token"]),
                *(shown(t[kind]["tokens_per_run"]) for kind in RUNS),
                shown(t["attention_ratio"]),
            )
            for t in tokenizers
        ],
        title=f"{told['rows']:,} rows, {told['characters']:,} characters, {told['bytes']:,} bytes",
    )
    table(
        ["tokenizer", "vocabulary", f"embedding at {told['hidden']}", "unused here", "unknown tokens"],
        [
            (
                t["name"],
                f"{t['vocabulary']:,}",
                f"{t['embedding_parameters']:,}",
                f"{t['unused_share']:.1%}",
                t["unknown_tokens"],
            )
            for t in tokenizers
        ],
    )
    for kind, title in (("by_language", told["language"]), ("by_domain", told["domain"])):
        if tokenizers[0][kind]:
            table(
                [str(title), "rows", *(f"chars/token: {t['name']}" for t in tokenizers)],
                [
                    (name, f"{group['rows']:,}", *(shown(t[kind][name]["characters_per_token"]) for t in tokenizers))
                    for name, group in tokenizers[0][kind].items()
                ],
            )
    if told["quarantined"]:
        say(f"{told['quarantined']:,} rows could not be read and are not counted", style="yellow")
