"""The plan of a mixture: how much of each domain in each phase, and which rows in which order.

Later phases are filled first, because an anneal is asked for on account of its data; the rows of a domain are then
dealt to the phases in the order of training, so that no row comes back before the domain is used up.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpt_data import allocation
from lpt_data.mix_spec import Domain, MixSpec, Phase
from lpt_data.schedule_mix import rates_of, step_range
from manifests.errors import BadInputError

REPLAY_BAND = (0.1, 0.3)  # shares of general data that keep a model from forgetting at little cost
MANY_EPOCHS = 4.0  # beyond about four passes repeated data is worth less and less (Muennighoff et al. 2023)


@dataclass(frozen=True)
class Pool:
    """The usable rows of one domain."""

    domain: Domain
    rows: np.ndarray  # int64 [n], index in the input
    contents: np.ndarray  # uint8 [n, 16]: what the draw follows
    tokens: np.ndarray | None  # int64 [n], where the total is in tokens
    scores: np.ndarray | None  # float64 [n], where there is a curriculum
    root: str

    def units(self, spec: MixSpec) -> int:
        """Size of the domain in the unit of the total: tokens, or else rows."""
        return int(self.tokens.sum()) if spec.unit == "tokens" and self.tokens is not None else len(self.rows)

    def keys(self, salt: str) -> np.ndarray:
        """Return a number for each row that follows from its content and a salt alone, uint64 [n]."""
        start = hashlib.sha256(salt.encode() + b"\0")
        found, contents = np.empty(len(self.rows), np.uint64), self.contents.tobytes()
        for place in range(len(self.rows)):
            digest = start.copy()
            digest.update(contents[16 * place : 16 * place + 16])
            found[place] = int.from_bytes(digest.digest()[:8], "big")
        return found


@dataclass(frozen=True)
class Plan:
    """Rows in the order in which they are written, and what is told about them."""

    rows: np.ndarray  # int64 [N], index in the input
    domains: np.ndarray  # int64 [N], index into the domains
    copies: np.ndarray  # int64 [N], 0 where a row is used for the first time
    told: dict[str, Any]


def make(spec: MixSpec, pools: Sequence[Pool]) -> Plan:
    """Return the plan. Raises BadInputError where nothing would be drawn."""
    sizes = np.array([pool.units(spec) for pool in pools], np.float64)
    lengths = np.diff([0.0, *(phase.until for phase in spec.phases)])
    asked_P_D = np.stack([_asked(spec, pools, phase, sizes) for phase in spec.phases])
    total = spec.total if spec.unit != "epochs" else spec.total * float(sizes[asked_P_D.sum(axis=0) > 0].sum())
    given_P_D = _filled(spec, asked_P_D, lengths, sizes, total)
    draws = [_draws(spec, number, pool, given_P_D[:, number]) for number, pool in enumerate(pools)]
    parts = [_phase_order(spec, pools, [draw[phase] for draw in draws]) for phase in range(len(spec.phases))]
    rows, domains, copies = (np.concatenate([part[i] for part in parts]) for i in range(3))
    if not len(rows):
        raise BadInputError(
            "nothing would be drawn", seen=f"total {spec.total:g} {spec.unit}", next="ask for a larger total"
        )
    used_P_D = np.array(
        [[_units(spec, pools[d], draws[d][p][0]) for d in range(len(pools))] for p in range(len(parts))]
    )
    told: dict[str, Any] = {
        "unit": "tokens" if spec.unit == "tokens" else "rows",
        "asked_total": round(total, 3),
        "total": int(used_P_D.sum()),
        "domains": _domain_table(spec, pools, sizes, lengths @ asked_P_D, draws, used_P_D.sum(axis=0)),
        "phases": _phase_table(spec, pools, asked_P_D, used_P_D, [len(part[0]) for part in parts], draws),
    }
    told["warnings"] = warnings(spec, told)
    return Plan(rows, domains, copies, told)


# -- how much


def weights_of(spec: MixSpec, pools: Sequence[Pool], phase: Phase, sizes: np.ndarray) -> np.ndarray:
    """Return the weight of each domain in a phase, before any temperature; a replay domain that a phase does not name
    keeps its own.
    """
    own = [size if pool.domain.weight is None else pool.domain.weight for pool, size in zip(pools, sizes, strict=True)]
    if phase.weights is None:
        return np.array(own, np.float64)
    named = dict(phase.weights)
    values = [
        named.get(pool.domain.name, weight if pool.domain.replay else 0.0)
        for pool, weight in zip(pools, own, strict=True)
    ]
    return np.array(values, np.float64)


def _asked(spec: MixSpec, pools: Sequence[Pool], phase: Phase, sizes: np.ndarray) -> np.ndarray:
    """Return the share of each domain in a phase, summing to 1: replay domains have theirs, the others the rest."""
    weights = weights_of(spec, pools, phase, sizes)
    inverse = np.array(
        [spec.inverse_temperature if (t := pool.domain.temperature) is None else 1 / t for pool in pools]
    )
    replay = np.array([pool.domain.replay for pool in pools])
    if spec.replay_share is None:
        return allocation.shares(weights, inverse)
    asked = np.zeros(len(pools))
    for side, share in ((replay, spec.replay_share), (~replay, 1 - spec.replay_share)):
        asked[side] = share * allocation.shares(weights[side], inverse[side])
    return asked


def _filled(spec: MixSpec, asked_P_D: np.ndarray, lengths: np.ndarray, sizes: np.ndarray, total: float) -> np.ndarray:
    """Return what each domain gives in each phase, in units of the total; whole numbers where these are rows."""
    default = math.inf if spec.exhausted == "repeat" else 1.0
    caps = np.array([default if d.max_epochs is None else d.max_epochs for d in spec.domains])
    if spec.exhausted == "redistribute":
        caps = np.minimum(caps, 1.0)
    capacity = np.where(np.isinf(caps), math.inf, sizes * np.where(np.isinf(caps), 1.0, caps))
    if spec.unit != "tokens":
        capacity = np.floor(capacity + 1e-9)
    if spec.exhausted == "stop":
        total = min(total, allocation.longest_without_repeat(lengths @ asked_P_D, capacity))
    replay = np.array([domain.replay for domain in spec.domains])
    given = np.zeros_like(asked_P_D)
    bounds = _bounds(spec, total)
    for phase in reversed(range(len(lengths))):
        amount = bounds[phase + 1] - bounds[phase]
        filled = allocation.fill(amount, asked_P_D[phase], capacity, replay)
        given[phase] = filled if spec.unit == "tokens" else allocation.whole(filled)
        capacity = capacity - given[phase]
    return given


def _bounds(spec: MixSpec, total: float) -> list[float]:
    """Return where phases begin and end, in units of the total: between rows, and between steps where known."""
    if spec.unit == "tokens":
        return [0.0, *(phase.until * total for phase in spec.phases)]
    rows = int(total + 1e-9)
    grain = spec.rows_per_step or 1
    steps = -(-rows // grain)
    return [0, *(min(rows, grain * round(phase.until * steps)) for phase in spec.phases)]


# -- which rows


def _draws(
    spec: MixSpec, number: int, pool: Pool, given_P: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return, for each phase, the (places in the pool, copies, order keys) of what a domain gives."""
    places, copies = _sequence(spec, pool, float(given_P.sum()))
    keys = np.zeros(len(places), np.uint64)
    for copy in range(int(copies.max(initial=-1)) + 1):
        mine = copies == copy
        keys[mine] = pool.keys(f"lpt-mix-order/1:{spec.seed}:{pool.domain.name}:{copy}")[places[mine]]
    if pool.scores is not None and spec.curriculum is not None and pool.domain.name in spec.curriculum.domains:
        ramp = pool.scores[places] * (-1 if spec.curriculum.descending else 1)
        order = np.lexsort([keys, ramp])
        places, copies, keys = places[order], copies[order], keys[order]
    if pool.tokens is not None and spec.unit == "tokens":
        ends = np.concatenate([[0], np.cumsum(pool.tokens[places])])
        cuts = [_nearest(ends, aim) for aim in np.cumsum(given_P)]
        cuts[-1] = len(places)
    else:
        cuts = [int(cut) for cut in np.cumsum(given_P)]
    return [(places[a:b], copies[a:b], keys[a:b]) for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]


def _sequence(spec: MixSpec, pool: Pool, amount: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (places in the pool, copies): one pass after the other, each in an order of its own, until `amount`."""
    size = pool.units(spec)
    passes: list[np.ndarray] = []
    left = amount
    while size and left > 1e-9:
        order = np.argsort(pool.keys(f"lpt-mix-draw/1:{spec.seed}:{pool.domain.name}:{len(passes)}"), kind="stable")
        if left < size - 1e-9 and pool.tokens is not None and spec.unit == "tokens":
            order = order[: _nearest(np.concatenate([[0], np.cumsum(pool.tokens[order])]), left)]
        elif left < size - 1e-9:
            order = order[: round(left)]
        passes.append(order)
        left -= size
    if not passes:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(passes), np.repeat(np.arange(len(passes)), [len(p) for p in passes])


def _nearest(ends: np.ndarray, aim: float) -> int:
    """Return how many rows come nearest to `aim` tokens, the fewer of two as near; `ends` are totals from 0."""
    after = int(np.searchsorted(ends, aim))
    if after == 0:
        return 0
    if after == len(ends):
        return after - 1
    return after if ends[after] - aim < aim - ends[after - 1] else after - 1


def _phase_order(
    spec: MixSpec, pools: Sequence[Pool], draws: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (rows, domains, copies) of a phase: shuffled by content; a curriculum puts its rows in order in the places
    that the shuffle gave their domain.
    """
    places = np.concatenate([draw[0] for draw in draws])
    copies = np.concatenate([draw[1] for draw in draws])
    keys = np.concatenate([draw[2] for draw in draws])
    domains = np.repeat(np.arange(len(draws)), [len(draw[0]) for draw in draws])
    rows = np.concatenate([pool.rows[draw[0]] for pool, draw in zip(pools, draws, strict=True)])
    order = np.argsort(keys, kind="stable")
    curriculum = spec.curriculum
    if curriculum is not None:
        scores = np.array(
            [
                0.0 if (s := pools[d].scores) is None else s[p]
                for d, p in zip(domains.tolist(), places.tolist(), strict=True)
            ]
        )
        ramp = -scores if curriculum.descending else scores
        chosen = [i for i, pool in enumerate(pools) if pool.domain.name in curriculum.domains]
        for group in [chosen] if curriculum.together else [[i] for i in chosen]:
            seats = np.flatnonzero(np.isin(domains[order], group))
            mine = order[seats]
            order[seats] = mine[np.lexsort([keys[mine], ramp[mine]])]
    return rows[order], domains[order], copies[order]


# -- what is told


def _units(spec: MixSpec, pool: Pool, places: np.ndarray) -> int:
    if spec.unit == "tokens" and pool.tokens is not None:
        return int(pool.tokens[places].sum())
    return len(places)


def _domain_table(
    spec: MixSpec,
    pools: Sequence[Pool],
    sizes: np.ndarray,
    asked: np.ndarray,
    draws: Sequence[Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]],
    used: np.ndarray,
) -> list[dict[str, Any]]:
    """One entry for each domain: what the weights say, what was asked after temperature and replay, what was drawn."""
    first = weights_of(spec, pools, Phase(1.0), sizes)
    plain = first / first.sum() if first.sum() > 0 else first
    told = []
    for number, pool in enumerate(pools):
        places = np.concatenate([draw[0] for draw in draws[number]])
        told.append(
            {
                "domain": pool.domain.name,
                "weight_share": round(float(plain[number]), 6),
                "asked": round(float(asked[number]), 6),
                "observed": round(float(used[number] / used.sum()), 6) if used.sum() else 0.0,
                "amount": int(used[number]),
                "size": int(sizes[number]),
                "rows": len(places),
                "rows_available": len(pool.rows),
                "epochs": round(len(places) / len(pool.rows), 4),
                "repeated": len(places) - len(np.unique(places)),
                "replay": pool.domain.replay,
                "content_root": pool.root,
            }
        )
    return told


def _phase_table(
    spec: MixSpec,
    pools: Sequence[Pool],
    asked_P_D: np.ndarray,
    used_P_D: np.ndarray,
    rows_P: Sequence[int],
    draws: Sequence[Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]],
) -> list[dict[str, Any]]:
    told, row, before = [], 0, 0.0
    names = [pool.domain.name for pool in pools]
    for number, phase in enumerate(spec.phases):
        end = row + rows_P[number]
        first_step, end_step = step_range(row, end, spec.rows_per_step)
        used = used_P_D[number]
        told.append(
            {
                "from": before,
                "until": phase.until,
                "first_row": row,
                "end_row": end,
                "first_step": first_step,
                "end_step": end_step,
                "asked": {n: round(float(share), 6) for n, share in zip(names, asked_P_D[number], strict=True)},
                "observed": {n: round(float(u / max(1, used.sum())), 6) for n, u in zip(names, used, strict=True)},
                "rows": {n: len(draws[d][number][0]) for d, n in enumerate(names)},
                "learning_rate": rates_of(before, phase.until, spec.learning_rate),
            }
        )
        row, before = end, phase.until
    return told


def warnings(spec: MixSpec, told: dict[str, Any]) -> list[str]:
    """Return what a user should know before a row is written, one sentence each."""
    found = []
    low, high = REPLAY_BAND
    if spec.replay_share is not None and not low <= spec.replay_share <= high:
        found.append(f"a replay share of {spec.replay_share:.1%} is outside the advised {low:.0%} to {high:.0%}")
    if any(domain.temperature is not None and domain.temperature < 1 for domain in spec.domains):
        found.append(
            "a domain's own temperature below 1 makes a share below 1 smaller, not larger; "
            "one `temperature` above 1 over all domains draws the small ones up"
        )
    for domain in told["domains"]:
        name = domain["domain"]
        if spec.per_domain_exponents:
            found.append(
                f"per-domain exponents: {name} has {domain['weight_share']:.3f} by weight and is asked for "
                f"{domain['asked']:.3f}"
            )
        short = told["asked_total"] * domain["asked"] - domain["amount"]
        if domain["asked"] and short > max(1.0, 0.005 * told["asked_total"] * domain["asked"]):
            found.append(
                f"{name} runs out: {told['asked_total'] * domain['asked']:,.0f} {told['unit']} asked, "
                f"{domain['amount']:,} drawn of {domain['size']:,} ({domain['epochs']:g} epochs)"
            )
        if domain["epochs"] > MANY_EPOCHS:
            found.append(
                f"{name} is repeated {domain['epochs']:g} times; beyond {MANY_EPOCHS:g} it teaches little more"
            )
        if not domain["asked"]:
            found.append(f"{name} has no share: none of its rows is drawn")
    short = told["asked_total"] - told["total"]
    if short > max(1.0, 0.005 * told["asked_total"]):
        found.append(f"the mixture is short: {told['asked_total']:,.0f} {told['unit']} asked, {told['total']:,} drawn")
    return found
