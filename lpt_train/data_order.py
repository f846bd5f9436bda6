"""Which rows each optimizer step reads: shuffled epochs, or the steps of the mixture that the split was made by.

Both are functions of the step alone, so there is nothing to save and a resumed run reads what the whole one would.

A schedule (`lpt.mix-schedule/1`, in the manifest of the split) says how many rows a step has; step s reads rows
[s * rows_per_step, (s + 1) * rows_per_step) of the split in their order, which carries the domains, their anneal and
their curriculum. Rows that were dropped when they were rendered are missing from their own step and from no other.
Under packing the rows of one step are packed with one another, never with those of another step.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lpt_train.admitted import AdmittedSplit
from lpt_train.config import SFTConfig
from lpt_train.packing import Row, epoch_order, units_at
from lpt_train.schedule import schedule_of
from manifests.bins import best_fit_decreasing
from manifests.errors import RefusedError, UsageError
from manifests.rates import rate

Unit = Sequence[Row]  # what a line of a batch holds: one row, or the rows of one bin when packing
_MOST_OF_A_STEP = 1 << 24
_FLAT = {"type": "constant", "warmup": 0.0, "decay": 0.0}  # a mixture that says nothing of the learning rate


def data_order(split: AdmittedSplit, rows: list[Row], config: SFTConfig, world: int = 1) -> Shuffled | Scheduled:
    """The order in which a run of `world` processes reads the rendered rows of its split: they make its steps larger.

    Raises `RefusedError` for a schedule that the options do not fit, or that `mix_schedule=follow` asks for in vain.
    """
    schedule = split.schedule
    if config.mix_schedule == "follow" and schedule is None:
        raise RefusedError(
            f"{split.ref} has no schedule to follow", seen="mix_schedule=follow",
            next="admit what `lpt data mix` wrote with a `schedule:`, or leave mix_schedule at auto",
        )  # fmt: skip
    if schedule is None or config.mix_schedule == "ignore":
        return shuffled(_units(rows, config), config, world)
    return _scheduled(split, schedule, rows, config, world)


def shuffled(units: Sequence[Any], config: Any, world: int = 1) -> Shuffled:
    """Epochs over `units`, as many as the options say."""
    per_step = config.per_device_train_batch_size * config.gradient_accumulation_steps * world
    if per_step > _MOST_OF_A_STEP:
        raise UsageError(
            "a step has more rows than a machine can hold", seen=f"{per_step:,} rows, {len(units):,} in the data",
            next="a smaller per_device_train_batch_size or gradient_accumulation_steps",
        )  # fmt: skip
    steps = config.run.max_steps
    total = steps * per_step if steps > 0 else math.ceil(len(units) * config.run.num_train_epochs)
    order = Shuffled(units, per_step, total, config)
    order.multiplier(0)  # a schedule that is longer than the run is refused before anything is loaded
    return order


@dataclass(frozen=True)
class Shuffled:
    """Epochs, each in an order of its own; `units` are what the loop calls one: packed rows, or numbers of pairs."""

    units: Sequence[Any]
    per_step: int  # units of a full step
    total_units: int  # of the whole run
    config: Any  # with the blocks `optim` and `run`

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return math.ceil(self.total_units / self.per_step)

    def place(self, step: int) -> int:
        """Units read before a step."""
        return min(step * self.per_step, self.total_units)

    def cursor(self, step: int) -> dict[str, int]:
        """What a checkpoint says about the place before a step."""
        return {"place": self.place(step), "units": len(self.units)}

    def lines(self, step: int) -> list[Any]:
        """What a step reads, line after line."""
        first = self.place(step)
        taken = units_at(
            first, self.place(step + 1) - first, units=len(self.units), seed=self.config.run.seed
        )  # fmt: skip
        return [self.units[i] for i in taken]

    def multiplier(self, step: int) -> float:
        """What the peak learning rate is multiplied by in a step."""
        return schedule_of(self.config.optim, self.steps)(step)

    def epoch(self, step: int) -> float:
        """Epochs read before a step."""
        return self.place(step) / len(self.units)

    def metrics(self, step: int) -> dict[str, float]:
        """Nothing to add to the metrics of a step."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """What a run records about its order."""
        order = hashlib.sha256(epoch_order(len(self.units), self.config.run.seed, 0).tobytes()).hexdigest()
        return {"units": len(self.units), "epoch_order_sha256": order}

    @property
    def notes(self) -> list[str]:
        """Nothing to say."""
        return []


@dataclass(frozen=True)
class Scheduled:
    """The steps of a mixture."""

    by_step: Sequence[Sequence[Unit]]
    per_step: int  # rows of a full step
    rows: int  # of the split, those that were dropped among them
    schedule: Mapping[str, Any]
    config: SFTConfig
    domains: Sequence[str] = field(default=(), repr=False)  # of each row of the split

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run: those of the mixture, or fewer where max_steps says so."""
        most = self.config.run.max_steps
        return min(most, len(self.by_step)) if most > 0 else len(self.by_step)

    @property
    def units(self) -> Sequence[Unit]:
        """All lines, in the order in which they are read."""
        return [unit for units in self.by_step for unit in units]

    def place(self, step: int) -> int:
        """Rows of the split read before a step."""
        return min(step * self.per_step, self.rows)

    def cursor(self, step: int) -> dict[str, int]:
        """What a checkpoint says about the place before a step."""
        return {"place": self.place(step), "units": len(self.units)}

    def lines(self, step: int) -> list[Unit]:
        """What a step reads, line after line."""
        return list(self.by_step[step])

    def multiplier(self, step: int) -> float:
        """What the peak learning rate is multiplied by: the mixture's own schedule where it has one, else the run's."""
        told = self.schedule["learning_rate"]
        if told == _FLAT:
            return schedule_of(self.config.optim, len(self.by_step))(step)
        return rate(told["type"], step / len(self.by_step), told["warmup"], told["decay"])

    def epoch(self, step: int) -> float:
        """Share of the mixture read before a step."""
        return self.place(step) / self.rows

    def metrics(self, step: int) -> dict[str, float]:
        """The share of each domain among the rows of a step."""
        if not self.domains:
            return {}
        counted = Counter(self.domains[row.index] for unit in self.by_step[step] for row in unit)
        names = sorted(set(self.domains))
        return {f"domain/{name}": counted[name] / counted.total() for name in names}

    def to_json(self) -> dict[str, Any]:
        """What a run records about its order."""
        kept = {name: self.schedule[name] for name in ("plan_hash", "learning_rate", "phases")}
        return {"units": len(self.units), "mix_schedule": {**kept, "rows_per_step": self.per_step, "steps": self.steps}}

    @property
    def notes(self) -> list[str]:
        """That the mixture decides, and over what."""
        told = self.schedule["learning_rate"]
        what = "" if told == _FLAT else f" and the learning rate its {told['type']} schedule, not lr_scheduler_type"
        return [f"the rows of each step are those of the mixture {self.schedule['plan_hash'][:16]}…{what}"]


def _scheduled(
    split: AdmittedSplit, schedule: Mapping[str, Any], rows: list[Row], config: SFTConfig, world: int
) -> Scheduled:
    batch = config.per_device_train_batch_size * config.gradient_accumulation_steps * world
    per_step = schedule["rows_per_step"] or batch
    if not config.packing and per_step != batch:
        raise RefusedError(
            "the steps of the mixture have another number of rows than those of the run",
            seen=f"rows_per_step {per_step}; per_device_train_batch_size × gradient_accumulation_steps"
            f"{' × processes' if world > 1 else ''} = {batch}",
            next=f"set them to multiply to {per_step}, or mix_schedule=ignore",
        )
    if config.run.max_steps < 1 and config.run.num_train_epochs != 1:
        raise RefusedError(
            "a mixture is read once: its repeats are written into it", seen=f"{config.run.num_train_epochs} epochs",
            next="mix with a larger total, or mix_schedule=ignore",
        )  # fmt: skip
    steps = math.ceil(len(split) / per_step)
    if config.run.max_steps > steps:
        raise RefusedError(
            "the mixture has fewer steps than the run", seen=f"{steps} steps; max_steps {config.run.max_steps}",
            next=f"max_steps={steps}, mix with a larger total, or mix_schedule=ignore",
        )  # fmt: skip
    of_step: list[list[Row]] = [[] for _ in range(steps)]
    for row in rows:
        of_step[row.index // per_step].append(row)
    if empty := [step for step, there in enumerate(of_step) if not there]:
        raise RefusedError(
            "a step of the mixture has no row that can be trained on", seen=f"step {empty[0]} of {steps}",
            next="raise max_length, or take such rows out before mixing (lpt data drop)",
        )  # fmt: skip
    names = split.table["domain"].to_pylist() if "domain" in split.table.column_names else ()
    return Scheduled([_units(there, config) for there in of_step], per_step, len(split), schedule, config, names)


def _units(rows: Sequence[Row], config: SFTConfig) -> list[Unit]:
    if not config.packing:
        return [[row] for row in rows]
    bins = best_fit_decreasing([len(row.ids) for row in rows], config.max_length)
    return [[rows[i] for i in members] for members in bins]
