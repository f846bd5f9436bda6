"""``lpt demo``: the whole journey on data and a model made on the spot. Each chapter calls what the commands call."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.admit import show_admission
from cli.audit import show_checks, show_verdict, verifiers
from cli.data import show_report, show_split
from cli.evaluate import show_paired
from cli.options import examples
from cli.output import Progress_, data, one_line, say, table
from cli.run_shown import StepLine
from cli.sql import show
from cli.train import exit_code
from manifests.errors import RefusedError, UsageError

EXAMPLES = examples("lpt demo", "lpt demo --dir try --seed 7")

MARK = ".lpt-demo"  # names a folder that the demo made and may empty again
HELD_OUT = 500  # canonical keys that measure the model, fixed before anything is trained
CORPUS = 20_000_000  # bytes of documentation
PROBLEMS, HIGHEST = 6_000, 99  # two-number problems over 1..99
RIGHT = 0.4  # share of the shown answers whose operation is the right one

# A fixed budget, never "until it looks good": about 1.5 minutes on two cores.
MODEL: dict[str, Any] = {"hidden": 128, "layers": 2, "heads": 4, "initializer_range": 0.04}
COMMON = {"use_peft": False, "lr_scheduler_type": "linear", "adam_beta2": 0.99}
SFT = COMMON | {
    "max_steps": 300,
    "per_device_train_batch_size": 32,
    "max_length": 128,
    "learning_rate": 2e-3,
    "warmup_steps": 20,
    "logging_steps": 5,
}
GRPO = COMMON | {
    "max_steps": 50,
    "num_generations": 8,
    "per_device_train_batch_size": 64,
    "gradient_accumulation_steps": 4,
    "max_completion_length": 24,
    "learning_rate": 5e-4,
    "warmup_steps": 5,
}


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
    gained = train_and_measure(journey)
    ask(journey)
    write_pages(journey)
    if not gained:
        say("\nthe demo does not show what it says it shows: see the red line above", style="bold red")
        raise typer.Exit(1)
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


def deduplicate(journey: Journey, max_bytes: int = CORPUS) -> None:
    """(a) Real text with real near-duplicates: the documentation and licences of the packages installed around us."""
    from lpt_data.config import DedupConfig
    from lpt_data.dataset import Dataset
    from lpt_data.dedup import decide
    from lpt_data.generate.package_docs import documents
    from lpt_data.stage import run_stage
    from lpt_data.write import write_jsonl

    chapter("a. Deduplicate real text: the documentation of the installed packages")
    corpus = journey.file("corpus.jsonl")
    write_jsonl(corpus, documents(max_bytes=max_bytes))
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
    shown = [
        (w["score"], w["row"], one_line(w["text"])[:90], w["witness_row"], one_line(w["witness_text"])[:90])
        for w in report.extra["weakest"][:3]
    ]
    title = "three removals with the kept row they were compared with, the weakest evidence first"
    table(["score", "removed", "its text", "kept", "its text"], shown, title=title)


def plant_and_catch(journey: Journey) -> None:
    """(b) Countdown problems with planted duplicates, permuted copies and a test leak; each is caught."""
    from lpt_data.config import DedupConfig, SplitConfig
    from lpt_data.dataset import Dataset
    from lpt_data.dedup import decide
    from lpt_data.split import split
    from lpt_data.stage import run_stage

    chapter("b. Plant duplicates, permuted copies and a test leak in Countdown problems; catch each")
    raw = journey.file("problems.jsonl")
    planted = write_problems(raw, journey.seed)
    say(f"planted among {PROBLEMS:,} problems: {planted['copies']} exact copies, {planted['permuted']} permuted copies")
    for says, key, layout, source, target in (
        ("exact copies: equal rows", "row", "countdown", raw, journey.file("unique.jsonl")),
        (
            "permuted copies: equal questions",
            "prompt",
            "prompt_answer",
            journey.file("unique.jsonl"),
            journey.file("clean.jsonl"),
        ),
    ):
        say(f"\n{says}", style="bold")
        config = DedupConfig(method=("exact",), key=key)
        rows = Dataset.open([str(source)], layout=layout)
        show_report(run_stage("dedup", rows, config, decide, output=target, catalog=journey.catalog))
    say("\nsplit by (target, sorted numbers)", style="bold")
    report = split(
        Dataset.open([str(journey.file("clean.jsonl"))], layout="countdown"),
        SplitConfig(key="countdown", test=HELD_OUT, seed=journey.seed),
        out=journey.file("splits"),
        catalog=journey.catalog,
    )
    show_split(report.extra)
    catch_the_leak(journey)


def write_problems(path: Path, seed: int) -> dict[str, int]:
    """Write problems with planted copies; each row has the columns of an SFT and of an RLVR record besides.

    The SFT answers show the form and little more: the operation is the right one in two of five, else drawn by chance.
    Choosing it is left for GRPO to learn.
    """
    from lpt_data.generate.countdown import problems
    from lpt_data.write import write_jsonl

    rng = random.Random(seed)
    made = list(problems(PROBLEMS, numbers=2, seed=seed, high=HIGHEST))
    copies = rng.sample(made, 150)
    permuted = [row | {"nums": row["nums"][::-1]} for row in rng.sample(made, 300) if len(set(row["nums"])) == 2]
    rows = [with_records(row, rng) for row in made]
    known = {json.dumps([row["nums"], row["target"]]): row for row in rows}
    rows += [known[json.dumps([row["nums"], row["target"]])] for row in copies]
    rows += [with_records(row, rng) for row in permuted]
    rng.shuffle(rows)
    write_jsonl(path, rows)
    return {"copies": len(copies), "permuted": len(permuted)}


def with_records(row: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The row with a short prompt, a shown answer and a gold answer."""
    large, small = sorted(row["nums"], reverse=True)
    prompt = [{"role": "user", "content": f"{large} {small} = {row['target']}"}]
    right = next(sign for sign in row["solution"] if sign in "+-*/")
    sign = right if rng.random() < RIGHT else rng.choice("+-*/")
    shown = {"role": "assistant", "content": f"<answer>{large}{sign}{small}</answer>"}
    gold = json.dumps({"numbers": row["nums"], "target": row["target"]})
    return row | {"prompt": prompt, "answer": gold, "verifier": "countdown", "messages": [*prompt, shown]}


def catch_the_leak(journey: Journey) -> None:
    """Put one test problem into the train file with its numbers in the other order, and ask for admission."""
    from lpt_train.admitted import load_split

    splits = journey.file("splits")
    test = [json.loads(line) for line in (splits / "test.jsonl").read_text().splitlines()]
    leaked = next(row for row in test if len(set(row["nums"])) == 2)
    leaky = journey.file("train.leaky.jsonl")
    line = json.dumps(leaked | {"nums": leaked["nums"][::-1]})
    leaky.write_text((splits / "train.jsonl").read_text() + line + "\n")
    say(f"\nplanted in a copy of train: test problem {leaked['nums']} → {leaked['target']}, its numbers swapped")
    admission = admit_splits(journey, "leaky", "rlvr", leaky)
    red = [check for check in admission.checks if check.status in ("fail", "error")]
    show_checks(red)
    show_verdict(admission.verdict, [])
    try:
        load_split("leaky:train", catalog=journey.catalog)
    except RefusedError as refusal:
        say(f"and the trainer: {refusal.what}", style="green")


def admit_splits(journey: Journey, name: str, contract: str, train: Path) -> Any:
    """Admit train and the held-out test under a contract, as `lpt admit` does."""
    from lpt_data.admit import admit

    with verifiers() as lent:
        return admit(
            name,
            contract,
            {"train": [str(train)], "test": [str(journey.file("splits") / "test.jsonl")]},
            catalog=journey.catalog,
            key="countdown",
            layout={"rlvr": "prompt_answer", "sft": "messages"}[contract],
            verifiers=lent,
        )


def admit_both(journey: Journey) -> None:
    """(c) Without the leak the same splits are admitted, for SFT and for RLVR."""
    chapter("c. Admit the rest")
    for name, contract in (("format", "sft"), ("sums", "rlvr")):
        admission = admit_splits(journey, name, contract, journey.file("splits") / "train.jsonl")
        show_admission(admission.to_json())
        passed = sum(check.status == "pass" for check in admission.checks)
        say(f"{name}@{admission.version}, {contract}: {passed} checks passed; manifest {admission.manifest_id[:16]}…")
        show_verdict(admission.verdict, admission.checks)


def train_and_measure(journey: Journey) -> bool:
    """(d) SFT, then GRPO, within a fixed budget; accuracy on held-out keys with paired intervals. True when both
    gained."""
    import torch

    from lpt_train import grpo, sft
    from lpt_train.admitted import load_split
    from lpt_train.config import SFTConfig, from_mapping
    from lpt_train.config_grpo import GRPOConfig
    from lpt_train.tiny import make_tiny

    chapter(f"d. Train a small model made on the spot; measure on {HELD_OUT} held-out keys, fixed beforehand")
    torch.set_num_threads(1)  # two threads on two cores that do other work as well wait for each other
    say(f"SFT shows the form and the right operation in {RIGHT:.0%} of its answers; GRPO has to find out the rest")
    folders = {name: journey.file("runs") / name for name in ("start", "sft", "grpo")}
    make_tiny(folders["start"], seed=journey.seed, **MODEL)
    scores = {"start": measure(journey, folders["start"])}
    gained = True
    for name, loop, kind, options, split in (
        ("sft", sft, SFTConfig, SFT, "format:train"),
        ("grpo", grpo, GRPOConfig, GRPO, "sums:train"),
    ):
        before = list(folders)[list(folders).index(name) - 1]
        config = from_mapping(kind, options | {"model": str(folders[before]), "seed": journey.seed})
        line = StepLine()
        admitted = load_split(split, catalog=journey.catalog)
        result = loop.train(config, split=admitted, out=folders[name], catalog=journey.catalog, progress=line)
        line.close()
        if code := exit_code(result.body):
            raise typer.Exit(code)
        scores[name] = measure(journey, folders[name])
        gained &= show_gain(name, scores[before], scores[name])
    return gained


def measure(journey: Journey, model: Path) -> dict[str, Any]:
    """Evaluations of a model on the held-out keys: at temperature 1, which is what GRPO optimises, and greedy."""
    from lpt_train.admitted import load_split
    from lpt_train.evaluate import evaluate

    split = load_split("sums:test", catalog=journey.catalog)
    common: dict[str, Any] = {"seed": journey.seed, "max_completion_length": 24, "batch_size": 1000}
    return {
        "sampled": evaluate(str(model), split, temperature=1.0, k=2, catalog=journey.catalog, **common),
        "greedy": evaluate(str(model), split, catalog=journey.catalog, **common),
    }


def show_gain(name: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """The paired differences that a run made; False, said in red, when the one at temperature 1 may be chance.

    Greedy accuracy is shown and decides nothing: it is not what is trained, and one greedy answer a problem says less.
    """
    from lpt_train.compare import paired_difference

    say(f"\naccuracy before and after {name}, paired by problem:")
    found = {way: paired_difference(before[way], after[way]) for way in ("sampled", "greedy")}
    for way, says in (("sampled", "temperature 1, two samples a problem"), ("greedy", "greedy")):
        say(f"  {says}:", style="dim")
        show_paired(found[way])
    sampled = found["sampled"]
    gained = sampled.significant and sampled.difference > 0
    if not gained:
        say(f"{name} shows no gain at temperature 1: {sampled.difference:+.3f} may be chance", style="bold red")
    return gained


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
    """(e) Three questions in SQL."""
    from manifests.sql import query

    chapter("e. Ask the catalog in SQL")
    for question, sql in QUESTIONS:
        say(f'{question}:  lpt sql --catalog {journey.catalog.directory} "{sql}"', style="dim")
        result = query(journey.catalog, sql)
        show(result.columns, result.rows, "table")


def write_pages(journey: Journey) -> None:
    """(f) The refused set, the admitted one and the first deduplication as pages, and where everything lies."""
    from lpt_data.report.find import story_of
    from lpt_data.report.write import default_name, write

    chapter("f. Read it as pages: one file each, nothing loaded, to open or to send")
    folder = journey.file("reports")
    folder.mkdir(exist_ok=True)
    first = min(journey.catalog.find("lpt.stage/1"), key=lambda found: str(found[1]["created"]))[1]["stage_id"]
    for ref in ("leaky", "sums", first):
        story = story_of(journey.catalog, ref)
        path = folder / default_name(story, "html")
        size = write(path, story, "html")
        say(f"lpt report --catalog {journey.catalog.directory} {ref}:  {path}, {size:,} bytes")
    for path in sorted(journey.folder.iterdir()):
        data(str(path))
