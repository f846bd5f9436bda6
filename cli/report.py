"""``lpt report``: one page, or a data card, of what was admitted, of one stage or of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import CatalogDir, Json, examples
from cli.output import Progress_, as_json, data, say, tell_notes

if TYPE_CHECKING:
    from lpt_data.report.story import Story

EXAMPLES = examples(
    "lpt report gsm8k",
    "lpt report gsm8k@1 --out gsm8k.html --open",
    "lpt report 81a2c4d5 --out dedup.html",
    "lpt report runs/sft --out sft.html",
    "lpt report /mnt/carried/manifest.json --format md --out README.md",
    "lpt report gsm8k --format json --out - | jq '.checks[0]'",
)


def report(
    ref: Annotated[
        str,
        typer.Argument(metavar="REF", help="NAME, NAME@VERSION, a path to manifest.json, the id of a stage, or a run."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File or folder to write; - prints it. Default: NAME@V.html here.", show_default=False
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option("--format", help="html (one page, nothing loaded), md (a data card), json, croissant, in-toto."),
    ] = "html",
    open: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Write a report: where the rows went, checks with their commands, removed rows beside kept ones; of a run (its
    folder or its id) the curves, its evaluations, the proof of an update, the batches set aside."""
    from cli.manifest import opened_for
    from lpt_data.report.find import story_of
    from lpt_data.report.write import format_of

    format_of(format)  # before any reading
    opened, progress = opened_for(catalog, ref), Progress_()
    story = story_of(opened, ref, progress=progress)
    progress.close()
    if opened is not None:
        tell_notes(opened)
    path = put(story, format, out)
    told(story, path, format, json=json)
    if open and path is not None:
        _show(path)


def put(story: Story, format: str, out: Path | None) -> Path | None:
    """Write a report to a file, into a folder, or to stdout (-); return the file."""
    from lpt_data.report.write import default_name, format_of, rendered, write

    if out == Path("-"):
        data(rendered(story, format).decode().rstrip("\n"))
        return None
    path = Path(default_name(story, format)) if out is None else out
    if path.is_dir():
        path = path / format_of(format).folder_name
    write(path, story, format)
    return path


def told(story: Story, path: Path | None, format: str, *, json: bool) -> None:
    """Say where the report is, and what it could not show."""
    for note in story.notes:
        say(f"not shown: {note}", style="yellow")
    if path is None:
        return
    if json:
        as_json(
            {"report": str(path), "format": format, "bytes": path.stat().st_size, "of": story.id, "notes": story.notes}
        )
    else:
        data(str(path))


def _show(path: Path) -> None:
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        say(f"no browser was found; open {path.resolve()}", style="yellow")
