"""The ``lpt`` command: the groups, and the one place where an error becomes text and an exit code."""

from __future__ import annotations

import gc
import io
import os
import sys

import typer

from cli import (
    admit,
    audit,
    benchmarks,
    boilerplate,
    catalog,
    clean,
    data,
    decontaminate,
    demo,
    drop,
    evaluate,
    export,
    generate,
    manifest,
    matrix,
    mix,
    pack,
    pairs,
    plan,
    recipe,
    report,
    reward,
    sql,
    synth,
    tokens,
    train,
)
from cli.groups import Group
from cli.output import ReaderGoneError, ToldExit, error, say
from cli.processes import first_to_tell
from manifests.errors import LptError, UsageError

HELP = """Curate, audit and admit data for LLM post-training, and train on what was admitted.

Exit codes: 0 done or accept, 2 usage, 3 tune, 4 refused or reject, 5 bad input or a required check that could not run,
75 catalog busy, 1 unexpected. Data goes to stdout, talk to stderr; --json prints one object.
"""

# The data side installs without these; a command that needs one says which extra brings it.
EXTRA_OF = {name: "train" for name in ("torch", "transformers", "tokenizers", "peft", "safetensors", "jinja2")}
EXTRA_OF |= {"trl": "trl", "datasets": "trl"}

app = typer.Typer(
    cls=Group,
    name="lpt",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=HELP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(data.app, name="data")
data.app.add_typer(generate.app, name="generate")
data.app.add_typer(tokens.app, name="tokens")
data.app.add_typer(benchmarks.app, name="benchmarks")
app.add_typer(manifest.app, name="manifest")
app.add_typer(catalog.app, name="catalog")
app.add_typer(train.app, name="train")
train.app.command("matrix", epilog=matrix.EXAMPLES)(matrix.matrix)
app.add_typer(plan.app, name="plan")
app.add_typer(reward.app, name="reward")
app.command("admit", epilog=admit.EXAMPLES)(admit.admit)
app.command("why", epilog=manifest.WHY_EXAMPLES)(manifest.why)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.command("sql", epilog=sql.EXAMPLES)(sql.sql)
app.command("eval", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("export", epilog=export.EXAMPLES)(export.export)
app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
data.app.command("decontaminate", epilog=decontaminate.EXAMPLES)(decontaminate.decontaminate)
data.app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
data.app.command("drop", epilog=drop.EXAMPLES)(drop.drop)
data.app.command("pairs", epilog=pairs.EXAMPLES)(pairs.pairs)
data.app.command("synth", epilog=synth.EXAMPLES)(synth.synth)
data.app.command("clean", epilog=clean.EXAMPLES)(clean.clean)
data.app.command("boilerplate", epilog=boilerplate.EXAMPLES)(boilerplate.boilerplate)
data.app.command("mix", epilog=mix.EXAMPLES)(mix.mix)
data.app.command("pack", epilog=pack.EXAMPLES)(pack.pack)
data.app.command("run", epilog=recipe.EXAMPLES)(recipe.run)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Curate, audit and admit data for LLM post-training, and train on what was admitted."""
    if version:
        from importlib.metadata import version as installed

        from cli.output import data as out

        out(installed("lpt"))
        raise typer.Exit


def run() -> None:
    """Entry point of the console script. Usage errors are Typer's own (exit 2)."""
    # What imports make lives to the end, and rows leave few cycles: looking for them takes a tenth of a start.
    gc.set_threshold(100_000, 50, 100)
    # Spinning OpenMP threads starve each other on a machine that does other work too; read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # data is UTF-8, whatever the locale says
    try:
        app()
    except ModuleNotFoundError as missing:
        extra = EXTRA_OF.get((missing.name or "").partition(".")[0])
        if extra is None:
            raise
        problem = UsageError(
            "this command needs packages that are not installed", seen=missing.name, next=f"pip install 'lpt[{extra}]'"
        )
        error(problem, json_too="--json" in sys.argv)
        sys.exit(problem.exit_code)
    except LptError as problem:
        if first_to_tell(problem):
            error(problem, json_too="--json" in sys.argv)
        sys.exit(problem.exit_code)
    except ReaderGoneError:
        sys.exit(0)
    except SystemExit as end:
        if end.code == 130 and not isinstance(end, ToldExit):  # Typer's answer to Ctrl-C
            say("interrupted; nothing under a final name is half-written", style="yellow")
        raise
    finally:
        gc.freeze()  # the interpreter would look for cycles among all that was imported, for a third of a short command


if __name__ == "__main__":  # torchrun -m cli.main
    run()
