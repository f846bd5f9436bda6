"""TRL's training templates, read out of the installed package, in the place of the templates that TRL knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from train_cases import chat, write_jsonl
from transformers import AutoTokenizer

from lpt_train import training_template as templates
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.models import load_tokenizer
from lpt_train.render import Renderer
from lpt_train.render_pairs import render_pairs
from lpt_train.sft import train
from lpt_train.tiny import make_tiny
from manifests.errors import LptError, RecordError

trl = pytest.importorskip("trl", reason="TRL, whose templates these are, is not installed")
FOLDER = Path(trl.__file__).parent / "chat_templates"
SPECIAL = [
    "<|user|>",
    "<|turn>",
    "<turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|return|>",
    "<|end|>",
    "<end_of_turn>",
    "<|eot_id|>",
    "<｜end▁of▁sentence｜>",
]
THOUGHTS = chat("a?", "<think>\nhm\n</think>\n\nfirst", "b?", "second")
PLAIN = chat("a?", "one", "b?", "two")


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def spoken(tiny):
    """A byte tokenizer with the chat template of a family."""

    def made(name: str, *, bos: str | None = None):
        tokenizer = load_tokenizer(str(tiny))
        tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
        tokenizer.bos_token = bos
        tokenizer.eos_token = {"gptoss": "<|return|>"}.get(name, "<|im_end|>")
        tokenizer.chat_template = text_of(name)
        return tokenizer

    return made


@pytest.fixture
def without_trl(monkeypatch):
    monkeypatch.setattr(templates.util, "find_spec", lambda name: None)


def runs(renderer: Renderer, messages) -> list[str]:
    """What is supervised, turn by turn."""
    encoded = renderer.encode(messages)
    kept = ["\0" if not counts else renderer.decode([i]) for i, counts in zip(*_columns(encoded), strict=True)]
    return [run for run in "".join(kept).split("\0") if run]


def _columns(encoded):
    return encoded.ids, encoded.loss_mask


@pytest.mark.parametrize(
    ("family", "thoughts", "plain"),
    [
        ("qwen3", [THOUGHTS[1]["content"] + "<|im_end|>", "second<|im_end|>"], ["one<|im_end|>", "two<|im_end|>"]),
        ("qwen3_5_think", ["hm\n</think>\n\nfirst<|im_end|>", "second<|im_end|>"], ["one<|im_end|>", "two<|im_end|>"]),
        ("qwen3_6", ["hm\n</think>\n\nfirst<|im_end|>", "second<|im_end|>"], ["one<|im_end|>", "two<|im_end|>"]),
        ("qwen3_8", [THOUGHTS[1]["content"] + "<|im_end|>", "second<|im_end|>"], ["one<|im_end|>", "two<|im_end|>"]),
        ("gptoss", [THOUGHTS[1]["content"], "second<|return|>"], ["one", "two<|return|>"]),
    ],
)
def test_every_turn_is_trained_and_nothing_that_was_inserted(spoken, family, thoughts, plain):
    renderer = Renderer(spoken(family))
    assert renderer.training is not None
    assert renderer.training.text == text_of(f"{family}_training")
    assert runs(renderer, THOUGHTS) == thoughts
    assert runs(renderer, PLAIN) == plain
    assert runs(renderer, PLAIN[:2]) == [plain[0].removesuffix("<|return|>") + ("<|return|>" * (family == "gptoss"))]


def test_without_trl_rows_are_refused_as_they_were_and_the_package_is_named(spoken, without_trl):
    renderer = Renderer(spoken("qwen3_5_think"))
    assert renderer.training is None
    with pytest.raises(RecordError) as error:
        renderer.encode(PLAIN)
    assert error.value.reason == "prompt_not_a_prefix"
    assert "pip install 'lpt[trl]'" in error.value.next
    assert len(renderer.notes) == 1
    assert "qwen3_5_think" in renderer.notes[0]
    assert runs(Renderer(spoken("qwen3")), THOUGHTS) == ["first<|im_end|>", "second<|im_end|>"]  # the thought is gone


def test_a_template_that_is_not_exactly_known_is_its_own(spoken, without_trl):
    tokenizer = spoken("qwen3_5_think")
    tokenizer.chat_template += "{# mine #}"
    renderer = Renderer(tokenizer)
    assert (renderer.training, renderer.notes) == (None, [])
    with pytest.raises(RecordError) as error:
        renderer.encode(PLAIN)
    assert "trl" not in error.value.next


def test_templates_are_told_by_their_exact_text():
    assert templates.training_template(text_of("qwen3")).name == "qwen3_training"
    assert templates.training_template(text_of("qwen3") + "\n") is None
    assert templates.training_template(text_of("qwen3_training")) is None
    assert templates.training_template(None) is None


def test_the_same_template_is_chosen_as_trl_chooses(spoken):
    from trl.chat_template_utils import get_training_chat_template

    for name in ("qwen3", "qwen3_5_think", "gptoss", "qwen2_5", "phi3", "gemma3"):
        tokenizer = spoken(name, bos="<bos>")
        assert templates.training_template(tokenizer.chat_template).text == get_training_chat_template(tokenizer), name


def test_the_families_that_are_named_without_trl_are_those_of_the_package():
    for name, start in templates._HELPED.items():
        assert templates.digest(text_of(name)).startswith(start), name
        assert (FOLDER / f"{name}_training.jinja").is_file()


def test_prompts_that_are_sampled_from_are_those_of_serving(spoken):
    tokenizer = spoken("qwen3")
    renderer, own = Renderer(tokenizer), Renderer(tokenizer, for_training=False)
    asked = THOUGHTS[:3]
    served = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert renderer.decode(renderer.encode_prompt(asked)) == served
    assert "hm" not in served
    assert own.encode_prompt(asked) == renderer.encode_prompt(asked) == own.encode_prompt(asked, encoded=True)
    trained = renderer.encode_prompt(asked, encoded=True)
    assert renderer.encode(THOUGHTS).ids[: len(trained)] == trained
    assert "hm" in renderer.decode(trained)
    assert (own.training, own.notes, own.template_sha256) == (None, [], templates.digest(text_of("qwen3")))


def test_pairs_share_a_prompt_with_history(spoken):
    record = {"prompt": THOUGHTS[:3], "chosen": THOUGHTS[3:], "rejected": chat("", "other")[1:]}
    renderer = Renderer(spoken("qwen3_5_think"))
    (pair,) = render_pairs([record], renderer, max_length=2048).pairs
    prompt = renderer.encode_prompt(THOUGHTS[:3], encoded=True)
    for row, said in ((pair.chosen, "second"), (pair.rejected, "other")):
        assert row.ids[: len(prompt)].tolist() == prompt
        assert renderer.decode(row.ids[row.loss_mask.astype(bool)]) == said + "<|im_end|>"


def test_history_that_serving_writes_otherwise_is_said_and_equal_history_is_not(spoken):
    notes = Renderer(spoken("qwen3")).notes
    assert "qwen3_training of trl " in notes[0]
    assert templates.digest(text_of("qwen3_training"))[:16] in notes[0]
    assert "another history than serving will" in notes[1]
    assert len(Renderer(spoken("qwen2_5")).notes) == 1
    assert (len(Renderer(spoken("qwen3")).notes_for("sft")), Renderer(spoken("qwen3")).notes_for("text")) == (2, [])


def test_a_training_template_that_opens_a_reply_otherwise_is_not_used(spoken, monkeypatch):
    other = templates.TrainingTemplate("x_training", text_of("qwen3_5_think_training"), "trl 9")
    monkeypatch.setattr("lpt_train.training_template.training_template", lambda template: other)
    renderer = Renderer(spoken("qwen3"))
    assert renderer.training is None
    assert renderer.notes == [
        "x_training of trl 9 opens a reply otherwise than the model's own chat template, so it is not used"
    ]


@pytest.mark.parametrize("content", [None, "", "I look."])
def test_calls_that_a_template_writes_before_the_content_are_supervised(spoken, content):
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
    renderer = Renderer(spoken("gemma4_v2"))
    messages = [*PLAIN[:1], {"role": "assistant", "content": content, "tool_calls": [call]}]
    written = '<|tool_call>call:look{at:<|"|>it<|"|>}<tool_call|>'
    assert runs(renderer, messages) == [f"{written}{content or ''}<turn|>"]


def test_a_training_template_that_writes_results_of_calls_otherwise_is_not_used(spoken):
    renderer = Renderer(spoken("cohere2"))
    assert renderer.training is None
    (note,) = renderer.notes
    assert note.startswith("cohere2_training of trl ")
    assert note.endswith("writes what follows a tool call otherwise than the model's own, so it is not used")
    assert "chat template" in Renderer(spoken("cohere")).notes[0]  # takes no such results, and is used


def test_the_stop_of_a_template_that_leaves_the_last_reply_open_is_that_of_the_training_template(spoken, monkeypatch):
    own = Renderer(spoken("glm4moe"), for_training=False)
    assert (own.training, own.notes) == (None, [])
    assert {own.decode([i]) for i in own.stop_ids} == {"<|user|>", "<|im_end|>"}
    assert own.stop_ids == Renderer(spoken("glm4moe")).stop_ids
    served = spoken("glm4moe").apply_chat_template(THOUGHTS[:3], tokenize=False, add_generation_prompt=True)
    assert own.decode(own.encode_prompt(THOUGHTS[:3])) == served
    monkeypatch.setattr(templates.util, "find_spec", lambda name: None)
    with pytest.raises(LptError, match="never stop") as error:
        Renderer(spoken("glm4moe"), for_training=False)
    assert "pip install 'lpt[trl]'" in error.value.next


def test_a_folder_named_trl_that_is_no_installed_package_has_no_templates(spoken, monkeypatch):
    def absent(name: str) -> str:
        raise templates.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(templates.metadata, "version", absent)
    renderer = Renderer(spoken("qwen3"))
    assert renderer.training is None
    assert "pip install 'lpt[trl]'" in renderer.notes[0]


def test_markers_alone_change_no_token(spoken, monkeypatch):
    compared = 0
    for path in sorted(FOLDER.glob("*_training.jinja")):
        name = path.stem.removesuffix("_training")
        rows = []
        for for_training in (True, False):
            try:
                renderer = Renderer(spoken(name, bos="<|im_start|>"), for_training=for_training)
                rows.append([renderer.encode(messages) for messages in (PLAIN[:2], THOUGHTS[:2])])
            except Exception:  # a family whose special tokens the tokenizer lacks, or that opens a think-block
                break
        if len(rows) == 2:
            assert rows[0] == rows[1], name
            compared += 1
    assert compared >= 10


def test_a_run_says_what_rendered_it_and_keeps_the_models_template(spoken, tmp_path, monkeypatch):
    start = make_tiny(tmp_path / "start", hidden=32, layers=2, heads=2, seed=0)
    tokenizer = load_tokenizer(str(start))
    tokenizer.chat_template = text_of("qwen3")
    tokenizer.save_pretrained(start)
    split = load_unadmitted(write_jsonl(tmp_path / "c.jsonl", [{"messages": THOUGHTS}, {"messages": PLAIN}]), "sft")
    options = {"model": str(start), "run.max_steps": 1, "run.device": "cpu", "max_length": 2048}
    result = train(from_mapping(SFTConfig, options), split=split, out=tmp_path / "run")
    told = result.body["tokenizer"]
    assert told["training_template"] == "trl/qwen3_training"
    assert told["template_sha256"] == templates.digest(text_of("qwen3_training"))
    assert any("qwen3_training of trl" in note for note in result.notes)
    saved = AutoTokenizer.from_pretrained(result.body["checkpoint"]["path"])
    assert saved.chat_template == text_of("qwen3")

    monkeypatch.setattr(templates.util, "find_spec", lambda name: None)
    own = train(from_mapping(SFTConfig, options), split=split, out=tmp_path / "own")
    assert own.body["tokenizer"]["fingerprint"] == told["fingerprint"]
    assert own.body["tokenizer"]["template_sha256"] == templates.digest(text_of("qwen3"))
    assert own.body["tokenized_id"] != result.body["tokenized_id"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["tokenizer"] == told
