"""``lpt demo``: the whole journey on data and a model made on the spot. Each chapter calls what the commands call."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.audit import show_checks, show_verdict, verifiers
from cli.data import show_report, show_split
from cli.options import examples
from cli.output import Progress_, data, say, table
from cli.sql import show
from cli.train import StepLine
from manifests.errors import UsageError

EXAMPLES = examples("lpt demo", "lpt demo --dir try --seed 7")

MARK = ".lpt-demo"  # names a folder that the demo made and may empty again
HELD_OUT = 500  # canonical keys that measure the model, fixed before anything is trained
HIGHEST = 30  # two-number problems over 1..30


@dataclass(frozen=True)
class Journey:
    """What the chapters hand on: the folder, its catalog, the seed."""

    folder: Path
    catalog: Any
    seed: int

    def file(self, name: str) -> Path:
        """A file of the demo's folder."""
        return self.folder / name


def demo(
    dir: Annotated[Path, typer.Option("--dir", help="Folder to work in; made, and emptied if a demo made it.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of data, model and training.")] = 0,
) -> None:
    """The whole journey on data and a model made on the spot: dedup, leaks caught, admission, SFT, GRPO, SQL. CPU."""
    from manifests.catalog import Catalog

    started = time.monotonic()
    journey = Journey(_emptied(dir), Catalog.open(dir / ".lpt"), seed)
    deduplicate(journey)
    plant_and_catch(journey)
    admit_both(journey)
    train_and_measure(journey)
    ask(journey)
    say(f"\ndone in {time.monotonic() - started:.0f} s", style="bold green")


def _emptied(folder: Path) -> Path:
    """The folder, empty. One that holds anything which no demo made is refused."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise UsageError("the demo's folder holds other things", seen=folder, next="lpt demo --dir NEW")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


def chapter(title: str) -> None:
    """A heading."""
    say(f"\n── {title}", style="bold cyan")


def deduplicate(journey: Journey) -> None:
    """(a) Real text with real near-duplicates: the documentation and licences of the packages installed around us."""
    from lpt_data.config import DedupConfig
    from lpt_data.dataset import Dataset
    from lpt_data.dedup import decide
    from lpt_data.generate.package_docs import documents
    from lpt_data.stage import run_stage
    from lpt_data.write import write_jsonl

    chapter("a. Deduplicate real text: the documentation of the installed packages")
    corpus = journey.file("corpus.jsonl")
    write_jsonl(corpus, documents(max_bytes=20_000_000))
    progress = Progress_()
    report = run_stage(
        "dedup",
        Dataset.open([str(corpus)]),
        DedupConfig(threshold=0.8, workers=os.cpu_count()),
        decide,
        output=journey.file("corpus.clean.parquet"),
        catalog=journey.catalog,
        progress=progress,
    )
    progress.close()
    show_report(report)
    table(
        ["score", "removed", "its text", "kept", "its text"],
        [
            (w["score"], w["row"], w["text"][:90], w["witness_row"], w["witness_text"][:90])
            for w in report.extra["weakest"][:3]
        ],
        title="three removals with the kept row they were compared with, the weakest evidence first",
    )


def plant_and_catch(journey: Journey) -> None:
    """(b) Countdown problems with planted duplicates, permuted copies and a test leak; each is caught."""
    from lpt_data.config import DedupConfig, SplitConfig
    from lpt_data.dataset import Dataset
    from lpt_data.dedup import decide
    from lpt_data.generate.countdown import problems
    from lpt_data.split import split
    from lpt_data.stage import run_stage
    from lpt_data.write import write_jsonl

    chapter("b. Plant duplicates, permuted copies and a test leak in Countdown problems; catch each")
    made = list(problems(1_000_000, numbers=2, seed=journey.seed, high=HIGHEST))
    rng = random.Random(journey.seed)
    copies = rng.sample(made, 150)
    permuted = [row | {"nums": row["nums"][::-1]} for row in rng.sample(made, 150) if row["nums"][0] != row["nums"][1]]
    rows = [*made, *copies, *permuted]
    rng.shuffle(rows)
    raw = journey.file("problems.jsonl")
    write_jsonl(raw, rows)
    say(f"planted {len(copies)} exact copies and {len(permuted)} permuted copies among {len(made):,} problems")

    unique = journey.file("problems.unique.jsonl")
    config = DedupConfig(method=("exact",), key="row")
    show_report(run_stage("dedup", Dataset.open([str(raw)]), config, decide, output=unique, catalog=journey.catalog))
    splits = split(
        Dataset.open([str(unique)]),
        SplitConfig(key="countdown", test=HELD_OUT, seed=journey.seed),
        out=journey.file("splits"),
        catalog=journey.catalog,
    )
    show_split(splits.extra)


def admit_both(journey: Journey) -> None:
    """(c) A leak is refused; without it the splits are admitted, for SFT and for RLVR."""


def train_and_measure(journey: Journey) -> None:
    """(d) SFT, then GRPO, within a fixed budget; accuracy on held-out keys with paired intervals."""


QUESTIONS = (
    (
        "which rows went, and for which kept row",
        "SELECT stage, reason, count(*) AS n FROM v_decision GROUP BY ALL ORDER BY n DESC",
    ),
    (
        "what was admitted, and what was refused",
        "SELECT name, version, contract, verdict FROM v_manifest ORDER BY created",
    ),
    (
        "which run trained on which admitted split",
        "SELECT algorithm, split, verified, steps FROM v_run ORDER BY created",
    ),
)


def ask(journey: Journey) -> None:
    """(e) Three questions in SQL, and where everything lies."""
    from manifests.sql import query

    chapter("e. Ask the catalog in SQL")
    for question, sql in QUESTIONS:
        say(f'{question}:  lpt sql --catalog {journey.catalog.directory} "{sql}"', style="dim")
        result = query(journey.catalog, sql)
        show(result.columns, result.rows, "table")
    for path in sorted(journey.folder.iterdir()):
        data(str(path))


__all__ = ["EXAMPLES", "Iterable", "Mapping", "StepLine", "demo", "show_checks", "show_verdict", "verifiers"]
