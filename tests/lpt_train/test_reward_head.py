"""The head of a reward model: where it is read, where it starts, and that transformers reads the same folder alike."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from peft import AutoPeftModelForSequenceClassification
from reward_cases import asked, said
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from lpt_train.adapters import attach
from lpt_train.checkpoint import read_provenance
from lpt_train.config import Lora
from lpt_train.flat import Shape, flatten
from lpt_train.heads import causal_model, decoder
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import load_model, placement
from lpt_train.packing import Row
from lpt_train.reward_batch import rewards_of
from lpt_train.reward_export import export_reward
from lpt_train.reward_head import has_reward_head, last_token_rewards, padding_for
from lpt_train.reward_model import load_reward_for_training, load_reward_model
from lpt_train.tiny import PAD, START, STOP, byte_tokenizer
from manifests.errors import BadInputError, UsageError


def rows(*lengths: int, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [Row(i, rng.integers(0, 256, n).astype(np.int32), np.ones(n, np.uint8)) for i, n in enumerate(lengths)]


def ready(model) -> MicroBatch:
    return MicroBatch(
        model, placement("cpu"), None, execution="auto", longest=64, most_tokens=256, most_rows=8, pad_id=0,
        head=last_token_rewards,
    )  # fmt: skip


def alone(model, row: Row) -> float:
    """By the definition: the head on the hidden state of the row's last token, in float64."""
    with torch.no_grad():
        hidden = decoder(model)(input_ids=torch.from_numpy(row.ids).long()[None], use_cache=False).last_hidden_state
        weight = causal_model(model).score.weight
        return float(hidden[0, -1].double() @ weight[0].double())


def test_the_reward_is_read_at_the_last_token_of_each_row(tiny):
    model = load_reward_model(str(tiny), seed=1)
    several = rows(5, 1, 9)
    found = rewards_of(ready(model), several, 8)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([alone(model, row) for row in several], abs=1e-5)
    assert rewards_of(ready(model), several, 1).tolist() == pytest.approx(found.tolist(), abs=1e-6)


def test_filler_behind_the_rows_changes_no_reward(tiny):
    model = load_reward_model(str(tiny), seed=1)
    several = rows(5, 3)
    filled = flatten(several, 256, Shape(longest=16, tokens=32, rows=5))
    hidden = ready(model)._hidden(filled)
    found = last_token_rewards(model, hidden, filled)
    assert len(found) == 5
    assert found[:2].tolist() == pytest.approx([alone(model, row) for row in several], abs=1e-5)


def test_the_head_is_drawn_by_the_seed_alone_and_is_float32(tiny):
    """TRL issue 4887: a head that is drawn before anything is seeded."""
    torch.manual_seed(1)
    one = load_reward_model(str(tiny), seed=3, dtype=torch.bfloat16)
    torch.manual_seed(2)
    two = load_reward_model(str(tiny), seed=3)
    assert torch.equal(one.score.weight, two.score.weight)
    assert one.score.weight.dtype == torch.float32
    assert next(decoder(one).parameters()).dtype == torch.bfloat16
    assert not torch.equal(two.score.weight, load_reward_model(str(tiny), seed=4).score.weight)


def test_a_reward_has_the_digits_of_float32_in_a_bfloat16_model(tiny):
    model = load_reward_model(str(tiny), seed=1, dtype=torch.bfloat16)
    hidden = torch.randn(4, 32, dtype=torch.bfloat16)
    batch = flatten(rows(4), 0, Shape(longest=16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = last_token_rewards(model, hidden, batch)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(hidden[3].double() @ model.score.weight[0].double()), rel=1e-6)


@pytest.mark.parametrize("use_peft", [True, False])
def test_saved_and_read_by_its_libraries_the_logits_are_equal(tiny, tokenizer, tmp_path, use_peft):
    model = load_reward_for_training(str(tiny), Lora(use_peft=use_peft, lora_r=4), placement("cpu"), seed=5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.dim() > 1:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 30)
    causal_model(model).config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(tmp_path / "rm", **({"save_embedding_layers": False} if use_peft else {}))
    assert has_reward_head(str(tmp_path / "rm"))
    several = rows(6, 2, 11)
    ours = rewards_of(ready(model.eval()), several, 8)
    # An adapter is peft's to read: transformers alone (5.17) leaves out its head and draws a new one.
    reader = AutoPeftModelForSequenceClassification if use_peft else AutoModelForSequenceClassification
    theirs = reader.from_pretrained(tmp_path / "rm", num_labels=1, dtype=torch.float32)
    theirs.config.pad_token_id = tokenizer.pad_token_id
    ids = torch.full((3, 11), tokenizer.pad_token_id)
    for number, row in enumerate(several):
        ids[number, : len(row.ids)] = torch.from_numpy(row.ids)
    mask = torch.tensor([[1] * len(row.ids) + [0] * (11 - len(row.ids)) for row in several])
    with torch.no_grad():
        logits = theirs.eval()(input_ids=ids, attention_mask=mask).logits
    assert logits.shape == (3, 1)
    assert logits[:, 0].tolist() == pytest.approx(ours.tolist(), abs=1e-5)
    again = load_reward_model(str(tmp_path / "rm"))
    assert rewards_of(ready(again), several, 8).tolist() == pytest.approx(ours.tolist(), abs=1e-5)


def test_a_row_that_ends_with_the_padding_is_read_at_its_end(tiny):
    """Found by the padding, as transformers does it, the last token of such a row is another one."""
    model = load_reward_model(str(tiny), seed=1)
    ids = np.array([5, 6, 256, 256], np.int32)
    row = Row(0, ids, np.ones(4, np.uint8))
    model.config.pad_token_id = 256
    with torch.no_grad():
        theirs = float(model(input_ids=torch.from_numpy(ids).long()[None]).logits)
    found = float(rewards_of(ready(model), [row], 1))
    assert found == pytest.approx(alone(model, row), abs=1e-5)
    assert abs(found - theirs) > 1e-3
    assert padding_for(byte_tokenizer(), [256]) == (257, START)  # so that they agree once the folder is saved
    model.config.pad_token_id = 257
    with torch.no_grad():
        assert float(model(input_ids=torch.from_numpy(ids).long()[None]).logits) == pytest.approx(found, abs=1e-5)


def test_padding_is_the_tokenizers_own_unless_rows_end_with_it():
    tokenizer = byte_tokenizer()
    assert padding_for(tokenizer, [10, 258]) == (256, PAD)
    tokenizer.pad_token = STOP
    assert padding_for(tokenizer, [10]) == (258, STOP)
    assert padding_for(tokenizer, [258]) == (256, PAD)
    with pytest.raises(BadInputError, match="no special token"):
        padding_for(tokenizer, [256, 257, 258])


def test_a_reward_model_is_no_language_model_and_the_other_way_round(tiny, tmp_path):
    load_reward_model(str(tiny), seed=0).save_pretrained(tmp_path / "rm")
    with pytest.raises(BadInputError, match="reward model"):
        load_model(str(tmp_path / "rm"))
    with pytest.raises(BadInputError, match="no reward model"):
        load_reward_model(str(tiny))
    assert not has_reward_head(str(tiny))
    assert not has_reward_head(str(tmp_path / "nothing"))


def test_a_folder_without_its_head_is_refused_and_not_given_a_new_one(tiny, tmp_path):
    whole, adapter = tmp_path / "whole", tmp_path / "adapter"
    load_reward_model(str(tiny), seed=0).save_pretrained(whole)
    attach(load_reward_model(str(tiny), seed=0), Lora(lora_r=2), "SEQ_CLS").save_pretrained(
        adapter, save_embedding_layers=False
    )
    for file in (whole / "model.safetensors", adapter / "adapter_model.safetensors"):
        kept = {name: value for name, value in load_file(file).items() if "score" not in name}
        save_file(kept, file, metadata={"format": "pt"})
        with pytest.raises(BadInputError, match="no reward head"):
            load_reward_model(str(file.parent))


def test_more_labels_than_one_are_refused(tiny, tmp_path):
    folder = tmp_path / "rm"
    load_reward_model(str(tiny), seed=0).save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"score.weight": torch.zeros(2, 32)}, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}, "num_labels": 2}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInputError, match="gives one number"):
        load_reward_model(str(folder))


def test_pickles_and_numbers_that_are_none_are_refused(tiny, tmp_path):
    folder = tmp_path / "rm"
    model = load_reward_model(str(tiny), seed=0)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    bad = tensors | {"score.weight": tensors["score.weight"] * float("nan")}
    save_file(bad, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInputError, match="not finite"):
        load_reward_model(str(folder))
    pickled = shutil.copytree(folder, tmp_path / "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save(tensors, pickled / "pytorch_model.bin")
    with pytest.raises(BadInputError, match="pickles, which are programs"):
        load_reward_model(str(pickled))


def test_a_conversation_and_its_row_are_the_same_tokens(renderer):
    whole = renderer.encode([*asked("hi"), *said("ho")]).ids
    assert renderer.tokenizer.decode(whole[-1:]) == "\n"  # of the template; the reward is read there, as TRL reads it


def test_an_exported_folder_is_whole_and_read_back(tiny, tmp_path):
    model = load_reward_for_training(str(tiny), Lora(lora_r=4), placement("cpu"), seed=5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 30)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    (tmp_path / "adapter" / "lpt.json").write_text('{"tainted": true, "run_id": "r"}')
    made = export_reward(str(tmp_path / "adapter"), tmp_path / "whole")
    told = made.body
    assert {path.stat().st_mode & 0o777 for path in made.path.iterdir()} == {
        (made.path / "lpt.json").stat().st_mode & 0o777
    }
    assert [file["path"] for file in told["outputs"]] == [str(path) for path in sorted(made.path.iterdir())]
    assert told["largest_difference"] < 1e-5
    assert told["padding"] == PAD
    assert told["tainted"]
    assert read_provenance(tmp_path / "whole")["run_id"] == "r"  # the mark goes along
    several = rows(4, 9)
    ours = rewards_of(ready(model.eval()), several, 2).tolist()
    assert rewards_of(ready(load_reward_model(str(tmp_path / "whole"))), several, 2).tolist() == pytest.approx(
        ours, abs=1e-5
    )
    with pytest.raises(UsageError, match="is taken"):
        export_reward(str(tmp_path / "adapter"), tmp_path / "whole")
    assert not list(tmp_path.glob(".tmp*"))
