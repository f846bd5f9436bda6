"""Messages to token ids and a loss mask, by position, through the tokenizer's own chat template.

A conversation is rendered and tokenised once. For each assistant turn, the prompt that inference would give the model
is rendered too and must be a prefix of the training ids, token for token; so what is trained is what will be sampled.
The turn counts from the end of that prompt to its stop token, inclusive; what the template adds after it does not,
nor what it inserts before the content, such as a think-block. `{% generation %}` markers, where a template has them,
narrow that further. Nothing is decided by comparing ids with the padding id.

Where TRL has a training template for the tokenizer's, conversations are rendered by that; the prompts that a model is
sampled from never are, because it is served with its own.

Does not truncate (see `packing.fit`), and does not repair a template: what cannot be derived is refused with a reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from lpt_train.training_template import PING, PONG, TrainingTemplate, choose, digest, missing
from manifests.errors import BadInputError, LptError, RecordError

_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PROBES = (
    "The quick brown fox.", "  two  spaces\n\n\ttab", "naïve café — “quotes”", "1234567890 3.14 -5", "日本語 中文 ไทย",
    "🙂👩‍👩‍👧", "def f(x):\n    return x+1\r\n", "e\u0301 ﬁ Ａ", "<b>tag</b> {{x}} \\n",
)  # fmt: skip


@dataclass(frozen=True)
class Encoded:
    """A rendered conversation: token `ids` and a `loss_mask` of the same length, 1 where a token counts."""

    ids: list[int]
    loss_mask: list[int]


class Renderer:
    """Renders for one tokenizer. `max_length` is only carried for those who report it; nothing is cut here.

    `template` is what the model is served with, `training` TRL's training template in its place (None: the same);
    `template_sha256` is that of the one which renders conversations. `stop_ids` end a turn when sampling;
    `history_ends` close one only where another message follows it, and are never a target.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, max_length: int | None = None, for_training: bool = True
    ) -> None:
        if not tokenizer.is_fast:
            raise BadInputError("rendering needs a fast tokenizer", seen=type(tokenizer).__name__)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.name = str(tokenizer.name_or_path)
        self.template: str | None = _template(tokenizer)
        found, notes = choose(self.template, lambda *asked, template: self._prompt_text(list(asked), None, template))
        self.training = found if for_training else None
        self.notes = notes if for_training else []  # what a run should say of its rendering
        self._template = self.training.text if self.training else self.template
        self.template_sha256 = digest(self._template or "")
        self.fingerprint = fingerprint(tokenizer)
        self._has_markers = bool(self._template and _MARKER.search(self._template))
        special = [token for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._special_ids = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_text = sorted({token.content for token in special} | set(tokenizer.all_special_tokens))
        # A special token that matches after normalisation cannot be found by looking for its text.
        self._must_encode_content = any(token.normalized for token in special)
        self.stop_ids = self._find_stop_ids(found) if self.template else frozenset()
        self.history_ends = self._find_history_ends() if self.template else frozenset()

    def encode(self, messages: Sequence[Mapping[str, Any]], tools: str | Sequence[Any] | None = None) -> Encoded:
        """The ids of a conversation and the mask of its assistant turns.

        Raises `RecordError` with reason `special_token_in_content`, `template_refused`, `prompt_not_a_prefix`,
        `no_stop_token`, `two_start_tokens` or `no_supervised_token`.
        """
        plain, plain_tools = self._prepare(messages, tools)
        text, spans = self._render(plain, plain_tools, markers=self._has_markers)
        turns = [i for i, message in enumerate(plain) if message.get("role") == "assistant"]
        prompts = [self._prompt_text(plain[:i], plain_tools) for i in turns]
        batch = self.tokenizer([text, *prompts], add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = batch["input_ids"][0], batch["offset_mapping"][0]
        self._one_start_token(ids)
        starts = []
        for turn, prompt, prompt_ids in zip(turns, prompts, batch["input_ids"][1:], strict=True):
            if ids[: len(prompt_ids)] != prompt_ids:
                raise _not_a_prefix(turn, merged=text.startswith(prompt), advice=missing(self.template))
            starts.append(len(prompt_ids))
        mask = [0] * len(ids)
        for turn, start, end in zip(turns, starts, [*starts, len(ids)][1:], strict=True):
            stop = self._stop_of_turn(ids, start, end, turn, called=bool(plain[turn].get("tool_calls")))
            begin = self._after_inserted(text, offsets, (start, stop), turn, plain, plain_tools)
            marked = [k for k in range(start, stop) if spans is None or _overlaps(offsets[k], spans)]
            inside = [k for k in marked if k >= begin]
            if ids[stop] in self.stop_ids and (marked or spans is None or _overlaps(offsets[stop], spans)):
                inside.append(stop)
            for k in inside:
                mask[k] = 1
        if not any(mask):
            raise RecordError(
                "no token of this conversation would be trained on", reason="no_supervised_token", field="messages",
                seen=[message.get("role") for message in plain], next="remove rows without an assistant turn",
            )  # fmt: skip
        return Encoded(ids, mask)

    def encode_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: str | Sequence[Any] | None = None, *, encoded: bool = False
    ) -> list[int]:
        """The ids that inference gives the model: the conversation and the opening of an assistant turn.

        With `encoded`, as they stand in a conversation that `encode` made, which a training template may have written.
        """
        plain, plain_tools = self._prepare(messages, tools)
        template = self._template if encoded else self.template
        ids = self.tokenizer(self._prompt_text(plain, plain_tools, template), add_special_tokens=False)["input_ids"]
        self._one_start_token(ids)
        return ids

    def encode_text(self, text: str) -> Encoded:
        """The ids of a plain document between the tokenizer's start and end tokens; every token counts but the
        first."""
        self._refuse_special_tokens(text, "text")
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if self.tokenizer.bos_token_id is not None:
            ids.insert(0, self.tokenizer.bos_token_id)
        if self.tokenizer.eos_token_id is not None:
            ids.append(self.tokenizer.eos_token_id)
        if len(ids) < 2:
            raise RecordError(
                "no token of this text would be trained on", reason="no_supervised_token", field="text", seen=text
            )
        return Encoded(ids, [0] + [1] * (len(ids) - 1))

    def decode(self, ids: Sequence[int]) -> str:
        """The text that ids spell, special tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _prepare(self, messages: Any, tools: Any) -> tuple[list[dict[str, Any]], list[Any] | None]:
        if self.template is None:
            raise BadInputError(
                f"the tokenizer {self.name} has no chat template", seen="chat_template is absent",
                next="use the instruct version of the model, or a folder with chat_template.jinja",
            )  # fmt: skip
        plain = [_for_template(message) for message in messages]
        plain_tools = json.loads(tools) if isinstance(tools, str) else (list(tools) if tools else None)
        self._refuse_special_tokens(plain, "messages")
        self._refuse_special_tokens(plain_tools, "tools")
        return plain, plain_tools or None

    def notes_for(self, kind: str) -> list[str]:
        """What is to be said of rendering records of a kind; texts have no template."""
        return [] if kind == "text" else list(self.notes)

    def told(self) -> dict[str, Any]:
        """What a run records of the tokenizer and of the template that rendered its conversations."""
        return {"fingerprint": self.fingerprint, **self.rendering()}

    def rendering(self) -> dict[str, str]:
        """Which template renders conversations."""
        read = {"training_template": f"trl/{self.training.name}"} if self.training else {}
        return {"template_sha256": self.template_sha256, **read}

    def identity(self) -> dict[str, str]:
        """What tells apart the ids of conversations; the fingerprint holds the tokenizer's own template."""
        trained = {"template": self.template_sha256} if self.training else {}
        return {"tokenizer": self.fingerprint, **trained}

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        *,
        template: str | None = None,
        markers: bool = False,
        prompt: bool = False,
    ) -> tuple[str, list[tuple[int, int]] | None]:
        """The text of a conversation, and the character spans that the template marks as generated."""
        template = template or self._template
        if template is None or not messages:
            raise RecordError("a conversation needs a message", reason="no_message", field="messages")
        try:
            options: dict[str, Any] = dict(self.tokenizer.special_tokens_map)
            rendered: Any = render_jinja_template(
                [messages], tools=tools, chat_template=template, return_assistant_tokens_mask=markers,
                add_generation_prompt=prompt, **options,
            )  # fmt: skip
        except Exception as error:  # a template is a program; what it raises is its own choice
            raise RecordError(
                "the chat template refuses this conversation", reason="template_refused", field="messages",
                seen=f"{type(error).__name__}: {error}"[:300], next="look at the roles and their order",
            ) from error  # fmt: skip
        texts, spans = rendered
        return texts[0], [(int(low), int(high)) for low, high in spans[0]] if markers else None

    def _prompt_text(self, messages: list[dict[str, Any]], tools: list[Any] | None, template: str | None = None) -> str:
        if not messages:
            raise RecordError(
                "the conversation starts with an assistant turn, so nothing asks for it", reason="no_prompt",
                field="messages[0]", next="put a user message before it",
            )  # fmt: skip
        return self._render(messages, tools, template=template, prompt=True)[0]

    def _stop_of_turn(self, ids: list[int], start: int, end: int, turn: int, *, called: bool) -> int:
        # A turn with calls may be several messages, of which `history_ends` would close the first.
        closing = self.stop_ids if called else self.stop_ids | self.history_ends
        for k in range(start, end):
            if ids[k] in closing:
                return k
        raise RecordError(
            "an assistant turn is not closed by a stop token", reason="no_stop_token", field=f"messages[{turn}]",
            seen=self.tokenizer.decode(ids[start : min(end, start + 40)]), next="use a template that closes each turn",
        )  # fmt: skip

    def _after_inserted(
        self,
        text: str,
        offsets: Sequence[tuple[int, int]],
        tokens: tuple[int, int],
        turn: int,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
    ) -> int:
        """The first of the `tokens` (start, stop) of a turn behind what the template wrote before its content."""
        start, stop = tokens
        if start >= stop:
            return start
        low, high = offsets[start][0], offsets[stop][0]
        content, called = messages[turn].get("content"), bool(messages[turn].get("tool_calls"))
        if not isinstance(content, str):
            return start
        if (said := content.strip()) and not called:
            tail = text[low:high].rstrip()
            # The content ends the turn; what was inserted may spell the same words before it.
            found = low + len(tail) - len(said) if tail.endswith(said) else text.find(said, low, high)
        else:
            # Calls may stand before the content: those are the reply's own, so its place is that in a turn without any.
            found = self._before_any_content(text, low, turn, messages, tools)
            if said not in text[found:high]:  # what looks inserted is how the content itself begins
                return start
        if found <= low or not text[low:found].strip():
            return start
        return next((k for k in range(start, stop) if max(offsets[k][1], offsets[k][0] + 1) > found), stop)

    def _before_any_content(
        self, text: str, low: int, turn: int, messages: list[dict[str, Any]], tools: list[Any] | None
    ) -> int:
        """The end of what a turn begins with, behind `low`, whatever its content: two contents show what differs."""
        for later in (messages[turn + 1 :], []):  # a template may take no result without its call
            try:
                one, other = (
                    self._render([*messages[:turn], {"role": "assistant", "content": said}, *later], tools)[0]
                    for said in ("pong", "42")
                )
            except RecordError:
                continue
            found = len(commonprefix([one, other]))
            if found > low and text.startswith(one[:found]):
                return found
        return low

    def _one_start_token(self, ids: Sequence[int]) -> None:
        start = self.tokenizer.bos_token_id
        if start is not None and any(a == b == start for a, b in zip(ids, ids[1:], strict=False)):
            raise RecordError(
                "the rendering has two start tokens in a row", reason="two_start_tokens", field="messages",
                seen=self.tokenizer.bos_token, next="take the start token out of the content or the template",
            )  # fmt: skip

    def _refuse_special_tokens(self, value: Any, field: str) -> None:
        for text in _strings(value):
            found = next((token for token in self._special_text if token in text), None)
            if found is None and self._must_encode_content:
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                found = next((str(self.tokenizer.decode([i])) for i in ids if i in self._special_ids), None)
            if found is not None:
                raise RecordError(
                    "the content spells a special token, which would become one", reason="special_token_in_content",
                    field=field, seen=found, next="remove such rows, or write the token differently in the content",
                )  # fmt: skip

    def _find_stop_ids(self, helping: TrainingTemplate | None) -> frozenset[int]:
        """What closes an assistant turn: the special token that the template puts after a probe's content.

        A template may leave the last reply open, for inference alone; what closes it is then that of the training
        template which is `helping`.
        """
        for template in (self._template, *([helping.text] if helping else [])):
            _, said, tail = self._render([PING, PONG], None, template=template)[0].rpartition("pong")
            if said and (stops := self._first_special(tail)):
                break
        else:
            raise LptError(
                "the chat template does not close an assistant turn with a stop token, so the model would never stop",
                seen=f"after the content it writes {tail!r}",
                next=missing(self.template)
                or "use a tokenizer whose template writes its end token after each assistant message",
            )
        end = self.tokenizer.eos_token_id
        return stops if end is None else stops | {end}

    def _find_history_ends(self) -> frozenset[int]:
        """What closes a turn in front of another message where that is no stop token, but closes any message."""
        try:
            asked, answered = self._render([PING, PONG, PING], None)[0].split("pong", 1)
        except (RecordError, ValueError):  # a template that takes no such conversation, or drops the reply
            return frozenset()
        after_any = self._first_special(asked.partition("ping")[2])
        return (self._first_special(answered) & after_any) - self.stop_ids

    def _first_special(self, text: str) -> frozenset[int]:
        """The first special token of a text, if it has one."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return frozenset([i for i in ids if i in self._special_ids][:1])


def _not_a_prefix(turn: int, *, merged: bool, advice: str) -> RecordError:
    return RecordError(
        "the prompt of an assistant turn is not a prefix of the rendered conversation", reason="prompt_not_a_prefix",
        field=f"messages[{turn}]",
        seen="the answer's first characters become one token with the end of the prompt: it merges them" if merged
        else "the chat template renders the history differently once the answer is there",
        next="remove blanks at the start of the answer" if merged
        else advice or "keep only the last assistant turn as the answer, or use a template that keeps the history",
    )  # fmt: skip


def fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """sha256 of what a tokenizer does: vocabulary, merges, special tokens, chat template and the ids of probe strings.

    Names, paths and library versions are no part of it.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in backend["model"].get("merges") or []]
    content = {
        "vocabulary": sorted(tokenizer.get_vocab().items()),
        "merges": merges,
        "special": {name: str(value) for name, value in sorted(tokenizer.special_tokens_map.items())},
        "added": sorted(
            (index, token.content, token.special, token.lstrip, token.rstrip, token.single_word, token.normalized)
            for index, token in tokenizer.added_tokens_decoder.items()
        ),
        "template": _template(tokenizer),
        "probes": [tokenizer(probe, add_special_tokens=False)["input_ids"] for probe in _PROBES],
    }
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(b"lpt-tokenizer/1\0" + text.encode()).hexdigest()


def _template(tokenizer: PreTrainedTokenizerFast) -> str | None:
    return tokenizer.get_chat_template() if tokenizer.chat_template else None


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """A canonical message as templates expect it: nulls dropped, call arguments parsed from their JSON text."""
    plain = _without_nulls(message)
    for call in plain.get("tool_calls") or []:
        arguments = call.get("function", {}).get("arguments")
        if isinstance(arguments, str):
            try:
                call["function"]["arguments"] = json.loads(arguments)
            except ValueError as error:
                raise RecordError(
                    "the arguments of a tool call are not JSON", reason="arguments_not_json",
                    field="messages.tool_calls.function.arguments", seen=arguments,
                ) from error  # fmt: skip
    if plain.get("role") == "assistant" and "content" not in plain and plain.get("tool_calls"):
        plain["content"] = ""
    return plain


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(inner) for inner in value]
    return value


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.items() for part in item for text in _strings(part)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _strings(item)]
    return []


def _overlaps(offset: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    start, end = offset
    return any(start < high and max(end, start + 1) > low for low, high in spans)
