"""A training run on the screen: its live line and what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.next_commands import command
from cli.output import Progress_, say, shown, table, waiting
from lpt_data.report.words import duration

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
    "mfu",
)


def step_text(step: int, total: int, metrics: dict[str, float]) -> str:
    """One step in one line; what matters to somebody who waits comes first, as a narrow screen shows no more."""
    pace = []
    if metrics.get("eta_seconds"):
        pace.append(f"{duration(metrics['eta_seconds'])} left")
    if "tokens_per_second" in metrics:
        pace.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
    if "memory_gib" in metrics:
        pace.append(f"{metrics['memory_gib']:.1f} GiB")
    seen = [f"{name} {shown(float(metrics[name]))}" for name in LIVE if name in metrics]
    return "  ".join([f"step {step:,}/{total:,}", *seen[:1], *pace, *seen[1:]])


class StepLine:
    """The live line of a training run: step, what it measures, speed, time left.

    `watch` shows how far what comes before the first step is, `waiting` says what takes long then.
    """

    waiting = staticmethod(waiting)

    def __init__(self) -> None:
        self._live: Any = None
        self.watch = Progress_()
        self.told: list[str] = []  # the notes that were said before the first step

    def begin(self, line: str, notes: Sequence[str] = ()) -> None:
        """What trains, and what should be known of its rows, said once before the first step."""
        self.watch.close()
        say(line)
        for note in notes:
            say(note, style="yellow")
        self.told = list(notes)

    def __call__(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """Show one step; on a terminal the line is redrawn, elsewhere it is one line a call."""
        from cli.output import _console

        text = step_text(step, total, metrics)
        if not _console().is_terminal:
            say(text)
            return
        from rich.text import Text

        if self._live is None:
            from rich.live import Live

            self._live = Live(console=_console(), refresh_per_second=4, transient=False)
            self._live.start()
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"))  # a second line would be left behind

    def close(self) -> None:
        """Leave the last line standing."""
        self.watch.close()
        if self._live is not None:
            self._live.stop()
            self._live = None


# How fast a run went has its own line; that a step was left out is no measurement.
PACE = ("tokens_per_second", "step_seconds", "eta_seconds", "memory_gib", "skipped")


# Why a run may leave its weights as they were, the usual reason first.
NOTHING_LEARNT = (
    "no weight changed. With rewards: all completions of a prompt had the same one, see frac_zero_variance: begin with "
    "a model that sometimes succeeds (lpt train sft), choose easier prompts (lpt eval --k 8 --temperature 1), or set a "
    "larger num_generations or max_completion_length. Else: is learning_rate 0, or does nothing train?"
)


def show_run(body: dict[str, Any], told: Sequence[str] = ()) -> None:
    """A run on one screen: what moved, how fast, the proof of an update, where it lies, and the notes that were not
    `told` before."""
    moved = [(name, *ends) for name, ends in body["metrics"].items() if name not in PACE]
    table(["metric", "first", "last"], moved)
    steps = f"{body['steps']:,} step" + "s" * (body["steps"] != 1)
    say(
        f"{steps} in {duration(body['seconds'])}, {body['tokens_per_second']:,.0f} tokens/s, "
        f"{body['peak_memory_bytes'] / 2**20:,.0f} MiB"
    )
    if "supervised_share" in (read := body.get("data", {})):
        say(f"{read['tokens']:,} tokens of data, {read['supervised_share']:.0%} of them supervised")
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
        if proof["verdict"] == "no_effective_update":
            say(NOTHING_LEARNT, style="yellow")
    if (measured := body.get("reward_model", {})).get("status") == "measured":
        show_reward_model(measured, body)
    for note in (note for note in body["notes"] if note not in told):
        say(note, style="yellow")
    checkpoint = body["checkpoint"] or {}
    say(f"run {body['run_id']} {body['status']}  checkpoint {checkpoint.get('path', 'none')}")


def after(body: dict[str, Any], held_out: str, catalog: Path | None = None) -> list[str]:
    """What to type after a run: its measurement on a split that did not train it, its weights for others, its page."""
    folder = Path(body["metrics_path"]).parent
    reward, model = body["algorithm"] == "reward", str(body["model"]["name"])
    base = f"{folder}/tiny" if model == "tiny" else model
    merge = ["--merge"] if body["config"]["lora"]["use_peft"] and not reward else []  # its head is always merged
    score = command("lpt reward score FILE", "--model", folder, "--out", "scored.jsonl", catalog=catalog)
    measure = command("lpt eval", "--admitted", held_out, "--model", folder, "--baseline", base, catalog=catalog)
    weights = command("lpt export", folder, "--out", f"{folder}-export", *merge, catalog=catalog)
    return [score if reward else measure, weights, command("lpt report", folder, catalog=catalog)]


def show_reward_model(measured: dict[str, Any], body: dict[str, Any]) -> None:
    """What a reward model is worth on held-out pairs, in two lines."""
    calibration, length = measured["calibration"], measured["length"]
    say(
        f"{measured['split']}: accuracy {measured['accuracy']:.3f} (95 % {measured['accuracy_low']:.3f} to "
        f"{measured['accuracy_high']:.3f}) on {measured['pairs']:,} pairs, ECE {calibration['ece_equal_width']:.3f}, "
        f"Brier {calibration['brier']:.3f}; length alone is right in {length['longer_is_chosen']:.3f}"
    )
    say("reliability diagram: " + str(Path(body["metrics_path"]).with_name("reward.html")))
