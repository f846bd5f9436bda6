"""``lpt train``: one command an algorithm, each on an admitted split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.options import CatalogDir, Json, examples, settings
from cli.output import as_json, say, table, tell_head
from manifests.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(help="Train on an admitted split.", no_args_is_help=True, rich_markup_mode=None)

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


@app.command("sft", epilog=SFT_EXAMPLES)
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

    made = from_mapping(SFTConfig, settings(set_, config) | {"model": model})
    from lpt_train.sft import train

    _run(_by(engine, train), made, "sft", admitted, unadmitted, eval_split, out, resume, catalog, json)


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
        made = from_mapping(PreferenceConfig, settings(set_, config) | {"model": model, "loss_type": loss})
        from lpt_train.preference import train

        _run(_by(engine, train), made, "preference", admitted, unadmitted, eval_split, out, resume, catalog, json)

    command.__annotations__["loss"] = Annotated[str, typer.Option("--loss", help=loss_help)]
    command.__doc__ = f"{summary} `lpt train settings {algorithm}` lists what --set takes."
    app.command(algorithm, epilog=command_examples)(command)


_preference("dpo", "Direct preference optimisation on admitted pairs; --loss ipo, hinge and robust are its variants.")
_preference("simpo", "SimPO on admitted pairs: log-probs per token, a margin, no reference model.")
_preference("cpo", "CPO on admitted pairs: no reference model, a supervised loss on the chosen side.")
_preference("orpo", "ORPO on admitted pairs: odds ratios and a supervised loss, no reference model.")


@app.command("kto", epilog=KTO_EXAMPLES)
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

    made = from_mapping(KTOConfig, settings(set_, config) | {"model": model})
    from lpt_train.kto import train

    _run(_by(engine, train), made, "preference", admitted, unadmitted, eval_split, out, resume, catalog, json)


@app.command("reward", epilog=REWARD_EXAMPLES)
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

    made = from_mapping(RewardConfig, settings(set_, config) | {"model": model})
    from lpt_train.reward import train

    _run(train, made, "preference", admitted, unadmitted, eval_split, out, resume, catalog, json)


@app.command("grpo", epilog=GRPO_EXAMPLES)
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

    made = from_mapping(GRPOConfig, settings(set_, config) | {"model": model} | ({"reward": reward} if reward else {}))
    from lpt_train.grpo import train

    _run(train, made, "rlvr", admitted, unadmitted, eval_split, out, resume, catalog, json)


@app.command("settings", epilog=examples("lpt train settings sft", "lpt train settings grpo"))
def show_settings(
    algorithm: Annotated[Literal["sft", "dpo", "simpo", "cpo", "orpo", "kto", "reward", "grpo"], typer.Argument()],
) -> None:
    """Every setting of an algorithm with its default and unit, as --set and --config take it. Names are TRL's."""
    from lpt_train.config import SFTConfig, described
    from lpt_train.config_grpo import GRPOConfig
    from lpt_train.config_kto import KTOConfig
    from lpt_train.config_preference import PreferenceConfig
    from lpt_train.config_reward import RewardConfig

    config = {"sft": SFTConfig, "kto": KTOConfig, "reward": RewardConfig, "grpo": GRPOConfig}.get(
        algorithm, PreferenceConfig
    )
    table(["setting", "default", ""], described(config), to_stdout=True)


def _by(engine: str, train: Callable[..., Any]) -> Callable[..., Any]:
    """What trains: a loop of ours, or TRL over the same split and options."""
    if engine == "lean":
        return train
    from lpt_train.engines import trl

    return trl.train


def _run(
    train: Callable[..., Any],
    config: Any,
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

    opened = Catalog.open(catalog)
    split = load(admitted, unadmitted, contract, opened)
    evaluation = load(eval_split, None, contract, opened) if eval_split else None
    line = StepLine()
    extra = {"eval_split": evaluation} if evaluation is not None else {}
    result = train(config, split=split, out=out, catalog=opened, progress=line, resume=resume, **extra)
    line.close()
    if json:
        as_json(result.to_json())
    else:
        show_run(result.to_json())
    tell_head(opened)
    if code := exit_code(result.body):
        raise typer.Exit(code)


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
    from lpt_train.admitted import CONTRACTS, load_split, load_unadmitted

    if (admitted is None) == (unadmitted is None):
        raise UsageError(
            "a run trains on one split",
            seen="both --admitted and --unadmitted" if admitted else "neither --admitted nor --unadmitted",
            next="--admitted NAME:train",
        )
    if unadmitted is not None:
        say(f"{unadmitted} is not admitted: the run and everything made from it are marked", style="yellow")
        kinds = {kind: None for taken in CONTRACTS.values() if contract in taken for kind in taken}  # as text for sft
        return load_unadmitted(unadmitted, *kinds)
    assert admitted is not None
    return load_split(admitted, catalog=catalog)


# What the live line has room for; metrics.jsonl has everything.
LIVE = (
    "loss",
    "reward",
    "rewards/accuracies",
    "rewards/margins",
    "accuracy",
    "margin",
    "frac_zero_variance",
    "truncated_share",
    "entropy",
    "grad_norm",
    "eval_loss",
    "tokens_per_second",
    "mfu",
    "memory_gib",
    "eta_seconds",
)


class StepLine:
    """The live line of a training run: step, what it measures, speed, time left."""

    def __init__(self) -> None:
        self._live: Any = None

    def begin(self, line: str) -> None:
        """What trains, said once before the first step."""
        say(line)

    def __call__(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """Show one step; on a terminal the line is redrawn, elsewhere it is one line a call."""
        from cli.output import _console, shown

        parts = "  ".join(f"{name} {shown(float(value))}" for name, value in metrics.items() if name in LIVE)
        text = f"step {step:,}/{total:,}  {parts}"
        if not _console().is_terminal:
            say(text)
            return
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=_console(), refresh_per_second=4, transient=False)
            self._live.start()
        self._live.update(text)

    def close(self) -> None:
        """Leave the last line standing."""
        if self._live is not None:
            self._live.stop()
            self._live = None


# How fast a run went has its own line; that a step was left out is no measurement.
PACE = ("tokens_per_second", "step_seconds", "eta_seconds", "memory_gib", "skipped")


def show_run(body: dict[str, Any]) -> None:
    """A run on one screen: what moved, how fast, the proof of an update, where it lies."""
    moved = [(name, *ends) for name, ends in body["metrics"].items() if name not in PACE]
    table(["metric", "first", "last"], moved)
    say(
        f"{body['steps']:,} steps in {body['seconds']:.0f} s, {body['tokens_per_second']:,.0f} tokens/s, "
        f"{body['peak_memory_bytes'] / 2**20:,.0f} MiB"
    )
    if body.get("control"):
        say("a control: this run and everything made from it are marked, and pass no gate", style="yellow")
    elif body.get("tainted"):
        say("this run and everything made from it are marked: its data was not admitted", style="yellow")
    proof = body["proof"]
    if proof:
        say(
            f"update: {proof['verdict']}; {proof['changed_tensors']} of {proof['trainable_tensors']} tensors changed, "
            f"{proof['nonzero_gradients']} of {proof['updates']} gradients were not zero"
        )
    if (measured := body.get("reward_model", {})).get("status") == "measured":
        show_reward_model(measured, body)
    for note in body["notes"]:
        say(note, style="yellow")
    checkpoint = body["checkpoint"] or {}
    say(f"run {body['run_id']} {body['status']}  checkpoint {checkpoint.get('path', 'none')}")


def show_reward_model(measured: dict[str, Any], body: dict[str, Any]) -> None:
    """What a reward model is worth on held-out pairs, in two lines."""
    calibration, length = measured["calibration"], measured["length"]
    say(
        f"{measured['split']}: accuracy {measured['accuracy']:.3f} (95 % {measured['accuracy_low']:.3f} to "
        f"{measured['accuracy_high']:.3f}) on {measured['pairs']:,} pairs, ECE {calibration['ece_equal_width']:.3f}, "
        f"Brier {calibration['brier']:.3f}; length alone is right in {length['longer_is_chosen']:.3f}"
    )
    say("reliability diagram: " + str(Path(body["metrics_path"]).with_name("reward.html")))
