"""Tokens of a split: the admission's own count where it has one, else counted as training renders the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from train_cases import admit_by_hand, preferences

from lpt_train.admitted import load_split, unadmitted
from lpt_train.plan.split_tokens import split_tokens
from manifests.catalog import Catalog
from manifests.errors import RefusedError, UsageError


def never():
    raise AssertionError("no tokenizer is needed")


def test_what_the_admission_counted_is_taken_and_nothing_is_loaded(sft_split):
    told = {"rows": 16, "tokens": 161, "supervised": 90, "truncated_rows": 2}
    split = replace(sft_split, tokenized=told, tokenizer={"name": "mine", "fingerprint": "f", "max_length": 20})
    found = split_tokens(split, never)
    assert (found.tokens, found.rows, found.tokenizer, found.context) == (161, 16, "mine", 11)  # 161 / 16, rounded up
    assert found.notes == ("2 rows are longer than 20 tokens and count as cut",)
    assert found.to_json()["context_of"] == "row"  # an admission keeps no lengths
    unnamed = replace(split, tokenizer={"name": "mine", "fingerprint": "f"})
    with pytest.raises(RefusedError, match="rows cut at a length") as caught:
        split_tokens(unnamed, never)
    assert ("truncated_rows 2" in str(caught.value.seen), "--max-length" in caught.value.next) == (True, True)
    assert split_tokens(replace(unnamed, tokenized=told | {"truncated_rows": 0}), never).notes == ()


def test_documents_are_counted_a_byte_a_token_and_one_to_stop(tmp_path, renderer):
    catalog = Catalog.open(tmp_path / ".lpt")
    ref = admit_by_hand(catalog, "text", {"train": [{"text": "abcd"}, {"text": "ü"}, {"text": "x" * 50}]}, name="docs")
    split = load_split(f"{ref}:train", catalog=catalog)
    found = split_tokens(split, lambda: renderer)
    assert (found.ref, found.tokens, found.rows) == ("docs@1:train", 5 + 3 + 51, 3)
    # Attention is paid by the token: (5² + 3² + 51²) / 59 is 44.7, where the mean row has 19.7.
    assert (found.context, found.to_json()["context_of"]) == (45, "token")
    cut = replace(split, tokenizer={"name": "t", "fingerprint": renderer.fingerprint, "max_length": 10})
    assert split_tokens(cut, lambda: renderer).tokens == 5 + 3 + 10
    with pytest.raises(RefusedError, match="another tokenizer"):
        split_tokens(replace(split, tokenizer={"name": "t", "fingerprint": "f" * 64}), lambda: renderer)


def test_a_pair_is_two_rows_whatever_the_admission_counted(renderer):
    """An admission counts the longer side of a pair; training reads both."""
    rows = preferences(3)
    told = {"rows": 3, "tokens": 1, "supervised": 1, "truncated_rows": 0}
    split = replace(unadmitted("preference", rows, "pairs"), tokenized=told, tokenizer={"name": "t"})
    found = split_tokens(split, lambda: renderer)
    sides = [renderer.encode([*row["prompt"], *row[side]]).ids for row in rows for side in ("chosen", "rejected")]
    assert (found.tokens, found.rows) == (sum(map(len, sides)), 6)


def test_rows_that_training_drops_are_said_and_prompts_have_none(renderer, sft_split):
    split = unadmitted("sft", [*sft_split.rows(), {"messages": [{"role": "user", "content": "alone"}]}], "chats")
    found = split_tokens(split, lambda: renderer)
    assert found.rows == 16
    assert "1 of 17 rows were dropped" in found.notes[0]
    prompts = [{"prompt": [{"role": "user", "content": "1 + 1"}], "answer": "2"}]
    with pytest.raises(UsageError, match="those that it samples"):
        split_tokens(unadmitted("rlvr", prompts, "sums"), never)
