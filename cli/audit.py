"""``lpt data audit``: checks with values, thresholds, and the rows behind each red line."""

from __future__ import annotations

from contextlib import nullcontext
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.attempts import (
    Attempts,
    MaxTokens,
    Model,
    SampleRows,
    SampleSeconds,
    SampleSeed,
    ScoresFile,
    Temperature,
    sampler_of,
    scores_of,
    write_scores,
)
from cli.next_commands import admission
from cli.options import (
    Against,
    Benchmarks,
    Contract,
    Inputs,
    Json,
    Key,
    Languages,
    Layout,
    MaxLength,
    Policy,
    Previous,
    Scored,
    Seeds,
    TextColumn,
    Tokenizer,
    benchmark_paths,
    examples,
    names_of,
)
from cli.output import STATUS_STYLE, VERDICT_STYLE, Progress_, as_json, one_line, say, shown, styled, table, tell_next
from manifests.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from lpt_data.audit import AuditReport
    from manifests.policy import Check

EXAMPLES = examples(
    "lpt data audit chats.jsonl --contract sft",
    "lpt data audit chats.jsonl --contract sft --tokenizer ./model --max-length 2048",
    "lpt data audit train=train.jsonl test=test.jsonl --contract rlvr --benchmark gsm8k=test.jsonl",
    "lpt data audit made.jsonl --contract synthetic --seeds seeds.jsonl --benchmark humaneval=HumanEval.jsonl.gz",
    "lpt data audit chats.jsonl --contract sft --languages en,de --rows sft.language.other_share",
    "lpt data audit prompts.jsonl --contract rlvr --scored rollouts.jsonl",
    "lpt data audit prompts.jsonl --contract rlvr --model ./model --attempts 8 --sample-rows 200 --scores rates.json",
)


def audit(
    inputs: Inputs,
    contract: Contract,
    tokenizer: Tokenizer = None,
    max_length: MaxLength = None,
    against: Against = None,
    benchmark: Benchmarks = None,
    seeds: Seeds = None,
    previous: Previous = None,
    key: Key = None,
    policy: Policy = None,
    languages: Languages = None,
    scored: Scored = None,
    model: Model = None,
    attempts: Attempts = None,
    temperature: Temperature = None,
    sample_rows: SampleRows = None,
    sample_seconds: SampleSeconds = None,
    sample_seed: SampleSeed = None,
    max_tokens: MaxTokens = None,
    scores: ScoresFile = None,
    rows: Annotated[
        str | None, typer.Option(help="Print the rows behind this check, and nothing else.", show_default=False)
    ] = None,
    layout: Layout = None,
    text_column: TextColumn = "text",
    json: Json = False,
) -> None:
    """Check data against a contract. The verdict is the exit code: 0 accept, 3 tune, 4 reject, 5 a check could not run.

    An input may be SPLIT=PATH, so that leakage between splits is checked too.
    """
    from lpt_data.audit import audit as run_audit
    from lpt_data.audit import contract_of
    from lpt_data.dataset import Dataset
    from lpt_data.quick_start import leave_out_unused

    splits, kind = split_inputs(inputs), contract_of(contract).kind
    datasets = {
        name: Dataset.open(paths, kind=kind, layout=layout, text_column=text_column) for name, paths in splits.items()
    }
    sampler = sampler_of(
        model, scored=scored, scores=scores, attempts=attempts, temperature=temperature, rows=sample_rows,
        seconds=sample_seconds, seed=sample_seed, max_tokens=max_tokens,
        read=_read(datasets, benchmark, against, seeds, previous),
    )  # fmt: skip
    leave_out_unused(kernels=any(dataset.has_many_records for dataset in datasets.values()))
    with verifiers() if contract_of(contract).judge else nullcontext() as lent:
        report = run_audit(
            datasets, contract, encode=encoder(tokenizer, max_length), max_length=max_length, verifiers=lent,
            languages=names_of(languages), pass_rates=scored or None, sampler=sampler, against=against,
            benchmarks=benchmark_paths(benchmark, None), seeds=seeds, previous=previous, key=key, policy=policy,
            progress=(progress := Progress_()),
        )  # fmt: skip
    progress.close()
    if scores is not None and (sampled := report.survey.lent.sampled) is not None:
        write_scores(scores, sampled.told, scores_of(sampled))
        scored = [str(scores)]  # what an admission reads
    show(report, rows, json=json)
    if not json and rows is None and report.verdict != "reject" and report.exit_code != 5:
        typed = {
            "contract": contract, "tokenizer": tokenizer, "max_length": max_length, "against": against,
            "benchmark": benchmark, "seeds": seeds, "previous": previous, "key": key, "policy": policy,
            "languages": languages, "scored": scored, "layout": layout, "text_column": text_column,
        }  # fmt: skip
        tell_admission(splits, typed)
    raise typer.Exit(report.exit_code)


def tell_admission(splits: Mapping[str, Sequence[str]], typed: Mapping[str, Any]) -> None:
    """The command that admits what was audited, or why none can be pasted."""
    line, why_none = admission(splits, typed)
    if line:
        tell_next(line)
    else:
        say(why_none, style="yellow")


def _read(datasets: Mapping[str, Any], benchmark: list[str] | None, *others: list[str] | None) -> list[str]:
    """The files that an audit reads."""
    found = [file.path for dataset in datasets.values() for file in dataset.files]
    found += [path for paths in benchmark_paths(benchmark, None).values() for path in paths]
    return found + [path for paths in others for path in paths or ()]


def show(report: AuditReport, rows: str | None, *, json: bool) -> None:
    """The checks and the verdict, or the rows behind one check."""
    if rows is not None:
        show_rows(report.rows(rows), as_object=json)
    elif json:
        as_json(report.to_json())
    else:
        show_checks(report.checks)
        show_verdict(report.verdict, report.checks)


def split_inputs(inputs: Sequence[str]) -> dict[str, list[str]]:
    """``["train=a.jsonl", "b.jsonl"]`` as ``{"train": ["a.jsonl"], "data": ["b.jsonl"]}``."""
    splits: dict[str, list[str]] = {}
    for given in inputs:
        name, equals, path = given.partition("=")
        if equals and name.isidentifier() and path:
            splits.setdefault(name, []).append(path)
        else:
            splits.setdefault("data", []).append(given)
    return splits


def encoder(tokenizer: str | None, max_length: int | None = None) -> Any:
    """The renderer that counts tokens for the checks; None when no tokenizer was given, which a length needs."""
    if tokenizer is None:
        if max_length is not None:
            raise UsageError(
                "a length is in tokens, and nothing counts them", seen=f"--max-length {max_length} without --tokenizer",
                next="--tokenizer MODEL, the one that is trained; or leave out --max-length",
            )  # fmt: skip
        return None
    from lpt_train.models import load_tokenizer
    from lpt_train.render import Renderer
    from lpt_train.tiny import byte_tokenizer

    if tokenizer != "tiny":
        return Renderer(load_tokenizer(tokenizer))
    made = byte_tokenizer()
    made.name_or_path = tokenizer  # what a printed command has to name again
    return Renderer(made)


def verifiers() -> AbstractContextManager[Mapping[str, Any]]:
    """The verifiers that will score, by name, so that the gold answers are parsed by the same code; each call of one is
    limited in time and memory."""
    from lpt_train.rewards.guard import guarded

    return guarded()


def show_checks(checks: Sequence[Check]) -> None:
    """Every check that ran with its value, its limit and how many items it looked at, and under its name what was seen;
    the red ones carry a command."""
    from manifests.policy_reasons import reason_of

    table(
        ["status", "check", "value", "allowed", "n"],
        [
            (
                styled(check.status, STATUS_STYLE[check.status]),
                f"{check.id}\n  {one_line(check.detail)}" if check.detail else check.id,
                shown(check.value),
                f"{check.op} {shown(check.threshold)}" if check.op else "",
                check.n,
            )
            for check in checks
            if check.status != "skipped" or check.required
        ],
    )
    for check in checks:
        if check.status in ("warn", "fail", "error") or (check.status == "skipped" and check.required):
            say(f"{check.id}: {check.next or check.detail}", style=STATUS_STYLE[check.status])
            if why := reason_of(check.id):
                say(f"  why it is checked: {why}", style="dim")


def show_verdict(verdict: str, checks: Sequence[Check]) -> None:
    """The verdict, and what was not checked, by the reason why not."""
    unchecked: dict[str, list[str]] = {}
    for check in checks:
        if check.status == "skipped":
            unchecked.setdefault(one_line(check.detail) or "no reason was told", []).append(check.id)
    for reason, names in unchecked.items():
        say(f"not checked, {reason}: {', '.join(names)}", style="dim")
    say(f"verdict: {verdict}", style=VERDICT_STYLE[verdict])


def show_rows(rows: Sequence[dict[str, Any]], *, as_object: bool) -> None:
    """The rows behind one check."""
    if as_object:
        as_json({"rows": list(rows)})
        return
    if not rows:
        say("no row is behind this check", style="yellow")
        return
    columns = list(rows[0])
    # Numbers as they are: a line copied from here has to fit `lpt why FILE:LINE`.
    cells = ((row.get(column) for column in columns) for row in rows)
    table(columns, [[str(v if isinstance(v, int) else shown(v))[:200] for v in row] for row in cells], to_stdout=True)
    path, line = str(rows[0].get("file", "")), rows[0].get("line")
    if path.endswith(".jsonl") and isinstance(line, int):
        say(f"the first of them: sed -n {line}p {quote(path)}", style="dim")
