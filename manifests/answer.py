"""What `why` answers: what became of a row, step by step, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Fate = Literal["kept", "removed", "quarantined", "unknown"]


@dataclass(frozen=True)
class Step:
    """One thing that happened to a row, or to the kept row that it repeats (`witness` is True)."""

    stage: str
    stage_id: str
    row: int
    what: Literal["removed", "rewritten", "quarantined", "kept", "admitted"]
    record_id: str = ""
    reason: str = ""
    score: float | None = None
    witness_row: int | None = None
    witness_id: str = ""
    detail: str = ""
    file: str = ""
    file_row: int | None = None
    witness: bool = False

    def __str__(self) -> str:
        who = "the row it repeats, " if self.witness else ""
        at = f" ({self.file}, row {self.file_row + 1})" if self.file and self.file_row is not None else ""
        if self.what == "admitted":
            return f"{who}in {self.stage}, row {self.row}: admitted"
        said = f"{self.what}: {self.reason}" if self.reason else self.what
        said += f", score {self.score:.4g}" if self.score is not None else ""
        if self.witness_row is not None:
            said += f", repeats row {self.witness_row} {self.witness_id[:16]}".rstrip()
        said += f" ({self.detail})" if self.detail else ""
        return f"{who}{self.stage} {self.stage_id} row {self.row}{at}: {said}"


@dataclass
class WhyAnswer:
    """What became of a row. `survivor` is the record id of the row that stands for it at the end, "" when unknown."""

    ref: str
    record_id: str = ""
    fate: Fate = "unknown"
    steps: list[Step] = field(default_factory=list)
    survivor: str = ""
    notes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # on a split that holds the row; whether they came to it is not known

    def to_json(self) -> dict[str, Any]:
        """Return the answer as one JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        head = f"{self.record_id[:16] or self.ref}: {_SAID[self.fate]}"
        if self.survivor and self.survivor != self.record_id:
            head += f"; {self.survivor[:16]} stands for it"
        elif self.survivor and self.fate == "removed":
            head += "; an equal row stands for it"
        more = [f"  a run on a split that holds it: {run}" for run in self.runs] + [
            f"  note: {note}" for note in self.notes
        ]
        return "\n".join([head, *(f"  {step}" for step in self.steps), *more])


_SAID = {
    "kept": "kept everywhere",
    "removed": "removed",
    "quarantined": "quarantined: it could not be read",
    "unknown": "not found in any decision or admitted split",
}
