"""What a report tells, as plain data: frozen, without markup, the same for the page, the Markdown and the JSON.

Everything is bounded here, by counts that stand beside what is shown; nothing is chosen by chance or by file order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["plain", "differs", "matches", "gap"]
Pieces = tuple[tuple[str, Kind], ...]


@dataclass(frozen=True)
class Flow:
    """The rows of one stage: in and repeated on one side, out, removed and quarantined on the other."""

    title: str
    rows_in: int
    rows_out: int
    removed: Mapping[str, int]  # by reason
    quarantined: int
    repeated: int = 0
    stage_id: str = ""
    sources: tuple[tuple[str, int | None], ...] = ()  # files that come in here, by name, with their rows where known

    @property
    def lost(self) -> int:
        """Rows removed, whatever the reason."""
        return sum(self.removed.values())

    @property
    def balanced(self) -> bool:
        """Whether every row is accounted for."""
        return self.rows_in + self.repeated == self.rows_out + self.lost + self.quarantined


@dataclass(frozen=True)
class Histogram:
    """Counts between edges for one or more series of values; the last edge is included."""

    title: str
    unit: str
    edges: tuple[float, ...]  # n + 1
    series: Mapping[str, tuple[int, ...]]  # n each
    note: str = ""


@dataclass(frozen=True)
class Pair:
    """A row that did not stay as it was beside the row or the item that it was compared with."""

    stage: str
    reason: str
    row: int
    score: float | None
    left: Pieces
    right: Pieces
    left_name: str
    right_name: str
    why: str = ""  # what to type to follow the row
    detail: str = ""


@dataclass(frozen=True)
class Keeper:
    """A kept row that stands for others."""

    row: int
    record_id: str
    absorbed: int
    share: float
    excerpt: str


@dataclass(frozen=True)
class Aside:
    """A row in quarantine."""

    reason: str
    place: str
    detail: str


@dataclass(frozen=True)
class StageStory:
    """One stage: its record, and what its decisions and the rows themselves say."""

    id: str
    body: Mapping[str, Any]  # lpt.stage/1
    flow: Flow
    reasons: tuple[tuple[str, str, int], ...]  # action, reason, rows
    pairs: tuple[Pair, ...]
    pairs_of: int  # removed rows in all
    scores: Histogram | None
    lengths: Histogram | None
    keepers: tuple[Keeper, ...]
    quarantine: tuple[Aside, ...]
    notes: tuple[str, ...] = ()  # what is not shown, and why

    @property
    def title(self) -> str:
        """What the stage is called on a page."""
        return f"{self.body['stage']} {self.body['stage_id']}"


@dataclass(frozen=True)
class FailingRow:
    """One row behind a check."""

    place: str  # FILE:LINE where it is known, else split and row
    record_id: str
    detail: str
    excerpt: str


@dataclass(frozen=True)
class JudgedCheck:
    """A check of a manifest with the rows behind it."""

    check: Mapping[str, Any]  # manifests.policy.Check
    rows: tuple[FailingRow, ...] = ()
    rows_of: int = 0


@dataclass(frozen=True)
class ColumnStory:
    """A column of an admitted file; `members` are the plain members of the objects that it holds lists of."""

    name: str
    type: str  # of Arrow, in words
    members: tuple[tuple[str, str], ...] = ()  # name and type


@dataclass(frozen=True)
class SplitStory:
    """One admitted split: its entry in the manifest, and what its files are now."""

    name: str
    entry: Mapping[str, Any]
    intact: bool | None  # None: the files are not here
    columns: tuple[ColumnStory, ...] = ()


@dataclass(frozen=True)
class ManifestStory:
    """One admission, the stages behind it, and the rows that a reader should look at first."""

    id: str
    body: Mapping[str, Any]  # lpt.admission/1
    flows: tuple[Flow, ...]
    checks: tuple[JudgedCheck, ...]  # the worst first
    splits: tuple[SplitStory, ...]
    lengths: Histogram | None
    stages: tuple[tuple[str, Mapping[str, Any] | None], ...]  # object id and record, None where it is not here
    pairs: tuple[Pair, ...]
    pairs_of: int
    files: tuple[Path, ...]  # of the folder, the manifest included
    earlier: tuple[tuple[str, str, str], ...] = ()  # NAME@V, verdict, created of the versions before
    notes: tuple[str, ...] = field(default=())

    @property
    def ref(self) -> str:
        """NAME@VERSION."""
        return f"{self.body['name']}@{self.body['version']}"

    def of_stage(self, name: str) -> list[Mapping[str, Any]]:
        """Return the records of the stages of one name behind this admission."""
        return [body for _, body in self.stages if body is not None and body.get("stage") == name]

    def contaminations(self) -> list[Mapping[str, Any]]:
        """Return what the stages behind this admission found of benchmarks."""
        found = [contamination_of(body) for _, body in self.stages if body is not None]
        return [told for told in found if told is not None]


@dataclass(frozen=True)
class Curve:
    """A metric over the steps of a run, and what was measured of it on other rows; thinned to what can be seen."""

    name: str
    lines: Mapping[str, tuple[tuple[float, float], ...]]  # by name: (step, value), steps rising
    steps: int  # that were logged


@dataclass(frozen=True)
class Evaluated:
    """What `lpt eval` found of weights that a run made; its numbers depend on `how`."""

    id: str
    split: str
    weights: str  # which of the run's
    digest: str  # of the model
    how: str
    created: str
    measures: tuple[Mapping[str, Any], ...]  # {name, value, low, high, n, domain}; domain "": of all items


@dataclass(frozen=True)
class Compared:
    """Two models on the same items, at least one of which a run made."""

    id: str
    split: str
    before: str
    after: str
    paired: tuple[Mapping[str, Any], ...]  # {name, before, after, difference, low, high, n, gained, lost, p_value}
    measures: tuple[Mapping[str, Any], ...]  # of both together


@dataclass(frozen=True)
class RunStory:
    """One training run: its record, its metrics, what was measured of it, and the batches that it set aside."""

    id: str
    body: Mapping[str, Any]  # lpt.run/1
    curves: tuple[Curve, ...]
    skipped: tuple[int, ...]  # steps that moved no weight
    files: tuple[Path, ...]  # of its folder that were read
    evaluations: tuple[Evaluated, ...] = ()  # the newest first
    comparisons: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What the run is called on a page."""
        return str(self.body["run_id"])


Story = StageStory | ManifestStory | RunStory


def contamination_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the record of a stage that looked for benchmarks, as decontamination tells it, or None.

    Deduplication may do so in the same read (`lpt data dedup --benchmark`), and keeps what it found apart.
    """
    if body.get("stage") == "decontaminate":
        return body
    told = body.get("extra", {}).get("decontamination")
    return None if told is None else {**body, "extra": told}
