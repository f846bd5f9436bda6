"""TRL's training template for a chat template that TRL knows, read out of the installed package.

A model's own template may write a reply otherwise once another message follows it, so that no prompt is a prefix of the
conversation. TRL ships such templates as they are, and beside some of them one that keeps what it has written and marks
what the model says. As TRL does, a template is told by its exact text. Nothing of TRL is imported or copied.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

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
            package = f"trl {metadata.version('trl')}"
            return TrainingTemplate(path.stem, path.read_text(encoding="utf-8"), package)
    return None


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
    found = util.find_spec("trl")
    places = [Path(place) / "chat_templates" for place in (found.submodule_search_locations or ())] if found else []
    return next((place for place in places if place.is_dir()), None)
