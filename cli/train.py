"""``lpt train``: one command an algorithm, each on an admitted split."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from cli.options import CatalogDir, Json, examples, settings
from cli.output import as_json, say, table, tell_head, waiting
from cli.processes import one_voice
from cli.run_shown import StepLine, show_run
from manifests.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

app = typer.Typer(help="Train on an admitted split.", no_args_is_help=True, rich_markup_mode=None)


class SettingsCommand(TyperCommand):
    """A command whose settings are given by --set; one that is typed as an option of its own is told so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As every command does, after a look for ``--learning_rate 1e-4`` and its like."""
        from lpt_train.algorithms import ALGORITHMS
        from lpt_train.config import option_names

        known = {name for parameter in self.params for name in parameter.opts}
        for at, given in enumerate(args):
            option, equals, value = given.partition("=")
            name = option[2:].replace("-", "_")
            if given.startswith("--") and option not in known and name in option_names(ALGORITHMS[self.name].config):
                typed = value if equals else next(iter(args[at + 1 : at + 2]), "")
                typed = "true" if typed[:2] in ("", "--") else typed
                raise UsageError(f"{name} is a setting", seen=given, next=f"--set {name}={typed}")
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
Model = Annotated[str, typer.Option("--model", help="A folder, a hub name, or `tiny`.", show_default=False)]
Out = Annotated[Path, typer.Option("--out", help="Folder of the run.", show_default=False)]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="YAML file of settings, `name: value` a line.", show_default=False)
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting on top of the file; repeatable.")
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on from the last checkpoint in --out, with the settings it began with; the length may change where "
        "lr_scheduler_type is constant, or warmup_stable_decay before it decays.",
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

SFT_EXAMPLES = examples(
    "lpt train sft --admitted chats:train --model ./model --out runs/sft --set max_steps=100 --set learning_rate=1e-4",
    "lpt train sft --admitted chats:train --model tiny --out runs/tiny --set max_steps=20",
    "torchrun --nproc-per-node 2 --no-python lpt train sft --admitted chats:train --model ./model --out runs/sft",
    "lpt train sft --admitted chats:train --model ./model --out runs/sft --set max_steps=100 --set learning_rate=1e-4 "
    "--resume",
    "lpt train sft --admitted chats:train --model ./model --out runs/trl --engine trl",
)
KTO_EXAMPLES = examples(
    "lpt train kto --admitted pairs:train --eval pairs:validation --model runs/sft --out runs/kto",
    "lpt train kto --admitted pairs:train --model ./model --out runs/kto --set undesirable_weight=0.5",
)
REWARD_EXAMPLES = examples(
    "lpt train reward --admitted pairs:train --eval pairs:validation --model runs/sft --out runs/rm",
    "lpt train reward --admitted pairs:train --model ./model --out runs/rm --set ranking=prompts",
    "lpt train reward --admitted pairs:train --eval pairs:test --model ./model --out runs/no --set flip_labels=0.5",
)
GRPO_EXAMPLES = examples(
    "lpt train grpo --admitted sums:train --model runs/sft --out runs/grpo --reward countdown",
    "lpt train grpo --admitted gsm8k:train --model ./model --out runs/g --reward integer --set num_generations=8",
    "lpt train grpo --admitted sums:train --model ./model --out runs/g --reward mine:score --config grpo.yaml",
)


@app.command("sft", cls=SettingsCommand, epilog=SFT_EXAMPLES)
def sft(
    model: Model,
    out: Out,
    admitted: Admitted = None,
    unadmitted: Unadmitted = None,
    eval_split: EvalSplit = None,
    config: ConfigFile = None,
    set_: Set = None,
    engine: Engine = "lean",
    resume: Resume = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Supervised fine-tuning: loss on the assistant's tokens alone. `lpt train settings sft` lists what --set takes."""
    from lpt_train.config import SFTConfig, from_mapping

    typed = settings(set_, config)
    made = from_mapping(SFTConfig, typed | {"model": model})
    _run(_loop("sft", engine), made, typed, "sft", admitted, unadmitted, eval_split, out, resume, catalog, json)


def _preference(algorithm: str, summary: str) -> None:
    """Add the command of an algorithm on preference pairs; they differ in the losses that they take."""
    from lpt_train.config_preference import ALGORITHMS

    losses = ALGORITHMS[algorithm]
    loss_help = f"One of {', '.join(losses)}." if len(losses) > 1 else f"Only {losses[0]}."
    command_examples = examples(
        f"lpt train {algorithm} --admitted pairs:train --eval pairs:validation --model runs/sft --out runs/{algorithm}",
        f"lpt train {algorithm} --admitted pairs:train --model ./model --out runs/{algorithm} --set beta=0.3",
    )

    def command(
        model: Model,
        out: Out,
        admitted: Admitted = None,
        unadmitted: Unadmitted = None,
        eval_split: EvalSplit = None,
        loss: str = losses[0],
        config: ConfigFile = None,
        set_: Set = None,
        engine: Engine = "lean",
        resume: Resume = False,
        catalog: CatalogDir = None,
        json: Json = False,
    ) -> None:
        from lpt_train.config import from_mapping, one_of
        from lpt_train.config_preference import PreferenceConfig

        one_of("--loss", loss, losses)
        typed = settings(set_, config)
        made = from_mapping(PreferenceConfig, typed | {"model": model, "loss_type": loss})
        train = _loop("preference", engine)
        _run(train, made, typed, "preference", admitted, unadmitted, eval_split, out, resume, catalog, json)

    command.__annotations__["loss"] = Annotated[str, typer.Option("--loss", help=loss_help)]
    command.__doc__ = f"{summary} `lpt train settings {algorithm}` lists what --set takes."
    app.command(algorithm, cls=SettingsCommand, epilog=command_examples)(command)


_preference("dpo", "Direct preference optimisation on admitted pairs; --loss ipo, hinge and robust are its variants.")
_preference("simpo", "SimPO on admitted pairs: log-probs per token, a margin, no reference model.")
_preference("cpo", "CPO on admitted pairs: no reference model, a supervised loss on the chosen side.")
_preference("orpo", "ORPO on admitted pairs: odds ratios and a supervised loss, no reference model.")


@app.command("kto", cls=SettingsCommand, epilog=KTO_EXAMPLES)
def kto(
    model: Model,
    out: Out,
    admitted: Admitted = None,
    unadmitted: Unadmitted = None,
    eval_split: EvalSplit = None,
    config: ConfigFile = None,
    set_: Set = None,
    engine: Engine = "lean",
    resume: Resume = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """KTO: completions marked good or bad, or both sides of admitted pairs. `lpt train settings kto` lists --set."""
    from lpt_train.config import from_mapping
    from lpt_train.config_kto import KTOConfig

    typed = settings(set_, config)
    made = from_mapping(KTOConfig, typed | {"model": model})
    _run(_loop("kto", engine), made, typed, "preference", admitted, unadmitted, eval_split, out, resume, catalog, json)


@app.command("reward", cls=SettingsCommand, epilog=REWARD_EXAMPLES)
def reward_model(
    model: Model,
    out: Out,
    admitted: Admitted = None,
    unadmitted: Unadmitted = None,
    eval_split: EvalSplit = None,
    config: ConfigFile = None,
    set_: Set = None,
    resume: Resume = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Reward model on admitted pairs; --eval measures calibration and bias. `lpt train settings reward` lists --set."""
    from lpt_train.config import from_mapping
    from lpt_train.config_reward import RewardConfig

    typed = settings(set_, config)
    made = from_mapping(RewardConfig, typed | {"model": model})
    _run(_loop("reward"), made, typed, "preference", admitted, unadmitted, eval_split, out, resume, catalog, json)


@app.command("grpo", cls=SettingsCommand, epilog=GRPO_EXAMPLES)
def grpo(
    model: Model,
    out: Out,
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
    resume: Resume = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Group-relative policy optimisation on prompts with verifiable answers. `lpt train settings grpo` lists --set."""
    from lpt_train.config import from_mapping
    from lpt_train.config_grpo import GRPOConfig

    typed = settings(set_, config)
    made = from_mapping(GRPOConfig, typed | {"model": model} | ({"reward": reward} if reward else {}))
    _run(_loop("grpo"), made, typed, "rlvr", admitted, unadmitted, eval_split, out, resume, catalog, json)


@app.command("settings", epilog=examples("lpt train settings sft", "lpt train settings grpo"))
def show_settings(
    algorithm: Annotated[Literal["sft", "dpo", "simpo", "cpo", "orpo", "kto", "reward", "grpo"], typer.Argument()],
) -> None:
    """Every setting of an algorithm with its default and unit, as --set and --config take it. Names are TRL's."""
    from lpt_train.algorithms import ALGORITHMS
    from lpt_train.config import described

    table(["setting", "default", ""], described(ALGORITHMS[algorithm].config), to_stdout=True)


def _loop(name: str, engine: str = "lean") -> Callable[..., Any]:
    """What trains: a loop of ours, or TRL over the same split and options. Torch takes seconds to load
    and is loaded when it is called: what is wrong with the options or the split is said before."""

    def train(*given: Any, **more: Any) -> Any:
        with waiting("loading torch and what trains …"):
            module = import_module("lpt_train.engines.trl" if engine == "trl" else f"lpt_train.{name}")
        return module.train(*given, **more)

    return train


def _run(
    train: Callable[..., Any],
    config: Any,
    typed: Mapping[str, object],
    contract: str,
    admitted: str | None,
    unadmitted: Path | None,
    eval_split: str | None,
    out: Path,
    resume: bool,
    catalog: Path | None,
    json: bool,
) -> None:
    from manifests.catalog import Catalog

    with one_voice() as talks:
        opened = Catalog.open(catalog)
        split = load(admitted, unadmitted, contract, opened)
        evaluation = load(eval_split, None, contract, opened) if eval_split else None
        line = StepLine()
        extra = {"eval_split": evaluation} if evaluation is not None else {}
        config, notes = _with_length(config, typed, split)
        result = train(config, split=split, out=out, catalog=opened, progress=line, resume=resume, **extra)
        line.close()
        result.notes[:0] = notes
        if json:
            as_json(result.to_json())
        else:
            show_run(result.to_json())
        tell_head(opened)
        if (code := exit_code(result.body)) and talks:  # the end of the others, in order as well, is 0
            raise typer.Exit(code)


def _with_length(config: Any, typed: Mapping[str, object], split: Any) -> tuple[Any, list[str]]:
    """The settings with the length that the split was admitted for, where nobody typed one; and a note of it."""
    length = split.max_length
    if not hasattr(config, "max_length") or "max_length" in typed or length in (None, config.max_length):
        return config, []
    return replace(config, max_length=length), [f"max_length {length}, for which {split.ref} was admitted"]


# What a shell reports for a command that ended by the signal.
STOPPED = {"SIGINT": 130, "SIGTERM": 143}


def exit_code(body: dict[str, Any]) -> int:
    """0 for a run that is done; one that was stopped says how to go on."""
    if body["status"] == "done":
        return 0
    if body["status"] != "stopped":
        return 1
    trl = (body.get("engine") or {}).get("name") == "trl"  # which writes nothing to resume from
    how = "start a new run with --model set to this one" if trl else "go on with --resume"
    say(f"stopped after step {body['steps']:,}; {how}", style="yellow")
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
    return load_split(admitted, catalog=catalog)
