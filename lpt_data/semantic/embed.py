"""Texts into unit vectors: the only module of the data side, with `neighbours_gpu` and `perplexity`, that loads torch.

Speed comes from three things: texts of one length lie in one batch, so nearly nothing is padding; a batch holds a
number of tokens and not of rows; and the next chunk is tokenised, in threads without the GIL, while the model works on
this one.

A vector must not depend on what else is in the batch. On a GPU every batch of one padded length has one shape (the last
one is filled up with empty rows), so each row goes through the same kernels with the same order of sums. On a CPU sums
of fp32 differ by about 1e-7 with the shape, which the rounding to float16 swallows nearly always; scores may differ by
1e-5 then, and pairs so close to a threshold are listed as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from lpt_data.semantic.models import Model, missing
from manifests.errors import BadInputError

CHARS_A_TOKEN = 64  # a text is cut at this many characters for each token that is read: a row of 100 MB is no cost
CHARS_AT_MOST = 1 << 20  # of a text where the model reads all tokens
TOKENS_GPU, TOKENS_CPU = 32_768, 4_096  # in a batch
CHUNK_GPU, CHUNK_CPU = 65_536, 1_024  # texts tokenised at once; a run that is killed loses the chunks in hand
BYTES_GPU, BYTES_CPU = 64 << 20, 2 << 20  # of text tokenised at once: a token takes 100 bytes and more
_CHUNK_VALUES = 1 << 20  # numbers of the vectors of a chunk, which are float32 at first on a CPU
# Bytes that a process takes for a model beside its weights, measured on a CPU: libraries, and what is in hand at once.
_FOOTPRINT = {"encoder": 620 << 20, "library": 900 << 20, "static": 96 << 20}
_FOOTPRINT_GPU = 4 << 30  # more for the libraries of a GPU: a guess on the safe side, not measured
_STEP = 8  # padded lengths are multiples of it


@dataclass(frozen=True)
class Encoded:
    """Vectors of a chunk of texts."""

    vectors: np.ndarray  # float16 [n, d], length 1 before rounding
    truncated: np.ndarray  # bool [n]: the text is longer than what the model reads


Encode = Callable[[Iterable[Sequence[str]]], Iterator[Encoded]]


@dataclass(frozen=True)
class Embedder:
    """A loaded model; `encode` takes chunks of texts and gives one `Encoded` for each, in order."""

    model: Model
    device: str  # cpu | cuda
    precision: str  # of the arithmetic: fp32 | fp16
    encode: Encode
    width: int = 0  # numbers of a vector, 0 where it is not known

    @property
    def chunk(self) -> int:
        """Texts in a chunk: a GPU wants many of one length, a CPU is slow enough to lose few."""
        if self.device == "cuda":
            return CHUNK_GPU
        most = CHUNK_GPU if self.model.kind == "static" else CHUNK_CPU
        return max(1, min(most, _CHUNK_VALUES // max(self.width, 1)))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of text in a chunk, each text as far as it is read."""
        return BYTES_GPU if self.device == "cuda" else BYTES_CPU

    @property
    def text_bytes(self) -> int:
        """Bytes of UTF-8 of a text that hold all that is read of it, and a character more."""
        return 4 * (_most_chars(self.model.max_tokens) + 1)

    @property
    def digest(self) -> str:
        """Identity of the vectors: model and arithmetic, since fp16 gives other vectors than fp32."""
        return f"{self.model.digest}-{self.precision}"

    def told(self) -> dict[str, Any]:
        """Return what goes into records."""
        return {**self.model.told(), "precision": self.precision, "device": self.device}


def place_for(model: Model, device: str | None = None) -> tuple[str, str]:
    """Return (device, precision) that a model will run with; a GPU is used when there is one."""
    if model.kind == "static":
        return "cpu", "fp32"
    try:
        import torch
    except ImportError:
        raise missing("an embedder needs torch, which is not installed", seen=model.name) from None
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return chosen, "fp16" if chosen == "cuda" and model.kind == "encoder" else "fp32"


def open_embedder(model: Model, device: str | None = None, *, tokens_a_batch: int | None = None) -> Embedder:
    """Load a model; BadInputError for packages that are missing and for weights that do not load."""
    device, precision = place_for(model, device)
    try:
        encode, width = _KINDS[model.kind](model, device, precision, tokens_a_batch)
    except ImportError as error:
        raise missing(f"the embedder needs a package that is not installed: {error.name}", seen=model.name) from error
    except Exception as error:  # four libraries with errors of their own
        raise BadInputError(
            "the embedder cannot be loaded",
            seen=f"{model.folder}: {(str(error).splitlines() or [type(error).__name__])[0][:300]}",
            next="fetch the model again, or --embedder minilm; a model that needs code of its own is not run",
        ) from error
    return Embedder(model, device, precision, encode, width)


def footprint(model: Model, device: str) -> int:
    """Bytes that loading and running a model takes of the memory of this machine, a little too many."""
    return _FOOTPRINT[model.kind] + 2 * model.weights + (_FOOTPRINT_GPU if device == "cuda" else 0)


@dataclass(frozen=True)
class _Tokens:
    ids: np.ndarray  # int32, all texts on end
    starts: np.ndarray  # int64 [n + 1]
    truncated: np.ndarray  # bool [n]


def _encoder(model: Model, device: str, precision: str, tokens_a_batch: int | None) -> tuple[Encode, int]:
    """A transformer whose token vectors are averaged, or whose first one counts."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    tokenizer.no_padding()
    limit = model.max_tokens
    if limit is not None:
        tokenizer.enable_truncation(limit)
    network, read = AutoModel.from_pretrained(
        model.folder,
        trust_remote_code=False,
        use_safetensors=True,
        local_files_only=True,
        dtype=torch.float16 if precision == "fp16" else torch.float32,
        attn_implementation="sdpa",
        output_loading_info=True,
    )
    # Transformers draws what is missing by chance; the pooler is not asked for anything here.
    if missing_weights := sorted(name for name in read["missing_keys"] if not name.startswith("pooler.")):
        raise ValueError(f"weights are missing: {', '.join(missing_weights[:4])}")
    network = network.eval().to(device)
    budget = tokens_a_batch or (TOKENS_GPU if device == "cuda" else TOKENS_CPU)

    def tokenise(texts: Sequence[str]) -> _Tokens:
        cut, short = _cut(texts, limit)
        said = [text.lower() for text in cut] if model.lower else cut
        encodings = tokenizer.encode_batch_fast(said)
        lists = [encoding.ids for encoding in encodings]
        sizes = np.fromiter(map(len, lists), np.int64, len(lists))
        full = np.flatnonzero(sizes == limit) if limit is not None else ()
        for i in full:
            short[i] |= bool(encodings[i].overflowing)
        ids = np.fromiter(chain.from_iterable(lists), np.int32, int(sizes.sum()))
        return _Tokens(ids, np.concatenate([[0], np.cumsum(sizes)]), short)

    def forward(tokens: _Tokens) -> Encoded:
        with torch.inference_mode():
            return _forward(network, tokens, device, budget, model.pooling, fill=device == "cuda")

    def encode(chunks: Iterable[Sequence[str]]) -> Iterator[Encoded]:
        with ThreadPoolExecutor(1) as pool:
            waiting = None
            for chunk in chunks:
                following = pool.submit(tokenise, chunk)
                if waiting is not None:
                    yield forward(waiting.result())
                waiting = following
            if waiting is not None:
                yield forward(waiting.result())

    return encode, int(getattr(network.config, "hidden_size", 0))


def _forward(network: Any, tokens: _Tokens, device: str, budget: int, pooling: str, *, fill: bool) -> Encoded:
    """Run the tokens of a chunk through the network, texts of like length together; one copy each way."""
    import torch

    sizes = np.diff(tokens.starts)
    order = np.argsort(sizes, kind="stable")
    padded = -(-np.maximum(sizes[order], 1) // _STEP) * _STEP
    ids = torch.from_numpy(np.append(tokens.ids, np.int32(0))).to(device).long()
    starts = torch.from_numpy(tokens.starts[:-1][order]).to(device)
    lengths = torch.from_numpy(sizes[order]).to(device)
    out = None
    at = 0
    while at < len(order):
        width = int(padded[at])
        most = max(1, budget // width)
        end = min(int(np.searchsorted(padded, width, side="right")), at + most)
        rows = end - at
        # One row more is always empty: a mask without any padding would be dropped, and other kernels chosen.
        wanted = most + 1 if fill else rows
        columns = torch.arange(width, device=device)
        some, length = starts[at:end], lengths[at:end]
        if wanted > rows:
            some = torch.nn.functional.pad(some, (0, wanted - rows))
            length = torch.nn.functional.pad(length, (0, wanted - rows), value=1)
        mask = columns[None, :] < length[:, None]
        batch = ids[torch.where(mask, some[:, None] + columns, len(tokens.ids))]
        hidden = network(input_ids=batch, attention_mask=mask.long()).last_hidden_state.float()
        if pooling == "cls":
            pooled = hidden[:, 0]
        else:
            pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        unit = torch.nn.functional.normalize(pooled, dim=1)[:rows]
        if out is None:
            out = torch.empty((len(order), unit.shape[1]), dtype=torch.float16, device=device)
        out[at:end] = unit.half()
        at = end
    vectors = np.empty((len(order), out.shape[1] if out is not None else 0), np.float16)
    if out is not None:
        vectors[order] = out.cpu().numpy()
    return Encoded(vectors, tokens.truncated)


def _static(model: Model, device: str, precision: str, tokens_a_batch: int | None) -> tuple[Encode, int]:
    """A table of token vectors, averaged: fast on a CPU, reads whole texts, knows no order of words."""
    from model2vec import StaticModel

    static = StaticModel.from_pretrained(model.folder, max_length=None, force_download=False)

    def encode(chunks: Iterable[Sequence[str]]) -> Iterator[Encoded]:
        for texts in chunks:
            cut, short = _cut(texts, None)
            vectors = static.encode(cut, max_length=None, use_multiprocessing=False)
            yield Encoded(_unit(np.asarray(vectors)), short)

    return encode, int(static.dim)


def _library(model: Model, device: str, precision: str, tokens_a_batch: int | None) -> tuple[Encode, int]:
    """Any other chain of modules, by sentence-transformers itself."""
    from sentence_transformers import SentenceTransformer

    network = SentenceTransformer(
        str(model.folder),
        device=device,
        trust_remote_code=False,
        local_files_only=True,
        model_kwargs={"use_safetensors": True},
    )
    limit = network.max_seq_length

    def encode(chunks: Iterable[Sequence[str]]) -> Iterator[Encoded]:
        for texts in chunks:
            cut, short = _cut(texts, limit)
            if limit is not None and hasattr(network.tokenizer, "encode"):
                sizes = [len(network.tokenizer.encode(text, truncation=False, verbose=False)) for text in cut]
                short |= np.array(sizes, np.int64) > limit
            yield Encoded(_unit(network.encode(cut, convert_to_numpy=True, show_progress_bar=False)), short)

    return encode, int(network.get_sentence_embedding_dimension() or 0)


_KINDS: dict[str, Callable[[Model, str, str, int | None], tuple[Encode, int]]] = {
    "encoder": _encoder,
    "static": _static,
    "library": _library,
}


def _most_chars(limit: int | None) -> int:
    return CHARS_AT_MOST if limit is None else limit * CHARS_A_TOKEN


def _cut(texts: Sequence[str], limit: int | None) -> tuple[list[str], np.ndarray]:
    """Texts cut to what could be read of them, and which ones were."""
    most = _most_chars(limit)
    return [text[:most] for text in texts], np.array([len(text) > most for text in texts], bool)


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1 as float16; a vector of zeros (a text without a known token) stays one."""
    wide = vectors.astype(np.float32)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return (wide / np.where(lengths > 0, lengths, 1)).astype(np.float16)
