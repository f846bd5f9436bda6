"""The memory of a run with each way to train side by side, and what fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lpt_train.plan.ladder import choose
from lpt_train.plan.memory import SCOPES, largest, predict
from lpt_train.plan.shape import ModelShape
from lpt_train.plan.workloads import asked, frozen_models, longest_row, workload_of
from manifests.errors import RefusedError


def memory_report(
    shape: ModelShape, algorithm: str, config: Any, *, budget: int, length: int = 0, on_cuda: bool = True
) -> dict[str, Any]:
    """Predicted memory of the options under each of `full`, `lora` and `qlora`, after the ladder has done its part.

    Raises `RefusedError` for weights that are spread over processes: what is gathered, and when, was never measured.
    """
    if config.run.sharding != "none":
        raise RefusedError(
            "memory is not predicted where weights are spread over processes", seen=f"sharding={config.run.sharding}",
            next="plan with sharding=none, which is what a process takes that has all of them; each must hold the "
            "whole model once to load it",
        )  # fmt: skip
    size = config.per_device_train_batch_size
    start = workload_of(algorithm, config, length=length, on_cuda=on_cuda)
    row = start.tokens // size
    ways: dict[str, dict[str, Any]] = {}
    for scope in SCOPES:
        own = replace(
            start, scope=scope, dropout=start.dropout and scope != "full",
            frozen_copies=frozen_models(algorithm, config, scope),
        )  # fmt: skip
        work, fixed = asked(config, own, {})
        choice = choose(shape, work, budget, fixed)
        last = choose(shape, work, 0, fixed)
        ways[scope] = {
            **choice.memory.to_json(), "rungs": list(choice.rungs), "fits": choice.fits,
            "as_asked_bytes": predict(shape, work).reserved,
            "largest_batch": largest(shape, work, budget, tokens_a_row=row),
            "largest_batch_at_the_last_rung": largest(shape, last.work, budget, tokens_a_row=row),
            "trained_parameters": shape.parameters if scope == "full" else sum(
                shape.adapter_tensors(work.rank, work.targets, dora=work.dora)
            ),
        }  # fmt: skip
    return {
        "algorithm": algorithm, "parameters": shape.parameters, "tokens": start.tokens,
        "row": length or longest_row(algorithm, config), "per_device_train_batch_size": size, "budget_bytes": budget,
        "kv_bytes_per_token": shape.kv_bytes_per_token(start.width), "ways": ways,
    }  # fmt: skip
