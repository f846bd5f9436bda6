"""The options by which an audit lets a model attempt some of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpt_data.option_values import MOST_SEED
from manifests.errors import UsageError

if TYPE_CHECKING:
    from lpt_data.contracts.sampled import Sampled

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Let this model attempt a sample of the rows (rlvr): a folder of weights or of a run, or a hub name. "
        "Needs lpt[train].",
        show_default=False,
    ),
]
Attempts = Annotated[
    int | None, typer.Option(min=1, help="Attempts at each row of the sample. Default: 8.", show_default=False)
]
Temperature = Annotated[
    float | None, typer.Option(min=0, help="Of the attempts; 0 is one greedy one. Default: 1.", show_default=False)
]
SampleRows = Annotated[
    int | None, typer.Option(min=1, help="Rows of the sample, drawn by seed. Default: 128.", show_default=False)
]
SampleSeconds = Annotated[
    float | None,
    typer.Option(
        min=0, help="Begin no further batch of attempts after so many seconds. Default: 600.", show_default=False
    ),
]
SampleSeed = Annotated[
    int | None,
    typer.Option(min=0, max=MOST_SEED, help="Seed of the sample and of the attempts. Default: 0.", show_default=False),
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens that an attempt may have. Default: 256.", show_default=False)
]
ScoresFile = Annotated[
    Path | None,
    typer.Option(
        help="A .json file for the pass rate of each row of the sample, which --scored reads.", show_default=False
    ),
]


def sampler_of(
    model: str | None,
    *,
    scored: object = None,
    scores: Path | None = None,
    read: Iterable[Path | str] = (),
    **asked: int | float | None,
) -> Any:
    """The loaded model with its settings; None without one.

    Raises UsageError for settings without a model, for rates that come from files as well, without the trainer, and for
    a file of scores that would take the place of another (`read` are those that the command reads).
    """
    given = {name: value for name, value in asked.items() if value is not None}
    if model is None:
        if given or scores is not None:
            named = sorted(_OPTIONS[name] for name in given) + ["--scores"] * (scores is not None)
            raise UsageError("attempts are made by a model", seen=", ".join(named), next="--model DIR")
        return None
    if scored:
        raise UsageError("pass rates come from files or from a model", seen="--scored and --model", next="one of them")
    check_scores(scores, read)
    from lpt_train.pass_rates import Attempts as Asked
    from lpt_train.pass_rates import open_sampler

    assert set(given) <= {field.name for field in fields(Asked)}
    return open_sampler(Asked(model, **given))  # type: ignore[arg-type]


_OPTIONS = {
    "attempts": "--attempts", "temperature": "--temperature", "rows": "--sample-rows", "seconds": "--sample-seconds",
    "seed": "--sample-seed", "max_tokens": "--max-tokens",
}  # fmt: skip


SCORES = "lpt.scores/1"  # the type of a file of scores, and the first thing in it


def check_scores(path: Path | None, read: Iterable[Path | str] = ()) -> None:
    """Raise UsageError for a file of scores that is no .json file, that is one of those that are read, or that would
    take the place of anything but earlier scores."""
    if path is None:
        return
    if path.suffix != ".json":
        raise UsageError("--scores is a .json file", seen=str(path), next=f"--scores {path.with_suffix('.json')}")
    if not path.parent.is_dir():
        raise UsageError("the folder of --scores does not exist", seen=path.parent, next=f"mkdir -p {path.parent}")
    if not path.exists():
        return
    if any(Path(other).exists() and path.samefile(other) for other in read):
        raise UsageError("--scores is a file that is read", seen=str(path), next="choose another name for --scores")
    if not _is_scores(path):
        raise UsageError(
            "--scores would take the place of a file that holds no earlier scores", seen=str(path),
            next="choose another name for --scores",
        )  # fmt: skip


def _is_scores(path: Path) -> bool:
    start = b'{\n "type": "%s",' % SCORES.encode()
    try:
        with open(path, "rb") as file:
            return file.read(len(start)) == start
    except OSError:  # a folder, or a file that may not be read
        return False


def write_scores(path: Path, told: Mapping[str, Any], items: list[dict[str, Any]]) -> None:
    """Write what is told of scores and the items that they are of, each with its `record_id` and its `score`."""
    from json import dumps

    from manifests.files import write_atomic

    write_atomic(path, (dumps({"type": SCORES, **told, "items": items}, indent=1) + "\n").encode())


def scores_of(sampled: Sampled) -> list[dict[str, Any]]:
    """The rates of sampled rows as items of a file of scores."""
    return [{"record_id": name.hex(), "score": rate} for name, rate in sorted(sampled.rates.items())]
