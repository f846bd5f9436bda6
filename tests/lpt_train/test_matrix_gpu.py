"""Matrices and likelihoods on one GPU: cells in processes that CUDA can begin in, the largest batch in some memory."""

from __future__ import annotations

import pytest
import torch
from train_cases import admit_by_hand, chat, chats

from lpt_train.admitted import load_split
from lpt_train.likelihood import likelihood
from lpt_train.matrix import run_matrix
from lpt_train.matrix_spec import parse_spec
from lpt_train.measured import load_subject
from manifests.catalog import Catalog

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_cells_have_peaks_of_their_own_and_a_largest_batch(tiny, tmp_path):
    catalog = Catalog.open(tmp_path / ".lpt")
    long = [{"messages": chat(f"say {n}", "word " * 400)} for n in range(8)]
    admit_by_hand(catalog, "sft", {"train": chats(16) + long, "validation": chats(20)[16:]})
    body = {
        "algorithm": "sft", "model": str(tiny), "admitted": "chats:train", "eval": "chats:validation",
        "base": {"max_steps": 3, "max_length": 2048, "execution": "eager", "memory": "off"},
        "variants": {
            "few": {"lora_r": 2, "per_device_train_batch_size": 1},
            "many": {"lora_r": 2, "per_device_train_batch_size": 16},
        },
        "seeds": [1], "band": {"absolute": 9}, "cheapest": ["peak_memory_bytes"],
        "gates": {"largest_batch": ">= 2"}, "largest_batch": {"most": 4096, "memory": 1.5e9},
    }  # fmt: skip
    found = run_matrix(parse_spec(body, "gpu"), out=tmp_path / "m", catalog=catalog)
    assert [cell.status for cell in found.cells] == ["done", "done"], [cell.failures for cell in found.cells]
    few, many = (cell.values["peak_memory_bytes"] for cell in found.cells)
    assert few < many
    assert 2 <= found.cells[0].values["largest_batch"] < 4096
    assert found.choice.winner == "few"


def test_losses_in_bfloat16_are_near_those_of_the_cpu(tiny, tmp_path):
    catalog = Catalog.open(tmp_path / ".lpt")
    admit_by_hand(catalog, "sft", {"train": chats(16)})
    split = load_split("chats:train", catalog=catalog)
    values = [
        likelihood(load_subject(str(tiny), merge=False, device=device), split).measure("loss").value
        for device in ("cpu", "cuda")
    ]
    assert values[0] == pytest.approx(values[1], abs=0.02)
