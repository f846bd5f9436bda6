"""How often the host waits for the device in a step: counted by what asks a tensor for a value."""

from __future__ import annotations

import pytest
import torch
from reward_cases import ranked
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from train_cases import chats, preferences, write_jsonl

from lpt_train import kto, preference, reward, sft
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import PreferenceConfig
from lpt_train.config_reward import RewardConfig
from lpt_train.ranks import fetched

_ASKS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__", "nonzero")
LOOPS = {  # the loop, its config, its contract, its rows, how often it waits before the weights move
    "sft": (sft, SFTConfig, "sft", chats, 1),
    "dpo": (preference, PreferenceConfig, "preference", preferences, 1),
    "reward": (reward, RewardConfig, "preference", ranked, 1),
    "kto": (kto, KTOConfig, "preference", preferences, 2),  # its estimate, and then all its metrics
}


class Waits(TorchFunctionMode):
    """Counts what a GPU would have to answer. The lengths of rows, whole numbers, are read by attention on a CPU
    alone."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.inside = 0, False
        self.scalars = Scalars(self)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        told = getattr(func, "__name__", "") in _ASKS and args[0].dtype in (torch.bool, torch.float32, torch.float64)
        if not told or self.inside:
            return func(*args, **(kwargs or {}))
        self.count, self.inside = self.count + 1, True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside = False

    def begin(self) -> None:
        self.__enter__()
        self.scalars.__enter__()

    def end(self) -> None:
        self.scalars.__exit__(None, None, None)
        self.__exit__(None, None, None)


class Scalars(TorchDispatchMode):
    """What asks from within torch, where no Python sees it."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        asks = func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        if asks and not self._waits.inside and args[0].dtype in (torch.bool, torch.float32, torch.float64):
            self._waits.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("algorithm", list(LOOPS))
@pytest.mark.parametrize("guard", [True, False])
def test_a_step_waits_once_however_it_is_cut(tiny, tmp_path, algorithm, guard):
    loop, kind, contract, rows, expected = LOOPS[algorithm]
    split = load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows(16)), contract)
    found, waits = [], []

    def count(moment):
        if moment.point == "step_start" and moment.done > 0:
            waits.append(Waits())
            waits[-1].begin()
        if moment.point == "update" and waits:
            waits[-1].end()
            found.append(waits[-1].count)

    options = {
        "model": str(tiny), "max_steps": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "lora_r": 2, "spike_guard": guard, "logging_steps": 2,
    }  # fmt: skip
    result = loop.train(from_mapping(kind, options), split=split, out=tmp_path / "run", observers=(count,))
    assert result.status == "done"
    assert found == [expected] * 2


def test_the_counter_sees_what_waits():
    values = torch.ones(3)
    counted = Waits()
    counted.begin()
    float(values.sum())
    if values.any():
        values.tolist()
    torch.ones(2).int().tolist()  # lengths
    counted.end()
    assert counted.count == 3


def test_numbers_are_those_of_each_alone():
    values = {
        "loss": torch.tensor(0.1),
        "steps": 3,
        "norm": torch.tensor(1e-30),
        "rate": 0.1,
        "nan": torch.tensor(torch.nan),
    }
    counted = Waits()
    counted.begin()
    found = fetched(values)
    counted.end()
    assert counted.count == 1
    assert list(found) == list(values)
    assert {name: found[name] for name in ("loss", "steps", "norm", "rate")} == {
        "loss": float(torch.tensor(0.1)), "steps": 3.0, "norm": float(torch.tensor(1e-30)), "rate": 0.1,
    }  # fmt: skip
    assert found["nan"] != found["nan"]
    assert fetched({"loss": 0.5}) == {"loss": 0.5}


class Moves(TorchFunctionMode):
    """Counts what is moved from one device to another, and plays the device that no test has: meta holds no value."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to:
            self.found.append((args[0].device.type, torch.device(args[1]).type))
        if func is torch.Tensor.tolist:
            return [0.5] * len(args[0])
        return func(*args, **(kwargs or {}))


def test_a_value_on_the_host_moves_no_other():
    """The estimate of KTO comes first, and lies on the host: the others go over in their one transfer all the same."""
    there = {name: torch.zeros((), device="meta") for name in ("loss", "good", "norm")}
    with Moves() as moves:
        found = fetched({"kl": torch.tensor(0.25), **there, "rate": 0.1})
    assert moves.found == [("meta", "meta")] * 3
    assert found == {"kl": 0.25, "loss": 0.5, "good": 0.5, "norm": 0.5, "rate": 0.1}
    assert list(found) == ["kl", *there, "rate"]
