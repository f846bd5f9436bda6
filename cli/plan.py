"""``lpt plan``: memory and compute of a training run before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.groups import Group
from cli.options import CatalogDir, ConfigFile, Json, Set, catalog_of, examples, settings
from cli.output import as_json, say, table, waiting
from lpt_data.report.words import duration
from manifests.errors import UsageError

if TYPE_CHECKING:
    from lpt_train.plan.split_tokens import SplitTokens

app = typer.Typer(
    cls=Group,
    help="Memory and compute of a run, from the model's config.json alone.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Model = Annotated[
    str,
    typer.Option("--model", help="Folder of config.json, a run, a hub name, or `tiny`.", show_default=False),
]
Algorithm = Annotated[
    Literal["sft", "dpo", "simpo", "cpo", "orpo", "kto", "reward", "grpo", "ppo"],
    typer.Option("--algorithm", help="Whose settings and batches; ppo takes those of grpo."),
]
Gpu = Annotated[str, typer.Option("--gpu", help="Its name; `lpt plan gpus` lists them.")]
Admitted = Annotated[
    str | None,
    typer.Option(
        "--admitted",
        metavar="NAME[@V]:SPLIT",
        help="In place of --tokens: those of an admitted split, as its admission counted them; else they are counted "
        "with the model's tokenizer.",
        show_default=False,
    ),
]
Context = Annotated[
    int | None,
    typer.Option("--context", min=1, help="Tokens of a row. Default: 1024; those of --admitted.", show_default=False),
]

Mfu = Annotated[
    float | None,
    typer.Option(
        "--mfu",
        help="Share of the peak reached outside of decoding, without what is computed again. Default: what a model of "
        "this size was measured with.",
        show_default=False,
    ),
]
_THOUSANDS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def count_of(text: str) -> float:
    """``2e9``, ``10M`` or ``1.5B`` as a number; raises `UsageError` for what is none."""
    times = _THOUSANDS.get(text[-1:].upper(), 1)
    try:
        return float(text if times == 1 else text[:-1]) * times
    except ValueError as problem:
        raise UsageError("no number of tokens", seen=text, next="--tokens 2e9, or 10M, 2B") from problem


MEMORY_EXAMPLES = examples(
    "lpt plan memory --model ./model --gpu a100 --set per_device_train_batch_size=16 --set max_length=2048",
    "lpt plan memory --model ./model --algorithm dpo --memory-gb 24 --set gradient_checkpointing=true",
    "lpt plan memory --model ./model --algorithm ppo --gpu h200 --json",
)
ROLLOUT_EXAMPLES = examples(
    "lpt plan rollouts --model ./model --prompts 32 --group 8 --tokens 400 --step-ms 1.5",
    "lpt plan rollouts --model ./model --tool-calls 3 --tool-seconds 0.5 --tool-workers 16 --price 3",
)
COMPUTE_EXAMPLES = examples(
    "lpt plan compute --model ./model --tokens 2e9 --gpu h200 --gpus 8 --price 3.5",
    "lpt plan compute --model ./model --tokens 50e6 --gpu a100 --lora 16 --mfu 0.25",
    "lpt plan compute --model ./model --admitted chats:train --epochs 3 --gpu a100 --lora 16",
)


@app.command("memory", epilog=MEMORY_EXAMPLES)
def memory(
    model: Model,
    algorithm: Algorithm = "sft",
    gpu: Gpu = "h200",
    memory_gb: Annotated[
        float | None,
        typer.Option("--memory-gb", help="10^9 bytes to fit into, in place of the GPU's.", show_default=False),
    ] = None,
    length: Annotated[
        int, typer.Option("--length", min=0, help="Tokens of each row; 0: as long as the settings allow.")
    ] = 0,
    lora: Annotated[
        int | None, typer.Option("--lora", min=1, help="Rank of the adapter: --set lora_r.", show_default=False)
    ] = None,
    config: ConfigFile = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """What a step takes by part, trained whole, with LoRA and with QLoRA; what fits; the largest batch."""
    from lpt_train.config import from_mapping
    from lpt_train.plan.gpus import gpu as known
    from lpt_train.plan.report import memory_report
    from lpt_train.plan.shape import read_shape
    from lpt_train.plan.workloads import config_type

    asked = settings(set_, config) | {"model": model} | ({} if lora is None else {"lora_r": lora})
    made = from_mapping(config_type(algorithm), asked)
    if memory_gb is not None and not memory_gb > 0:
        raise UsageError("no memory to fit into", seen=f"--memory-gb {memory_gb}", next="give the GB of the GPU")
    budget = int(memory_gb * 1e9) if memory_gb is not None else known(gpu).usable_bytes
    if made.run.max_memory_gb:
        budget = min(budget, int(made.run.max_memory_gb * 1e9))
    report = memory_report(read_shape(model), algorithm, made, budget=budget, length=length)
    if json:
        as_json({"model": model, "gpu": gpu if memory_gb is None else None, **report})
    else:
        show_memory(model, report)


@app.command("compute", epilog=COMPUTE_EXAMPLES)
def compute(
    model: Model,
    tokens: Annotated[
        float | None,
        typer.Option(
            "--tokens", metavar="N", parser=count_of, help="Training tokens, such as 2e9, 10M, 2B.", show_default=False
        ),
    ] = None,
    admitted: Admitted = None,
    epochs: Annotated[float, typer.Option("--epochs", min=0, help="Passes over the tokens.")] = 1,
    gpu: Gpu = "h200",
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="How many.")] = 1,
    mfu: Mfu = None,
    price: Annotated[float | None, typer.Option("--price", help="Money for one GPU hour.", show_default=False)] = None,
    context: Context = None,
    lora: Annotated[
        int,
        typer.Option("--lora", min=0, help="Rank of an adapter on all linear layers: 4 N D in place of 6; 0: none."),
    ] = 0,
    forward_passes: Annotated[
        int,
        typer.Option("--forward-passes", min=0, help="Of other models over the same tokens: dpo has 1 (a reference)."),
    ] = 0,
    checkpoint_every: Annotated[
        int, typer.Option("--checkpoint-every", min=0, help="Every k-th layer is computed again; 0: none.")
    ] = 0,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """FLOPs, GPU hours and cost of training on so many tokens, beside the tokens that the model's size asks for."""
    from lpt_train.plan.compute import plan_compute
    from lpt_train.plan.gpus import gpu as known
    from lpt_train.plan.shape import read_shape

    if (tokens is None) == (admitted is None):
        raise UsageError(
            "a plan is for so many tokens, or for those of a split",
            seen="neither --tokens nor --admitted" if tokens is None else "both --tokens and --admitted",
            next="--tokens 2e9, or --admitted NAME:train --epochs 3",
        )
    share_of_peak(mfu)
    shape, device = read_shape(model), known(gpu)
    counted = _tokens_of(admitted, model, catalog) if admitted is not None else None
    told = None if counted is None else counted.to_json() | ({"context_of": "typed"} if context else {})
    if counted is not None:
        tokens, context = counted.tokens, context or counted.context
    if not 0 < (wanted := (tokens or 0) * epochs) < float("inf"):
        raise UsageError(
            "tokens and epochs are positive numbers", seen=f"{tokens} tokens, --epochs {epochs}", next="--tokens 2e9"
        )
    report = plan_compute(
        shape, wanted, gpu=device, gpus=gpus, mfu=mfu, price=price, context=context or 1024,
        scope="lora" if lora else "full", adapter=sum(shape.adapter_tensors(lora)) if lora else 0,
        checkpoint_every=checkpoint_every, references=forward_passes,
    )  # fmt: skip
    report |= {"epochs": epochs, "admitted": told}
    if json:
        as_json({"model": model, **report})
    else:
        show_compute(report)


@app.command("rollouts", epilog=ROLLOUT_EXAMPLES)
def rollouts(
    model: Model,
    gpu: Gpu = "h200",
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of a generation.")] = 32,
    group: Annotated[int, typer.Option(min=1, help="Completions of each prompt.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 256,
    tokens: Annotated[float, typer.Option(min=1, help="Tokens of a completion, on average.")] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, help="At most.")] = 1024,
    tool_calls: Annotated[float, typer.Option(min=0, help="Of a completion, on average.")] = 0,
    tool_seconds: Annotated[float, typer.Option(min=0, help="Of one call.")] = 0,
    tool_workers: Annotated[int, typer.Option(min=1, help="Calls at the same time.")] = 8,
    reward_seconds: Annotated[float, typer.Option(min=0, help="Of one completion.")] = 0.01,
    reward_workers: Annotated[int, typer.Option(min=1, help="Completions scored at the same time.")] = 2,
    step_ms: Annotated[
        float, typer.Option(min=0, help="Least milliseconds of a decoding step: 10 to 25 eager, 1 to 2 recorded.")
    ] = 25,
    mfu: Mfu = None,
    lora: Annotated[int, typer.Option("--lora", min=0, help="Rank of an adapter; 0: none.")] = 0,
    forward_passes: Annotated[int, typer.Option(min=0, help="Of other models over the completions.")] = 0,
    price: Annotated[float | None, typer.Option(help="Money for one GPU hour.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Seconds of each part of a step of grpo or ppo: decoding, tools, rewards, training; what bounds it, what waits."""
    from lpt_train.plan.gpus import gpu as known
    from lpt_train.plan.rollouts import Rollouts, plan_rollouts
    from lpt_train.plan.shape import read_shape

    if tokens > max_tokens:
        raise UsageError("the mean is above the limit", seen=f"--tokens {tokens} --max-tokens {max_tokens}",
                         next="give --max-tokens of at least --tokens")  # fmt: skip
    share_of_peak(mfu)
    shape = read_shape(model)
    asked = Rollouts(
        prompts, group, prompt_tokens, tokens, max_tokens, tool_calls, tool_seconds, tool_workers, reward_seconds,
        reward_workers, step_ms / 1000,
    )  # fmt: skip
    report = plan_rollouts(
        shape, asked, gpu=known(gpu), mfu=mfu, scope="lora" if lora else "full",
        adapter=sum(shape.adapter_tensors(lora)) if lora else 0, references=forward_passes, price=price,
    )  # fmt: skip
    if json:
        as_json({"model": model, **report})
    else:
        show_rollouts(report)


@app.command("gpus", epilog=examples("lpt plan gpus"))
def gpus(json: Json = False) -> None:
    """The GPUs that plans know: arithmetic, memory, bandwidth, and where the figures are from."""
    from lpt_train.plan.gpus import GPUS

    if json:
        as_json({"gpus": [vars(each) for each in GPUS]})
        return
    rows = [(g.name, g.teraflops, g.memory_gib, g.terabytes_per_second, g.source) for g in GPUS]
    table(["gpu", "dense bf16 TFLOP/s", "memory GiB", "TB/s", "source"], rows, to_stdout=True)


def _tokens_of(ref: str, model: str, catalog: Path | None) -> SplitTokens:
    from cli.audit import encoder
    from lpt_train.admitted import load_split
    from lpt_train.checkpoint_folders import latest
    from lpt_train.plan.split_tokens import split_tokens

    split = load_split(ref, catalog=catalog_of(catalog, ref))
    newest = latest(Path(model) / "checkpoints")  # of a run
    with waiting("counting tokens …"):
        return split_tokens(split, lambda: encoder(str(newest or model)))


def share_of_peak(mfu: float | None) -> None:
    """Raise `UsageError` unless an MFU can be one."""
    if mfu is not None and not 0 < mfu <= 1:
        raise UsageError("an MFU is a share of the peak", seen=f"--mfu {mfu}", next="give one in (0, 1], such as 0.3")


def show_memory(model: str, report: dict[str, Any]) -> None:
    """A column for each way to train, a row for each part."""
    ways = report["ways"]
    parts = list(dict.fromkeys(part for way in ways.values() for part in (*way["static"], *way["moving"])))
    rows = [[part, *(_gb({**way["static"], **way["moving"]}.get(part)) for way in ways.values())] for part in parts]
    rows.append(["at the peak", *(_gb(way["peak_bytes"]) for way in ways.values())])
    rows.append(["with what the allocator reserves", *(_gb(way["reserved_bytes"]) for way in ways.values())])
    rows.append(["on the host", *(_gb(sum(way["host"].values())) for way in ways.values())])
    rows.append(["fits", *("yes" if way["fits"] else "no" for way in ways.values())])
    rows.append(["gives way so that it fits", *(", ".join(way["rungs"]) or "nothing" for way in ways.values())])
    rows.append(["largest batch with nothing given way", *(way["largest_batch"] for way in ways.values())])
    rows.append(["largest batch with all given way", *(way["largest_batch_at_the_last_rung"] for way in ways.values())])
    table(["GB", *ways], rows, to_stdout=True)
    say("casts: copies of float32 weights in the dtype of the forward pass", style="dim")
    say(
        f"{model}: {report['parameters']:,} parameters; {report['algorithm']}, {report['tokens']:,} tokens a "
        f"micro-batch of {report['per_device_train_batch_size']}; {report['budget_bytes'] / 1e9:.1f} GB to fit into"
    )


def show_compute(report: dict[str, Any]) -> None:
    """The plan as lines of what and how much."""
    cost = "–" if report["cost"] is None else f"{report['cost']:,.2f}"
    rows = [
        ("parameters", f"{report['parameters']:,}"),
        ("tokens", f"{report['tokens']:,.0f}"),
        ("FLOPs a token and parameter", report["flops_per_token_and_parameter"]),
        ("FLOPs", f"{report['flops']:.3g}"),
        ("tokens/s", f"{report['tokens_per_second']:,.0f}"),
        ("GPU hours", report["gpu_hours"]),
        (f"time on {report['gpus']} × {report['gpu']}", duration(report["hours"] * 3600)),
        ("cost", cost),
    ]
    if report["scope"] != "lora":  # a rule of pre-training, which says nothing of an adapter
        rows += [
            ("tokens that the size asks for (20 a parameter)", f"{report['chinchilla_tokens']:,.0f}"),
            ("tokens, as a multiple of that", report["over_training"]),
        ]
    table(["", ""], rows, to_stdout=True)
    say(f"at {report['mfu']:.0%} of {report['peak_flops_per_second'] / 1e12:,.0f} TFLOP/s{_assumed(report)}")
    if (counted := report["admitted"]) is not None:
        say(
            f"{counted['ref']}: {counted['tokens']:,} tokens in {counted['rows']:,} rows, counted with "
            f"{counted['tokenizer']}; {report['epochs']:g} epochs; {_context_told(report)}"
        )
        for note in counted["notes"]:
            say(note, style="yellow")
    if report["computed_again"]:
        say(f"{report['computed_again']:.0%} on top is computed again; an MFU that was measured so is lower for it")


def _context_told(report: dict[str, Any]) -> str:
    """The length of row that attention is counted for, and what it is the mean of."""
    rows = f"rows of {report['context']:,} tokens"
    return {
        "typed": f"{rows}, as typed",
        "token": f"{rows}, the mean over tokens, which is what attention costs",
        "row": f"{rows}, the mean over rows: no lengths were kept, and attention costs more where they differ",
    }[report["admitted"]["context_of"]]


def _assumed(report: dict[str, Any]) -> str:
    """Where an MFU that was not given comes from, and what to do about it."""
    from lpt_train.plan.compute import MEASURED_MFU

    if report["mfu_measured"] is None:
        return ""
    low, high = report["mfu_measured"]
    reached = " and ".join(f"{size / 1e9:.1f}B {share:.0%}" for size, share in MEASURED_MFU)
    return (
        f", an assumption: packed SFT on an H200 reached at {reached}, all recorded steps there {low:.0%} to "
        f"{high:.0%}; other sizes and GPUs were not measured. Give --mfu what the metrics of a run of yours say"
    )


def show_rollouts(report: dict[str, Any]) -> None:
    """A row for each part of the step."""
    rows = [
        (name, part["seconds"], f"{part['share']:.0%}", part["bound_by"])
        for name, part in report["parts"].items()
        if part["seconds"]
    ]
    table(["part", "seconds", "share", "bound by"], rows, to_stdout=True)
    cost, cache = report["cost_of_1000_completions"], report["key_value_cache_bytes"] / 1e9
    say(
        f"{report['completions']:,} completions in {report['seconds']:,.1f} s on one {report['gpu']}; it waits for "
        f"workers {report['gpu_waits']:.0%} of the time; {cache:,.2f} GB of keys and values at most"
        + (f"; {cost:,.2f} for 1,000 completions" if cost is not None else "")
    )
    say(f"outside of decoding at {report['mfu']:.0%} of the peak{_assumed(report)}")
    say(
        f"{report['decoded_tokens_per_second']:,.0f} tokens/s decoded; decoding takes "
        f"{report['decoding_without_compaction']:,.1f} s where finished completions keep their places"
    )


def _gb(size: int | None) -> str:
    return "" if not size else f"{size / 1e9:,.2f}" if size >= 5e6 else f"{size / 1e9:.2g}"
