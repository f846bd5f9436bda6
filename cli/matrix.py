"""``lpt train matrix``: variants under shared seeds, and the cheapest that is as good as the best."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from cli.options import CatalogDir, Json, examples
from cli.output import ToldExit, as_json, say, table, tell_head, tell_next
from cli.train import STOPPED, StepLine, held_out

EXAMPLES = examples(
    "lpt train matrix rank.yaml --out runs/rank",
    "lpt train matrix rank.yaml --out runs/rank --retry",
    'lpt sql "select variant, mean, difference, inside, winner from v_matrix"',
)
REJECTED = 4


def matrix(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="Variants, seeds, metric, band, gates.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the matrix; each cell is a run in it.")],
    retry: Annotated[
        bool, typer.Option("--retry", help="Run failed cells again; their first try is kept under another name.")
    ] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Train every variant with every seed, and take the cheapest that is as good as the best and passes every gate.

    A matrix that was stopped or killed goes on with the same command: finished cells are not run again. It exits with 4
    when no variant can be taken. examples/matrix/rank.yaml shows every key.
    """
    from lpt_train.matrix_spec import read_spec

    read = read_spec(spec)
    from lpt_train.matrix import run_matrix
    from manifests.catalog import Catalog

    opened = Catalog.open(catalog)
    line = CellLine()
    result = run_matrix(read, out=out, catalog=opened, retry=retry, progress=line)
    line.close()
    if result.choice is None:
        say(f"stopped with {len(result.cells)} of {len(read.cells)} cells", style="yellow")
        tell_next(f"lpt train matrix {quote(str(spec))} --out {quote(str(out))}")
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
        run = quote(str(out / f"{won.variant}-seed{won.seed}"))
        held = held_out(read.admitted, read.eval, opened)
        tell_next(f"lpt eval --admitted {held} --model {run}", f"lpt report {run}", "lpt sql @matrices")


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
