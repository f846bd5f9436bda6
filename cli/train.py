"""``lpt train``: one command an algorithm, each on an admitted split."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from cli.groups import Group
from cli.next_commands import command, held_out
from cli.options import CatalogDir, ConfigFile, Json, Set, Typed, catalog_of, examples, typed_settings
from cli.output import ToldExit, as_json, say, table, tell_head, tell_next, waiting
from cli.processes import one_voice
from cli.run_shown import StepLine, after, show_run
from manifests.errors import BadInputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lpt_train.resume import Recorded

app = typer.Typer(cls=Group, help="Train on an admitted split.", no_args_is_help=True, rich_markup_mode=None)


class SettingsCommand(TyperCommand):
    """A command whose settings are given by --set; one that is typed as an option of its own is told so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As every command does, after a look for ``--learning_rate 1e-4`` and its like."""
        from lpt_train.algorithms import ALGORITHMS, check_owner
        from lpt_train.config import option_names
        from lpt_train.habits import instead

        known = {name for parameter in self.params for name in parameter.opts}
        algorithm = ALGORITHMS[str(self.name)]
        settings_of = option_names(algorithm.config)
        for at, given in enumerate(args):
            option, equals, value = given.partition("=")
            if not given.startswith("--") or option in known:
                continue
            name = option[2:].replace("-", "_")
            typed = value if equals else next(iter(args[at + 1 : at + 2]), "")
            typed = "true" if typed[:2] in ("", "--") else typed
            if name in settings_of:
                raise UsageError(f"{name} is a setting", seen=given, next=f"--set {name}={typed}")
            check_owner(str(self.name), [name])
            if there := instead(name, typed, settings_of, algorithm.contract):
                setting = "--set " if there.partition("=")[0].isidentifier() else ""
                raise UsageError(f"{option} is no option here", seen=given, next=setting + there)
        return super().parse_args(ctx, args)


Admitted = Annotated[
    str | None,
    typer.Option(
        "--admitted", metavar="NAME[@V]:SPLIT", help="Admitted split, or PATH/manifest.json:SPLIT.", show_default=False
    ),
]
Unadmitted = Annotated[
    Path | None,
    typer.Option(
        "--unadmitted",
        help="Train on this canonical file without admission: the run and all made from it are marked for good.",
        show_default=False,
    ),
]
Model = Annotated[str | None, typer.Option("--model", help="A folder, a hub name, or `tiny`.", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the run.", show_default=False)]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on from the last checkpoint in this folder, with the model, the split and the settings of its record; "
        "what is typed beside it must not contradict them. The length may change where lr_scheduler_type is constant, "
        "or warmup_stable_decay before it decays.",
        show_default=False,
    ),
]
Engine = Annotated[
    Literal["lean", "trl"],
    typer.Option(
        "--engine",
        help="lean: the loops of lpt. trl: TRL's trainer over the same rows, masks and options; sft, dpo, kto; what it "
        "has no option for is refused.",
    ),
]
EvalSplit = Annotated[
    str | None,
    typer.Option(
        "--eval",
        metavar="NAME[@V]:SPLIT",
        help="Admitted split to measure on: the loss, of grpo the accuracy, of reward also calibration and bias.",
        show_default=False,
    ),
]


def _add(algorithm: str, summary: str, *lines: str) -> None:
    """Add the command of an algorithm; those that have no option of their own all take the same."""

    def command(
        model: Model = None,
        out: Out = None,
        admitted: Admitted = None,
        unadmitted: Unadmitted = None,
        eval_split: EvalSplit = None,
        config: ConfigFile = None,
        set_: Set = None,
        engine: Engine = "lean",
        resume: Resume = None,
        catalog: CatalogDir = None,
        json: Json = False,
    ) -> None:
        typed = typed_settings(set_, config, model=model)
        _train(algorithm, typed, engine, admitted, unadmitted, eval_split, out, resume, catalog, json)

    command.__doc__ = f"{summary} `lpt train settings {algorithm}` lists what --set takes."
    app.command(algorithm, cls=SettingsCommand, epilog=examples(*lines))(command)


_add(
    "sft", "Supervised fine-tuning: loss on the assistant's tokens alone.",
    "lpt train sft --admitted chats:train --model ./model --out runs/sft --set max_steps=100 --set learning_rate=1e-4",
    "lpt train sft --admitted chats:train --model tiny --out runs/tiny --set max_steps=20",
    "torchrun --nproc-per-node 2 --no-python lpt train sft --admitted chats:train --model ./model --out runs/sft",
    "lpt train sft --resume runs/sft",
    "lpt train sft --admitted chats:train --model ./model --out runs/trl --engine trl",
)  # fmt: skip


@app.command(
    "dpo",
    cls=SettingsCommand,
    epilog=examples(
        "lpt train dpo --admitted pairs:train --eval pairs:validation --model runs/sft --out runs/dpo",
        "lpt train dpo --admitted pairs:train --model ./model --out runs/ipo --loss ipo --set beta=0.3",
    ),
)
def dpo(
    model: Model = None,
    out: Out = None,
    admitted: Admitted = None,
    unadmitted: Unadmitted = None,
    eval_split: EvalSplit = None,
    loss: Annotated[
        Literal["sigmoid", "robust", "hinge", "ipo"] | None,
        typer.Option(help="Default: sigmoid.", show_default=False),
    ] = None,
    config: ConfigFile = None,
    set_: Set = None,
    engine: Engine = "lean",
    resume: Resume = None,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Direct preference optimisation on admitted pairs; --loss names its variants. `lpt train settings dpo` lists what
    --set takes."""
    typed = typed_settings(set_, config, model=model, loss_type=loss)
    _train("dpo", typed, engine, admitted, unadmitted, eval_split, out, resume, catalog, json)


def _pairs(algorithm: str) -> tuple[str, str]:
    start = f"lpt train {algorithm} --admitted pairs:train"
    return (
        f"{start} --eval pairs:validation --model runs/sft --out runs/{algorithm}",
        f"{start} --model ./model --out runs/{algorithm} --set beta=0.3",
    )


_add("simpo", "SimPO on admitted pairs: log-probs per token, a margin, no reference model.", *_pairs("simpo"))
_add("cpo", "CPO on admitted pairs: no reference model, a supervised loss on the chosen side.", *_pairs("cpo"))
_add("orpo", "ORPO on admitted pairs: odds ratios, a supervised loss on the chosen reply alone.", *_pairs("orpo"))
_add(
    "kto", "KTO: completions marked good or bad, or both sides of admitted pairs.",
    "lpt train kto --admitted pairs:train --eval pairs:validation --model runs/sft --out runs/kto",
    "lpt train kto --admitted pairs:train --model ./model --out runs/kto --set undesirable_weight=0.5",
)  # fmt: skip
_add(
    "reward", "Reward model on admitted pairs; --eval measures calibration and bias.",
    "lpt train reward --admitted pairs:train --eval pairs:validation --model runs/sft --out runs/rm",
    "lpt train reward --admitted pairs:train --model ./model --out runs/rm --set ranking=prompts",
    "lpt train reward --admitted pairs:train --eval pairs:test --model ./model --out runs/no --set flip_labels=0.5",
)  # fmt: skip


@app.command(
    "grpo",
    cls=SettingsCommand,
    epilog=examples(
        "lpt train grpo --admitted sums:train --model runs/sft --out runs/grpo --reward countdown",
        "lpt train grpo --admitted gsm8k:train --model ./model --out runs/g --reward integer --set num_generations=8",
        "lpt train grpo --admitted sums:train --model ./model --out runs/g --reward mine:score --config grpo.yaml",
    ),
)
def grpo(
    model: Model = None,
    out: Out = None,
    admitted: Admitted = None,
    unadmitted: Unadmitted = None,
    eval_split: EvalSplit = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="NAME[=weight],… (countdown, integer, math, code, schema) or module:function. Default: each row's own "
            "verifier."
        ),
    ] = None,
    config: ConfigFile = None,
    set_: Set = None,
    resume: Resume = None,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Group-relative policy optimisation on prompts with verifiable answers. `lpt train settings grpo` lists --set."""
    typed = typed_settings(set_, config, model=model, reward=reward)
    _train("grpo", typed, "lean", admitted, unadmitted, eval_split, out, resume, catalog, json)


@app.command("settings", epilog=examples("lpt train settings sft", "lpt train settings grpo"))
def show_settings(
    algorithm: Annotated[Literal["sft", "dpo", "simpo", "cpo", "orpo", "kto", "reward", "grpo"], typer.Argument()],
) -> None:
    """Every setting of an algorithm with its default and unit, as --set and --config take it. Names are TRL's."""
    from lpt_train.algorithms import ALGORITHMS
    from lpt_train.config import described

    table(["setting", "default", ""], described(ALGORITHMS[algorithm].config), to_stdout=True)


def _train(
    algorithm: str,
    typed: Typed,
    engine: str,
    admitted: str | None,
    unadmitted: Path | None,
    eval_split: str | None,
    out: Path | None,
    resume: Path | None,
    catalog: Path | None,
    json: bool,
) -> None:
    from lpt_train.admitted import check_contract, check_trains
    from lpt_train.algorithms import ALGORITHMS, config_of
    from lpt_train.config_unread import check_read
    from lpt_train.run_folder import check_new, nothing_left

    before: Recorded | None = None
    if resume is None:
        if out is None or "model" not in typed.values:
            raise _not_enough(admitted or unadmitted, typed.values.get("model"), out)
        config = config_of(algorithm, typed.values)
        check_new(out)
    else:
        before = _before(algorithm, typed.values, resume, out)
        out, config = resume, before.config
        if admitted is None and unadmitted is None:
            admitted, unadmitted = before.admitted, before.unadmitted
        eval_split = eval_split or before.eval_split
    check_read(config, typed.by_hand, typed.values, evaluated=eval_split is not None)
    contract = ALGORITHMS[algorithm].contract
    with one_voice() as talks:
        opened, line = catalog_of(catalog, admitted, eval_split), StepLine()
        with _named_as_before(resume):
            split = load(admitted, unadmitted, contract, opened)
            evaluation = load(eval_split, None, contract, opened) if eval_split else None
        if before is not None and before.nothing_left(split, evaluation):
            _tell_done(before.body, resume, json)
            return
        check_trains(split, algorithm)
        if evaluation is not None:
            check_contract(evaluation, algorithm)
        notes: list[str] = []
        if resume is None:
            config, notes = _with_length(config, typed.values, split)
        with waiting("loading torch …"):  # which takes seconds: what could be refused without it was
            train = _loop(algorithm, engine)
        assert out is not None
        with nothing_left(out):
            result = train(
                config, split=split, out=out, catalog=opened, progress=line, eval_split=evaluation,
                resume=resume is not None,
            )  # fmt: skip
        line.close()
        result.notes[:0] = notes
        if json:
            as_json(result.to_json())
        else:
            show_run(result.to_json(), line.told)
        tell_head(opened)
        if result.body["status"] == "done" and not json:
            tell_next(*after(result.to_json(), held_out(admitted, eval_split, opened), catalog))
        if (code := exit_code(result.body, catalog)) and talks:  # the end of the others, in order as well, is 0
            raise ToldExit(code)


def _not_enough(split: object, model: object, out: object) -> UsageError:
    needed = {"--admitted NAME:train": split, "--model DIR": model, "--out RUN": out}
    missing = [option for option, value in needed.items() if value is None]
    return UsageError(
        "a run has a split, a model that it starts from, and a folder",
        seen=" ".join(f"no {option.split()[0]}" for option in missing),
        next=f"{' '.join(missing)}; or --resume RUN to go on with one",
    )


def _loop(algorithm: str, engine: str) -> Callable[..., Any]:
    """What trains: a loop of ours, or TRL over the same split and options."""
    from lpt_train.algorithms import ALGORITHMS

    if engine == "lean":
        return ALGORITHMS[algorithm].train
    from lpt_train.engines.trl import train

    return train


def _tell_done(body: Mapping[str, Any], folder: Path | None, json: bool) -> None:
    """What somebody hears who resumes a run that is done: its record as it is."""
    note = f"{folder} is done, as long as it was asked to be: nothing is left to do"
    if json:
        as_json({**body, "notes": [note]})
    else:
        show_run({**body, "notes": [note]})


def _before(algorithm: str, typed: Mapping[str, object], resume: Path, out: Path | None) -> Recorded:
    from lpt_train.resume import as_recorded
    from lpt_train.runs import read_record

    if out is not None and out.resolve() != resume.resolve():
        raise UsageError(
            "a run goes on in its own folder", seen=f"--resume {resume} --out {out}", next="leave out --out"
        )
    return as_recorded(read_record(resume / "run.json"), algorithm, typed)


@contextlib.contextmanager
def _named_as_before(resume: Path | None) -> Iterator[None]:
    """A split that was given by its path has to be given again: its record has its name and its digest."""
    try:
        yield
    except BadInputError as error:
        if resume is None:
            raise
        raise BadInputError(
            f"{error.what}; the run in {resume} was started with it", seen=error.seen,
            next="give it as it was given then: --admitted PATH/manifest.json:SPLIT, --unadmitted FILE, --eval …",
        ) from error  # fmt: skip


def _with_length(config: Any, typed: Mapping[str, object], split: Any) -> tuple[Any, list[str]]:
    """The settings with the length that the split was admitted for, where nobody typed one; and a note of it."""
    length = split.max_length
    if not hasattr(config, "max_length") or "max_length" in typed or length in (None, config.max_length):
        return config, []
    return replace(config, max_length=length), [f"max_length {length}, for which {split.ref} was admitted"]


# What a shell reports for a command that ended by the signal.
STOPPED = {"SIGINT": 130, "SIGTERM": 143}


def exit_code(body: dict[str, Any], catalog: Path | None = None) -> int:
    """0 for a run that is done; one that was stopped says how to go on."""
    if body["status"] == "done":
        return 0
    if body["status"] != "stopped":
        return 1
    trl = (body.get("engine") or {}).get("name") == "trl"  # which writes nothing to resume from
    folder = Path(body["metrics_path"]).parent
    say(f"stopped after step {body['steps']:,}", style="yellow")
    new = ("--engine", "trl", "--model", folder, "--admitted", "NAME:train", "--out", "NEW")
    tell_next(command(f"lpt train {body['algorithm']}", *(new if trl else ("--resume", folder)), catalog=catalog))
    return STOPPED.get(body["stopped_by"], 1)


def load(admitted: str | None, unadmitted: Path | None, contract: str, catalog: Any) -> Any:
    """The split behind `--admitted` or `--unadmitted`; exactly one of them."""
    from lpt_train.admitted import kinds_beside, load_split, load_unadmitted

    if (admitted is None) == (unadmitted is None):
        raise UsageError(
            "a run trains on one split",
            seen="both --admitted and --unadmitted" if admitted else "neither --admitted nor --unadmitted",
            next="--admitted NAME:train",
        )
    if unadmitted is not None:
        say(f"{unadmitted} is not admitted: the run and everything made from it are marked", style="yellow")
        return load_unadmitted(unadmitted, *kinds_beside(contract))
    assert admitted is not None
    return load_split(admitted, catalog=catalog, contract=contract)
