"""TRL's training template for a chat template that TRL knows, read out of the installed package.

A model's own template may write a reply otherwise once another message follows it, so that no prompt is a prefix of the
conversation. TRL ships such templates as they are, and beside some of them one that keeps what it has written and marks
what the model says. As TRL does, a template is told by its exact text. Nothing of TRL is imported or copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from manifests.errors import RecordError

_TRAINING = "_training.jinja"
# The first digits of the sha256 of the templates of TRL 1.16 whose training template writes other text, by family: what
# can be said where TRL is not installed. The training templates of the other families add markers alone.
_HELPED = {
    "deepseek_r1_distill": "56a1447ad31926fd",
    "glm4moe": "44f815868bf02fa4",
    "qwen3": "a55ee1b1660128b7",
    "qwen3_5_nothink": "273d8e0e683b8850",
    "qwen3_5_think": "a4aee8afcf2e0711",
    "qwen3_6": "e84f32a23fdda276",
}
PING = {"role": "user", "content": "ping"}
PONG = {"role": "assistant", "content": "pong"}
_THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\npong"}
_CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
_CALLED = {"role": "assistant", "content": "pong", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "look", "content": "42"}


@dataclass(frozen=True)
class TrainingTemplate:
    """The text of a training template, its `name` and the `package` that it was read from."""

    name: str
    text: str
    package: str

    @property
    def sha256(self) -> str:
        """The digest of its text."""
        return digest(self.text)


def training_template(template: str | None) -> TrainingTemplate | None:
    """The training template for exactly this chat template; None where TRL has none or is not installed."""
    folder = _folder()
    if template is None or folder is None:
        return None
    for path in sorted(folder.glob(f"*{_TRAINING}")):
        stock = path.with_name(path.name.removesuffix(_TRAINING) + ".jinja")
        if stock.is_file() and stock.read_text(encoding="utf-8") == template:
            return TrainingTemplate(path.stem, path.read_text(encoding="utf-8"), f"trl {_version()}")
    return None


def choose(template: str | None, prompt: Callable[..., str]) -> tuple[TrainingTemplate | None, list[str]]:
    """The training template where it opens every reply as the model's own does, and what a run should say of that.

    `prompt(*messages, template=)` is the text that asks for the next reply; it raises `RecordError` where a template
    refuses the messages.
    """
    found = training_template(template)
    if found is None:
        return None, [advice] if (advice := missing(template)) else []
    named = f"{found.name} of {found.package}"

    def both(*messages: dict[str, Any]) -> tuple[str, str]:
        return prompt(*messages, template=template), prompt(*messages, template=found.text)

    def same(*messages: dict[str, Any]) -> bool:
        own, trained = both(*messages)
        return own == trained

    if not same(PING):
        return None, [f"{named} opens a reply otherwise than the model's own chat template, so it is not used"]
    try:
        own, trained = (text.rpartition("pong")[2] for text in both(PING, _CALLED, _RESULT))
    except RecordError:  # a template that takes no results of calls
        own = trained = ""
    if own != trained:
        return None, [f"{named} writes what follows a tool call otherwise than the model's own, so it is not used"]
    notes = [
        f"conversations are rendered by TRL's training template, {named} (sha256 {found.sha256[:16]}…); the model "
        "keeps its own chat template"
    ]
    if not (same(PING, PONG, PING) and same(PING, _THOUGHT, PING)):
        notes.append(
            "the model's own chat template writes earlier replies otherwise than the training template, such as their "
            "think-blocks: from the second reply of a conversation on, training shows the model another history than "
            "serving will"
        )
    return found, notes


def missing(template: str | None) -> str:
    """What to do about a row that a chat template refuses where TRL would help and is not installed; else ""."""
    if template is None or _folder() is not None:
        return ""
    family = next((name for name, start in _HELPED.items() if digest(template).startswith(start)), None)
    return f"pip install 'lpt[trl]': TRL has a training template for this chat template ({family})" if family else ""


def digest(template: str) -> str:
    """The sha256 of a template's text."""
    return hashlib.sha256(template.encode()).hexdigest()


def _folder() -> Path | None:
    found = util.find_spec("trl") if _version() else None
    places = [Path(place) / "chat_templates" for place in (found.submodule_search_locations or ())] if found else []
    return next((place for place in places if place.is_dir()), None)


def _version() -> str | None:
    try:
        return metadata.version("trl")
    except metadata.PackageNotFoundError:  # a folder of that name is no installed package
        return None
