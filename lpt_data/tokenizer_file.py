"""A tokenizer as a file: opened with the `tokenizers` library, which the data side needs for this alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests.errors import BadInputError

_MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer with its name and the sha256 of its JSON; `backend` is a `tokenizers.Tokenizer`."""

    name: str
    sha256: str
    backend: Any

    @property
    def vocabulary(self) -> int:
        """Number of ids, added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, texts: Sequence[str]) -> list[Any]:
        """Return the encodings (ids and character offsets) of texts, without the tokens a model adds around them."""
        return self.backend.encode_batch(list(texts), add_special_tokens=False)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        fast = getattr(self.backend, "encode_batch_fast", self.backend.encode_batch)
        return [len(encoding) for encoding in fast(list(texts), add_special_tokens=False)]


def wrap(name: str, backend: Any) -> TokenizerFile:
    """Return a `tokenizers.Tokenizer` under a name; truncation and padding that were saved with it are switched off,
    because they would cut the count.
    """
    backend.no_truncation()
    backend.no_padding()
    return TokenizerFile(name, hashlib.sha256(backend.to_str().encode()).hexdigest(), backend)


def open_tokenizer(path: str) -> TokenizerFile:
    """Open a tokenizer.json, or the folder of a model that holds one; BadInputError for anything else."""
    from tokenizers import Tokenizer

    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    if not file.is_file():
        raise BadInputError(
            "there is no tokenizer",
            seen=str(file),
            next="name a tokenizer.json, the folder of a model that holds one, or `tiny`",
        )
    if file.stat().st_size > _MAX_BYTES:
        raise BadInputError("a tokenizer of more than 256 MiB is none", seen=str(file), next="check the path")
    try:
        return wrap(path, Tokenizer.from_str(file.read_text("utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError("the tokenizer cannot be read", seen=f"{file}: {error}", next="check the file") from error
    except Exception as error:  # the library raises nothing narrower
        raise BadInputError(
            "the file is no tokenizer of the tokenizers library",
            seen=f"{file}: {str(error)[:200]}",
            next="name a tokenizer.json as transformers and tokenizers write it",
        ) from error
