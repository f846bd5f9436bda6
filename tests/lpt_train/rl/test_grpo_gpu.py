"""The loop on one GPU: bfloat16, sampler against trainer, exact resume."""

from __future__ import annotations

import pytest
import torch

from lpt_train import grpo
from lpt_train.config import from_mapping
from lpt_train.config_grpo import GRPOConfig
from lpt_train.models import load_model
from lpt_train.sampler.generate import Sampling, sample
from manifests.catalog import Catalog

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("changes", [{}, {"use_peft": True, "lora_r": 4, "beta": 0.1}], ids=["full", "lora"])
def test_bf16_run_and_its_resumption(config, split, tmp_path, changes):
    catalog = Catalog.open(tmp_path / "catalog")
    made = from_mapping(
        GRPOConfig, {"device": "cuda", "dtype": "auto", "max_steps": 4, "save_steps": 2, **changes}, config
    )
    whole = grpo.train(made, split=split, out=tmp_path / "one", catalog=catalog)
    assert whole.body["proof"]["verdict"] == "effective"
    assert whole.body["metrics"]["mismatch"][0] < 0.05  # nats a token, in bfloat16

    def interrupt(step, total, _):
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grpo.train(made, split=split, out=tmp_path / "two", catalog=catalog, progress=interrupt)
    again = grpo.train(made, split=split, out=tmp_path / "two", catalog=catalog, resume=True)
    assert again.body["steps"] == 4
    assert again.body["metrics"]["reward"][0] == whole.body["metrics"]["reward"][0]


def test_looking_seldom_changes_no_completion(tiny):
    """On CUDA the host looks every few steps at what has stopped; greedy completions are those of the CPU."""
    prompts = [[5, 6, 7], [9], [1, 2, 3, 4]]
    found = []
    for device in ("cpu", "cuda"):
        model = load_model(str(tiny), device=device)
        groups = sample(
            model, prompts, Sampling(20, 0.0), num_generations=2, stop_ids=range(100, 259),
            generator=torch.Generator(device).manual_seed(0),
        )  # fmt: skip
        found.append([[(c.ids, c.finish) for c in group] for group in groups])
    assert found[0] == found[1]
