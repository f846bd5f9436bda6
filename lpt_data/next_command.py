"""The command behind each red line: what was typed, typed again with one thing changed.

A policy writes `next` with placeholders: {audit} the same audit, {longer} the same command at twice the length, {files}
all files, {train} those of the first split, {drop} the command that takes the rows behind the check out of that split,
{unleak} the one that takes out of it what other splits hold too, {id} the check, {key} the canonical key. A check that
was skipped for want of something gets the command that gives it. What follows a # is a comment to the shell as well, so
that a line can be pasted as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from lpt_data.contracts.common import (
    NO_BENCHMARK,
    NO_LANGUAGE,
    NO_LENGTH,
    NO_PREVIOUS,
    NO_RATES,
    NO_REFERENCE,
    NO_SEEDS,
    NO_TOKENIZER,
    Outcome,
)
from lpt_data.contracts.survey import Survey
from lpt_data.dataset import Dataset
from lpt_data.layouts import detect
from manifests.errors import BadInputError
from manifests.policy import Check

# What to add to the command when a check was skipped for want of something that the user can give.
RUN_WITH = {
    NO_TOKENIZER: "--tokenizer TOKENIZER --max-length N",
    NO_LENGTH: "--max-length N",
    NO_REFERENCE: "--against REF",
    NO_BENCHMARK: "--benchmark NAME=PATH",
    NO_SEEDS: "--seeds FILE",
    NO_PREVIOUS: "--previous FILE",
    NO_LANGUAGE: "--languages en",
    NO_RATES: "--scored SCORED.jsonl",
}
ADMIT_SPLITS = ("train", "validation", "test")  # the options of `lpt admit`; other splits come from Python


@dataclass(frozen=True)
class Typed:
    """What the user asked for: the survey, the name being admitted ("" for an audit), the policy given or ""."""

    survey: Survey
    admitting: str = ""
    policy: str = ""

    def audit(self, more: str = "") -> str:
        """Return the same audit with options added; an option that `more` names is given once."""
        named = [(s.name, str(f.path)) for s in self.survey.splits for f in s.dataset.files]
        one = len(self.survey.splits) == 1
        inputs = [path if one else f"{name}={path}" for name, path in named]
        return self._command(["lpt", "data", "audit", *inputs], more)

    def again(self, more: str = "") -> str:
        """Return the same admission, or the same audit, with options added."""
        names = [s.name for s in self.survey.splits]
        if not self.admitting or not set(names) <= set(ADMIT_SPLITS):
            return self.audit(more)
        words = ["lpt", "admit", self.admitting]
        for part in self.survey.splits:
            for file in part.dataset.files:
                words += [f"--{part.name}", str(file.path)]
        return self._command(words, more)

    def files(self, *, first: bool = False) -> str:
        """Return the files of all splits, or of the first one."""
        splits = self.survey.splits[:1] if first else self.survey.splits
        return shlex.join(str(f.path) for s in splits for f in s.dataset.files)

    def drop(self, check: str) -> str:
        """Return the command that takes the rows behind a check out of the first split.

        Rates of a model are first written to a file, since a drop takes them from one.
        """
        words = ["lpt", "data", "drop", *(str(f.path) for f in self.survey.splits[0].dataset.files)]
        if self.survey.lent.sampled is None or ".pass_rate." not in check:
            return self._command(words, f"--check {check} --out clean.jsonl", judged=False)
        written = self.audit("--scores rates.json")
        return f"{written}; " + self._command(
            words, f"--scored rates.json --check {check} --out clean.jsonl", judged=False
        )

    def unleak(self) -> str:
        """Return the command that takes out of the first split what the other splits hold too."""
        others = [shlex.quote(str(f.path)) for s in self.survey.splits[1:] for f in s.dataset.files]
        words = ["lpt", "data", "drop", *(str(f.path) for f in self.survey.splits[0].dataset.files)]
        more = " ".join(f"--against {path}" for path in others)
        return self._command(words, f"{more} --check against.keys --out clean.jsonl", judged=False)

    def _command(self, words: list[str], more: str, *, judged: bool = True) -> str:
        survey, lent = self.survey, self.survey.lent
        first = survey.splits[0].dataset
        options = {
            "--contract": survey.contract.name,
            "--key": survey.normaliser if survey.normaliser != survey.contract.default_key else None,
            "--tokenizer": (lent.encode.name or "TOKENIZER") if lent.encode else None,
            "--max-length": str(lent.max_length) if lent.max_length else None,
            "--languages": ",".join(lent.languages) or None,
            "--policy": (self.policy or None) if judged else None,
            "--layout": first.layout if not _detected(first) else None,
            "--text-column": first.text_column if first.text_column != "text" else None,
        }
        for option, value in options.items():
            words += [option, value] if value is not None and option not in more else []
        for file in lent.against.sources if lent.against else ():
            words += ["--against", file["path"]]
        for file in lent.seeds.sources if lent.seeds else ():
            words += ["--seeds", file["path"]]
        for earlier in lent.previous:
            words += ["--previous", *(file["path"] for file in earlier.sources)]
        for path in lent.scored:
            words += ["--scored", path]
        words += self._attempts() if judged else []
        for benchmark in lent.benchmarks:
            for file in benchmark.sources:
                words += ["--benchmark", f"{benchmark.name}={file['path']}"]
        return f"{shlex.join(words)} {more}".rstrip()

    def _attempts(self) -> list[str]:
        """Return the options by which a model attempted rows; a drop reads what --scores wrote in their place."""
        if self.survey.lent.sampled is None or self.admitting:
            return []
        told = self.survey.lent.sampled.told
        options = {
            "--model": told["model"], "--attempts": told["attempts"], "--temperature": told["temperature"],
            "--sample-rows": told["sample_rows"], "--sample-seed": told["sample_seed"],
            "--sample-seconds": f"{told['seconds']:g}",
            "--max-tokens": told["max_tokens"],
        }  # fmt: skip
        return [str(word) for option in options.items() for word in option]


def dressed(check: Check, typed: Typed, outcomes: Mapping[str, Outcome]) -> str:
    """Return the next command of a check with its placeholders filled in and the estimated effect behind it."""
    said = check.next
    if check.status == "skipped":
        said = typed.audit(RUN_WITH[check.detail]) if check.detail in RUN_WITH else said if check.required else ""
    longer = (typed.survey.lent.max_length or 0) * 2
    for name, value in {
        "audit": typed.audit(),
        "longer": typed.again(f"--max-length {longer}" if longer else ""),
        "drop": typed.drop(check.id),
        "unleak": typed.unleak(),
        "files": typed.files(),
        "train": typed.files(first=True),
        "id": check.id,
        "key": typed.survey.normaliser,
    }.items():
        said = said.replace("{" + name + "}", value)
    effect = outcomes[check.id].effect if check.id in outcomes else ""
    return f"{said}  # estimated: {effect}" if said and effect else said


def _detected(dataset: Dataset) -> bool:
    """Whether the columns alone lead to the layout that was used."""
    if dataset.text_column != "text":
        return True
    try:
        return detect(dataset.columns, dataset.kind).name == dataset.layout
    except BadInputError:
        return False
