"""``lpt train matrix``: variants under shared seeds, and the cheapest that is as good as the best."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.next_commands import command, held_out
from cli.options import CatalogDir, Json, catalog_of, examples
from cli.output import ToldExit, as_json, data, say, table, tell_head, tell_next
from cli.train import STOPPED, StepLine

EXAMPLES = examples(
    "lpt train matrix --example > rank.yaml",
    "lpt train matrix rank.yaml --out runs/rank",
    "lpt train matrix rank.yaml --out runs/rank --retry",
    'lpt sql "select variant, mean, difference, inside, winner from v_matrix"',
)
REJECTED = 4


def _print_example(asked: bool) -> None:
    if asked:
        import lpt_train

        data(Path(lpt_train.__file__).with_name("matrix_example.yaml").read_text("utf-8").rstrip("\n"))
        raise typer.Exit


def matrix(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="Variants, seeds, metric, band, gates.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the matrix; each cell is a run in it.")],
    retry: Annotated[
        bool, typer.Option("--retry", help="Run failed cells again; their first try is kept under another name.")
    ] = False,
    example: Annotated[
        bool,
        typer.Option("--example", is_eager=True, callback=_print_example, help="Print a specification to begin with."),
    ] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Train every variant with every seed, and take the cheapest that is as good as the best and passes every gate.

    A matrix that was stopped or killed goes on with the same command: finished cells are not run again. It exits with 4
    when no variant can be taken. --example shows every key.
    """
    from lpt_train.matrix_spec import read_spec

    read = read_spec(spec)
    from lpt_train.matrix import run_matrix

    opened = catalog_of(catalog, read.admitted, read.eval)
    line = CellLine()
    result = run_matrix(read, out=out, catalog=opened, retry=retry, progress=line)
    line.close()
    if result.choice is None:
        say(f"stopped with {len(result.cells)} of {len(read.cells)} cells", style="yellow")
        tell_next(command("lpt train matrix", spec, "--out", out, catalog=catalog))
        raise ToldExit(STOPPED.get(result.stopped_by or "", 1))
    if json:
        as_json({**result.body, "object": result.object_id, "page": str(out / "matrix.md")})
    else:
        show(result)
    tell_head(opened)
    if result.choice.winner is None:
        raise typer.Exit(REJECTED)
    if not json:
        won = next(cell for cell in result.cells if (cell.variant, cell.status) == (result.choice.winner, "done"))
        run, held = out / f"{won.variant}-seed{won.seed}", held_out(read.admitted, read.eval, opened)
        tell_next(
            command("lpt eval", "--admitted", held, "--model", run, catalog=catalog),
            command("lpt report", run, catalog=catalog),
            command("lpt sql", "@matrices", catalog=catalog),
        )


class CellLine:
    """The live line of the cell that runs, after one that names it."""

    def __init__(self) -> None:
        self._name = ""
        self._line = StepLine()

    def __call__(self, cell: Any, number: int, cells: int, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show one step of a cell."""
        if cell.name != self._name:
            self.close()
            self._name, self._line = cell.name, StepLine()
            say(f"cell {number} of {cells}: {cell.variant}, seed {cell.seed}")
        self._line(step, total, dict(metrics))

    def close(self) -> None:
        """Leave the last line standing."""
        self._line.close()


def show(result: Any) -> None:
    """The variants in a table, the failed cells by name, the choice and its reason."""
    from lpt_train.matrix_page import VARIANT_COLUMNS, variant_row

    choice = result.choice
    rows = (variant_row(variant, choice) for variant in choice.variants)
    table(VARIANT_COLUMNS, [(*row[:-1], str(row[-1]).replace(", ", "  ")) for row in rows])
    for cell in result.cells:
        if cell.status == "failed":
            say(f"{cell.name} failed: {'; '.join(cell.failures)}", style="bold red")
    for note in result.notes:
        say(note, style="yellow")
    say(f"winner: {choice.winner or 'none'}. {choice.reason}", style="bold green" if choice.winner else "bold red")
    say(f"{result.path / 'matrix.md'}  {result.object_id}")
