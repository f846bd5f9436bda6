"""Configs of the data stages: small, frozen, free to import (standard library only)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal

# A field marked so never changes a result, hence never the identity of a stage: worker counts, memory budgets.
NO_IDENTITY = {"identity": False}


@dataclass(frozen=True)
class SemanticConfig:
    """When two texts mean the same, by which embedder, and how far down pairs are kept."""

    embedder: str = ""  # identity of the vectors: digest of the model and precision of the arithmetic
    threshold: float = 0.9  # cosine, 0..1
    floor: float | None = None  # pairs from here on are kept; None: 0.2 below the threshold, not below 0.5
    same_numbers: bool = True  # texts that name different numbers are no duplicates
    exact_limit: int | None = None  # vectors up to which all pairs are looked at; None: by device


@dataclass(frozen=True)
class DedupConfig:
    """What counts as a duplicate, how it is looked for, and which copy stays."""

    method: tuple[str, ...] = ("exact", "minhash")
    threshold: float = 0.8  # Jaccard similarity of shingle sets, 0..1
    key: str = "text"  # text | prompt | response | row | a column; after a "+", fields that must be equal as well
    keep: str = "content"  # content | first | longest | quality:COLUMN
    drop_all: bool = False  # the row that would have been kept goes too
    ngram: int = 5  # words (or characters, in unspaced scripts) in a shingle
    num_perm: int | None = None  # None: chosen for recall at the threshold
    seed: int = 0
    # Shingles that more than this share of the distinct rows hold are left out of the sets; 0: none, None: 0.05 for
    # conversations and other messages, none for plain text and columns.
    template_df: float | None = None
    alarm_share: float = 0.01  # of the rows of a file that one kept row may stand for before the report warns
    semantic: SemanticConfig | None = None  # of the method of that name
    workers: int | None = field(default=None, metadata=NO_IDENTITY)
    memory: str | None = field(default=None, metadata=NO_IDENTITY)  # such as "4GB"
    engine: Literal["local", "ray"] = field(default="local", metadata=NO_IDENTITY)  # threads here, or a cluster
    ray_address: str | None = field(default=None, metadata=NO_IDENTITY)  # HOST:PORT, auto or local; None: $RAY_ADDRESS


@dataclass(frozen=True)
class BoilerplateConfig:
    """Which text that documents repeat among each other is cut out of them."""

    method: Literal["lines", "paragraphs", "substring"] = "lines"
    least_documents: int = 7  # that hold a line or paragraph; a passage is cut when two hold it
    least_words: int = 5  # of a line or paragraph; a letter of Chinese or Japanese is a word, one of Thai a quarter
    fold: bool = False  # lines and paragraphs that differ in case and digits alone are the same
    length: int = 200  # characters of a passage (substring)
    drop_all: bool = False  # lines and paragraphs: the document that would have kept one loses it too
    memory: str | None = field(default=None, metadata=NO_IDENTITY)  # such as "4GB"


@dataclass(frozen=True)
class SplitConfig:
    """How many canonical keys are held out, and how they are chosen."""

    key: str = "text"  # text | math | code | countdown | a column
    test: int | float = 0.0  # int: number of keys; float below 1: share of the keys
    validation: int | float = 0.0  # same unit as test
    seed: int = 0
    method: Literal["hash", "draw"] = "hash"
    robustness_problems: int = 200  # countdown only: test problems of the order-robustness set
    robustness_orders: int = 8  # countdown only: orders per problem at most, the first one is the test row's own


@dataclass(frozen=True)
class DecontaminateConfig:
    """When a row repeats a benchmark item, and which n-grams are no evidence."""

    benchmarks: tuple[str, ...] = ()  # "NAME sha256" of each file: their contents are part of what was done
    coverage: float = 0.5  # share of the question inside matched 8-grams of one row, 0..1
    longest: int = 13  # words matched in one piece that are enough ...
    longest_coverage: float = 0.3  # ... where they, with all other matches, cover this share of the question
    stop_items: float = 0.01  # an n-gram in at least this share of a benchmark's items (10 to 50 items) is a template
    stop_rows: float = 0.05  # so is one in more than this share of the distinct rows (and more than 20)
    semantic: SemanticConfig | None = None  # the second opinion: None, only n-grams are asked
    semantic_numbers: float = 0.66  # share of an item's numbers that a row of its meaning names at least
    paraphrases: tuple[str, ...] = ()  # sha256 of each file
    perplexity: str = ""  # digest of the language model that is asked for anomalies; empty: none is
    workers: int | None = field(default=None, metadata=NO_IDENTITY)


@dataclass(frozen=True)
class PairsConfig:
    """How groups of connected prompts are made and how many of them are held out."""

    key: str = "math"  # text | math | code | countdown | a column
    group: tuple[str, ...] = ()  # columns whose equal values join rows
    near: float = 0.8  # Jaccard similarity at which two prompts are joined; 0: only equal keys join
    calibration: int | float = 0.0  # int: number of groups; float below 1: share of the groups
    hidden_test: int | float = 0.0  # same unit as calibration
    seed: int = 0
    against: tuple[str, ...] = ()  # sha256 of the reference files, whose groups are removed


@dataclass(frozen=True)
class ResponsesConfig:
    """Where the scored responses of a row are, and which pairs they make."""

    prompt: str = "prompt"  # column of the prompt
    responses: tuple[str, ...] = ()  # columns, each an object (or a list of objects) with a text and a verdict
    correct: str = "is_correct"  # field of the object: true or false, or a number (higher is better)
    text: str | None = None  # field of its text; None: found by name
    per_prompt: Literal["all", "one"] = "all"
    seed: int = 0  # of the choice of one


@dataclass(frozen=True)
class SynthConfig:
    """Where the answers of a generated file are, who judges them, which of them stay, and what is written beside them.

    A column is named where its name says nothing; "" for what is written beside a row leaves the row's own column.
    """

    prompt: str | None = None  # column
    completion: str | None = None  # column of an answer or a list of answers; several with a comma between
    answer: str | None = None  # column of what the verifier compares with
    verifier: str = ""  # "": the column `verifier` of each row
    keep: Literal["all", "one", "shortest"] = "all"  # of the passing answers to a prompt
    seed: int = 0  # of the choice of one
    max_keep_ratio: float = 1.0  # kept answers to a prompt by its attempts, 0..1; one may always stay
    least_rate: float = 0.0  # pass rate of a prompt, 0..1, under which it is too hard
    most_rate: float = 1.0  # and over which it is too easy
    generator: str = ""
    generator_revision: str = ""
    prompt_id: str = ""
    source: str = ""
    sampling: str = ""
    licence: str = ""
    terms: str = ""
    depth: int | None = None
    requests: tuple[str, ...] = ()  # sha256 of the files of requests


@dataclass(frozen=True)
class CleanConfig:
    """Which rules look at a text, with which thresholds, and what becomes of personal data and secrets."""

    preset: Literal["web", "sft", "code", "none"] = "web"
    rules: tuple[str, ...] = ()  # empty: those of the preset; else names or families, "-name" leaves one out
    languages: tuple[str, ...] = ()  # ISO 639-1; empty: every language stays
    pii: Literal["mask", "keep"] = "mask"
    secrets: Literal["drop", "mask", "keep"] = "drop"
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # rule -> threshold -> value


def settings(config: Any) -> dict[str, Any]:
    """All fields of a stage config as plain JSON values."""
    return {name: _plain(getattr(config, name), settings) for name in config.__dataclass_fields__}


@dataclass(frozen=True)
class DropConfig:
    """Which rows of an audit go: those behind the named checks."""

    contract: str
    checks: tuple[str, ...]
    key: str | None = None  # canonical key; None: the contract's
    max_length: int | None = None  # tokens
    tokenizer: str | None = None  # fingerprint
    template_sha256: str | None = None  # of what renders conversations, which may not be the tokenizer's own
    languages: tuple[str, ...] = ()  # declared ones
    references: tuple[str, ...] = ()  # sha256 of each file of --against, --scored and --benchmark


@dataclass(frozen=True)
class PackConfig:
    """How long the sequences are, and for which tokenizer and template they are counted."""

    max_length: int  # tokens
    tokenizer: str  # fingerprint
    template_sha256: str


@dataclass(frozen=True)
class RewardColumnConfig:
    """Which model scores, and where its rewards go."""

    column: str
    model: str  # digest of the weights
    max_length: int  # tokens of a conversation; a longer one has no reward
    template_sha256: str = ""  # what renders conversations
    training_template: str | None = None  # its name, where it is not the model's own


def identity(config: Any) -> dict[str, Any]:
    """The fields of a stage config that can change its result, as plain JSON values."""
    fields = config.__dataclass_fields__
    told = [name for name in fields if fields[name].metadata.get("identity", True)]
    return {name: _plain(getattr(config, name), identity) for name in told}


def _plain(value: Any, inner: Callable[[Any], dict[str, Any]]) -> Any:
    if isinstance(value, tuple):
        return [_plain(item, inner) for item in value]
    return inner(value) if is_dataclass(value) else value
