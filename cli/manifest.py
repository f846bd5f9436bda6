"""``lpt manifest`` and ``lpt why``: what was admitted, whether it still is, and where a row went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.audit import show_checks, show_verdict
from cli.groups import Group
from cli.options import CatalogDir, Json, examples
from cli.output import VERDICT_STYLE, Progress_, as_json, clean, data, say, styled, table, tell_notes

if TYPE_CHECKING:
    from manifests.catalog import Catalog

app = typer.Typer(
    cls=Group,
    help="Admission manifests: list, show, verify, diff, export.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Reference = Annotated[
    str, typer.Argument(metavar="NAME[@V]", help="NAME, NAME@VERSION, an object id, or a path to manifest.json.")
]


@app.command("list", epilog=examples("lpt manifest list", "lpt manifest list --json"))
def list_(catalog: CatalogDir = None, json: Json = False) -> None:
    """Every manifest of the catalog with its verdict, newest first."""
    from manifests.catalog import Catalog

    opened = Catalog.open(catalog, create=False)
    found = [
        {
            "name": body["name"],
            "version": body["version"],
            "contract": body["contract"],
            "verdict": body["verdict"],
            "rows": {split: part["rows"] for split, part in body["splits"].items()},
            "created": body["created"],
            "manifest_id": object_id,
        }
        for object_id, body in opened.find("lpt.admission/1", strict=False)
    ]
    tell_notes(opened)
    if json:
        as_json({"manifests": found})
        return
    table(
        ["manifest", "contract", "verdict", "rows", "created", "id"],
        [
            (
                f"{m['name']}@{m['version']}",
                m["contract"],
                styled(m["verdict"], VERDICT_STYLE[m["verdict"]]),
                "  ".join(f"{split} {n:,}" for split, n in m["rows"].items()),
                m["created"][:19],
                m["manifest_id"][:16],
            )
            for m in found
        ],
        to_stdout=True,
    )


SHOW_EXAMPLES = examples(
    "lpt manifest show gsm8k", "lpt manifest show gsm8k@1 --json", "lpt manifest show 3f2a8c01d5e9 --json"
)


@app.command("show", epilog=SHOW_EXAMPLES)
def show(ref: Reference, catalog: CatalogDir = None, json: Json = False) -> None:
    """One manifest: splits, digests, checks, verdict. With --json the object as it is stored.

    The id of another object (a matrix, an evaluation, a comparison, a run) shows that one as it is stored.
    """
    if (other := _other_object(catalog, ref)) is not None:
        as_json(other)
        return
    loaded = _load(catalog, ref)
    if json:
        as_json({"manifest_id": loaded.id, **loaded.body})
        return
    from cli.admit import show_admission
    from manifests.policy import checks_from_json

    say(f"{loaded.body['name']}@{loaded.body['version']}  {loaded.body['contract']}  {loaded.folder}")
    show_admission(loaded.body)
    checks = checks_from_json(loaded.body["checks"])
    show_checks(checks)
    show_verdict(loaded.body["verdict"], checks)


@app.command("verify", epilog=examples("lpt manifest verify gsm8k@1", "lpt manifest verify /mnt/carried/manifest.json"))
def verify(ref: Reference, catalog: CatalogDir = None, json: Json = False) -> None:
    """Hash everything again: bytes, rows, order and keys. Exit 4 when something differs, with the rows named."""
    from lpt_data.keys import key_of
    from manifests.admission import verify as verify_loaded

    report = verify_loaded(_load(catalog, ref), key=key_of)
    if json:
        found = {"ok": report.ok, "files": report.files, "problems": report.problems}
        as_json(found | {"not_checked": report.not_checked})
    else:
        for problem in report.problems:
            say(str(problem), style="bold red")
        say(
            f"{'verified' if report.ok else 'NOT as admitted'}: {len(report.files)} files",
            style="green" if report.ok else "red",
        )
    raise typer.Exit(0 if report.ok else 4)


@app.command("diff", epilog=examples("lpt manifest diff gsm8k@1 gsm8k@2"))
def diff(left: Reference, right: Reference, catalog: CatalogDir = None, json: Json = False) -> None:
    """Rows added and removed per split, checks that changed, and the version step this asks for."""
    from manifests.admission import diff as diff_loaded

    answer = diff_loaded(_load(catalog, left), _load(catalog, right)).to_json()
    if json:
        as_json(answer)
        return
    table(
        ["split", "rows added", "rows removed"],
        [(name, part["added"], part["removed"]) for name, part in answer["splits"].items()],
    )
    for change in answer["checks"]:
        say(f"{change['id']}: {change['left']} → {change['right']}")
    say(f"version step: {answer['bump']}")


EXPORT_EXAMPLES = examples(
    "lpt manifest export gsm8k --format croissant --out gsm8k.croissant.json",
    "lpt manifest export gsm8k@1 --format card --out cards/",
    "lpt manifest export gsm8k --format in-toto --out -",
)


@app.command("export", epilog=EXPORT_EXAMPLES)
def export(
    ref: Reference,
    format: Annotated[
        str, typer.Option("--format", help="croissant, card (README.md of a Hugging Face data set), in-toto.")
    ],
    out: Annotated[Path, typer.Option("--out", help="File or folder to write; - prints it.", show_default=False)],
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Write a manifest as other programs read it: Croissant, a data card, an unsigned in-toto statement."""
    from cli.report import put, told
    from lpt_data.report.find import manifest_of

    opened, progress = opened_for(catalog, ref), Progress_()
    story = manifest_of(opened, ref, progress=progress)
    progress.close()
    told(story, put(story, format, out), format, json=json)


WHY_EXAMPLES = examples("lpt why 3f9a1c2b", "lpt why 81a2c4d5e6f70812:1042", "lpt why corpus.jsonl:1043")


def why(
    ref: Annotated[str, typer.Argument(help="A record id (8 hex digits or more), STAGE:ROW, or FILE:LINE.")],
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Say why a row went: the stage, the reason, the kept row it was compared with, on to the final survivor."""
    from lpt_data.lineage import identify
    from manifests.catalog import Catalog
    from manifests.why import why as ask

    opened = Catalog.open(catalog, create=False)
    answer: Any = ask(opened, ref, identify=identify)
    if json:
        as_json(answer.to_json())
        return
    data(clean(str(answer)))
    for step, text in texts(opened, answer.steps):
        data(clean(f"  {'kept' if step.witness else 'text'}: {text}"))


def texts(catalog: Any, steps: Any) -> list[tuple[Any, str]]:
    """The start of the text of the row and of the kept row it repeats, read from the files while they are unchanged."""
    from lpt_data.lineage import excerpt

    shown: dict[bool, tuple[Any, str]] = {}
    for step in steps:
        if step.witness in shown or not step.file or step.file_row is None:
            continue
        body = next((body for _, body in catalog.find("lpt.stage/1", stage_id=step.stage_id)), None)
        text = excerpt(body, step.file, step.file_row) if body else None
        if text is not None:
            shown[step.witness] = (step, text)
    return list(shown.values())


def opened_for(catalog: Path | None, ref: str) -> Catalog | None:
    """The catalog that a reference is looked up in. A path needs none, unless one is named; evaluations of a run are
    looked up where there is one."""
    from lpt_data.report.run_story import folder_of
    from manifests.catalog import Catalog
    from manifests.errors import BadInputError

    run = folder_of(ref) is not None
    if catalog is None and ref.endswith(".json") and not run:
        return None
    try:
        return Catalog.open(catalog, create=False)
    except BadInputError:
        if catalog is None and run:
            return None
        raise


def _other_object(catalog: Any, ref: str) -> dict[str, Any] | None:
    """The object that a full id, or at least 12 digits of one, stands for, where it is no admission."""
    from manifests.catalog import Catalog
    from manifests.errors import BadInputError

    if len(ref) < 12 or set(ref) - set("0123456789abcdef"):
        return None
    opened = Catalog.open(catalog, create=False)
    if any(opened.find("lpt.admission/1", strict=False, name=ref)):  # a manifest may have a name that looks like an id
        return None
    try:
        body = opened.get(ref)
    except BadInputError:
        return None  # the manifest of that id says what is wrong
    return None if str(body.get("type", "")).startswith("lpt.admission/") else {"object": ref, **body}


def _load(catalog: Any, ref: str) -> Any:
    from manifests.admission import load_manifest

    return load_manifest(opened_for(catalog, ref), ref)
