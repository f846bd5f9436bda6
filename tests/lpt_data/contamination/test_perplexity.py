"""Items that a language model finds unusually likely: the measure by hand, the model's own numbers, a planted one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lpt_data.contamination.perplexity import (
    LanguageModel,
    anomalies,
    find_language_model,
    log_probabilities,
    min_k,
    modified_z,
)
from lpt_data.progress import silent
from manifests.errors import BadInputError

ITEMS = [f"Question {n}: what is {n} plus {n * 7 % 11}, and who asked {n} times?" for n in range(24)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    from lpt_train.tiny import make_tiny

    folder = tmp_path_factory.mktemp("tiny") / "m"
    make_tiny(folder, hidden=64, layers=2)
    return find_language_model(folder)


def test_min_k_is_the_mean_of_the_least_expected_fifth() -> None:
    assert min_k(np.array([-1, -2, -3, -4, -5, -6, -7, -8, -9, -20.0])) == -14.5
    assert min_k(np.full(8, -2.0)) == -2.0
    assert np.isnan(min_k(np.zeros(7)))


def test_modified_z_by_hand() -> None:
    z = modified_z(np.array([1.0, 2.0, 3.0, 4.0, 100.0, np.nan]))  # median 3, MAD 1
    assert z[:5].tolist() == [-1.349, -0.6745, 0.0, 0.6745, 0.6745 * 97]
    assert np.isnan(z[5])
    assert modified_z(np.array([2.0, 2.0, 2.0, 9.0])).tolist() == [0.0] * 4
    assert np.isnan(modified_z(np.array([np.nan]))).all()


def test_log_probabilities_are_those_of_the_model_alone(model: LanguageModel) -> None:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model.folder).eval()
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    texts = ["short", ITEMS[3], "", "x", ITEMS[11] * 3]
    for text, found in zip(texts, log_probabilities(texts, model, silent), strict=True):
        ids = torch.tensor([tokenizer.encode(text).ids], dtype=torch.long)
        if ids.shape[1] < 2:
            assert len(found) == 0
            continue
        with torch.inference_mode():
            plain = network(input_ids=ids).logits.log_softmax(-1)[0, :-1]
        expected = plain[torch.arange(ids.shape[1] - 1), ids[0, 1:]].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_an_item_that_was_read_stands_out_and_the_others_do_not(model: LanguageModel, tmp_path: Path) -> None:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model.folder)
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    read = ITEMS[5]
    ids = torch.tensor([tokenizer.encode(read).ids])
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(60):
        network(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path / "m"
    network.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((model.folder / "tokenizer.json").read_bytes())
    after = find_language_model(folder)
    assert after.digest != model.digest
    nothing = [None] * len(ITEMS)
    assert anomalies(ITEMS, nothing, model, silent)["flagged"] == []
    told = anomalies(ITEMS, nothing, after, silent)
    assert told["flagged"][0]["place"] == 5
    assert told["items"] == 24
    other = [item.replace("what is", "how much is") for item in ITEMS]
    told = anomalies(ITEMS, other, after, silent)
    assert told["flagged"][0]["place"] == 5
    assert told["likelier_than_own_paraphrase"]["of"] == 24


def test_a_folder_without_a_model_is_refused(tmp_path: Path, model: LanguageModel) -> None:
    with pytest.raises(BadInputError, match="no language model"):
        find_language_model(tmp_path)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 9)
    with pytest.raises(BadInputError, match="cannot be loaded"):
        anomalies(["a b c"], [None], find_language_model(tmp_path), silent)
