"""Counts of tokenizers small enough to be counted by hand."""

import json
import random

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from lpt_data.dataset import Dataset
from lpt_data.tokenizer_file import open_tokenizer, wrap
from lpt_data.tokens import NO_LETTERS, measure, script_of, touching
from lpt_data.tokens_train import train
from lpt_train.tiny import byte_tokenizer
from manifests.errors import BadInputError, UsageError


def tiny():
    return wrap("tiny", byte_tokenizer().backend_tokenizer)


def pairs():
    """`a`, `b` and `ab`: nothing else is known."""
    backend = Tokenizer(models.BPE(vocab={"?": 0, "a": 1, "b": 2, "ab": 3}, merges=[("a", "b")], unk_token="?"))
    return wrap("pairs", backend)


def dataset(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Dataset.open([str(path)])


TEXTS = ["plain words", "né à côté — ok", "日本語 中文", "🙂 12 345\n\tindented", "def f():\n    return 100\n"]


def test_the_byte_tokenizer_has_exactly_one_byte_a_token(tmp_path):
    told = measure(dataset(tmp_path / "a.jsonl", [{"text": t} for t in TEXTS]), [tiny()])
    entry = told["tokenizers"][0]
    assert entry["bytes_per_token"] == 1
    assert entry["tokens"] == told["bytes"] == sum(len(t.encode()) for t in TEXTS)
    assert entry["characters_per_token"] == round(sum(map(len, TEXTS)) / told["bytes"], 6)
    assert all(group["bytes_per_token"] == 1 for group in entry["by_language"].values())


def test_digits_and_indentation_by_hand(tmp_path):
    """Two runs of five digits; four blanks and one tab. A line of blanks indents nothing."""
    rows = [{"text": "a 123 b 45"}, {"text": "x\n    y\n\tz\n  \n"}]
    entry = measure(dataset(tmp_path / "a.jsonl", rows), [tiny()])["tokenizers"][0]
    assert entry["digits"] == {"runs": 2, "tokens_per_run": 2.5, "characters_per_run": 2.5}
    assert entry["indentation"] == {"runs": 2, "tokens_per_run": 2.5, "characters_per_run": 2.5}


def test_code_by_hand(tmp_path):
    """One token a byte, so a run has as many tokens as letters; prose and single signs are no code."""
    texts = ["max_len == maxLen", "x -> y ** 2", "A well-known word = a, b < c; it's 5 - 3."]
    told = measure(dataset(tmp_path / "a.jsonl", [{"text": t} for t in texts]), [tiny()])["tokenizers"][0]
    names, operators = told["identifiers"], told["operators"]
    assert (names["runs"], names["tokens_per_run"]) == (2, (7 + 6) / 2)
    assert (operators["runs"], operators["tokens_per_run"]) == (3, 2.0)


def test_tokens_that_straddle_a_run_count_once():
    # tokens: [0,2) [2,5) [5,5) [5,9); runs [1,3) touches two, [5,9) one, [9,10) none
    offsets = np.array([[0, 2], [2, 5], [5, 5], [5, 9]])
    assert touching(offsets, np.array([[1, 3], [5, 9], [9, 10]])).tolist() == [2, 1, 0]


def test_half_the_tokens_are_a_quarter_of_the_attention(tmp_path):
    told = measure(
        dataset(tmp_path / "a.jsonl", [{"text": "abababab"}, {"text": "abab"}]), [tiny(), pairs()], hidden=64
    )
    first, second = told["tokenizers"]
    assert (first["tokens"], second["tokens"]) == (12, 6)
    assert (first["attention_ratio"], second["length_ratio"], second["attention_ratio"]) == (1, 0.5, 0.25)
    assert second["attention_saving"] == 0.75
    assert (first["vocabulary"], first["embedding_parameters"]) == (259, 259 * 64)
    assert second["embedding_parameters_untied"] == 2 * 4 * 64
    assert first["unused_share"] == round(257 / 259, 6)  # a and b alone
    assert second["unused_share"] == 0.75


def test_what_a_tokenizer_does_not_know_is_counted(tmp_path):
    entry = measure(dataset(tmp_path / "a.jsonl", [{"text": "abcab"}]), [pairs()])["tokenizers"][0]
    assert (entry["tokens"], entry["unknown_tokens"]) == (3, 1)


def test_by_language_and_domain(tmp_path):
    rows = [
        {"text": "aaaa", "lang": "en", "domain": "web"},
        {"text": "éé", "lang": "fr", "domain": "web"},
        {"text": "yy", "lang": None, "domain": "code"},
    ]
    data = dataset(tmp_path / "a.jsonl", rows)
    entry = measure(data, [tiny()], language="lang")["tokenizers"][0]
    assert {k: v["characters_per_token"] for k, v in entry["by_language"].items()} == {"en": 1, "fr": 0.5, "(none)": 1}
    assert entry["by_domain"]["web"] == {"rows": 2, "tokens": 8, "characters_per_token": 0.75, "bytes_per_token": 1}
    assert measure(data, [tiny()], domain="lang")["tokenizers"][0]["by_domain"]["fr"]["rows"] == 1
    with pytest.raises(BadInputError, match="no column is called nope"):
        measure(data, [tiny()], domain="nope")
    with pytest.raises(UsageError, match="no tokenizer"):
        measure(data, [])


def test_a_column_with_a_value_for_each_row_is_no_language(tmp_path):
    data = dataset(tmp_path / "a.jsonl", [{"text": "x", "id": i} for i in range(201)])
    with pytest.raises(BadInputError, match="more than 200 values"):
        measure(data, [tiny()], domain="id")


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Hello, world 123", "Latin"),
        ("Привет, мир", "Cyrillic"),
        ("你好，世界", "Han"),
        ("これは日本語です", "Japanese"),
        ("漢字漢字漢字漢字の", "Japanese"),
        ("안녕하세요", "Hangul"),
        ("สวัสดี", "Thai"),
        ("नमस्ते", "Devanagari"),
        ("مرحبا", "Arabic"),
        ("שלום", "Hebrew"),
        ("γειά σου", "Greek"),
        ("mostly english with 你", "Latin"),
        ("12 + 3 = 15 🙂", NO_LETTERS),
        ("", NO_LETTERS),
    ],
)
def test_scripts(text, script):
    assert script_of(text) == script


def test_saved_truncation_and_padding_cut_no_count(tmp_path):
    backend = byte_tokenizer().backend_tokenizer
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    opened = open_tokenizer(str(tmp_path))  # a folder that holds one
    assert opened.lengths(["ten letters"]) == [11]


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": 3}', "\x00\x01"])
def test_files_that_are_no_tokenizers(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BadInputError, match="tokenizer"):
        open_tokenizer(str(tmp_path / "tokenizer.json"))


# -- training


def words(n=400):
    rng, known = random.Random(0), ["low", "lower", "lowest", "new", "newer", "2024"]
    return [{"text": " ".join(rng.choices(known, k=9))} for _ in range(n)]


def test_training_follows_the_texts_and_not_their_order(tmp_path):
    rows = words()
    for seed in (1, 2):
        data = dataset(tmp_path / f"{seed}.jsonl", random.Random(seed).sample(rows, len(rows)))
        made = train(data, tmp_path / f"t{seed}.json", vocab_size=280, special=["<|end|>"])
        assert made["vocabulary"] <= 280
    assert (tmp_path / "t1.json").read_bytes() == (tmp_path / "t2.json").read_bytes()
    opened = open_tokenizer(str(tmp_path / "t1.json"))
    assert opened.backend.token_to_id("<|end|>") == 0
    told = measure(dataset(tmp_path / "x.jsonl", rows), [tiny(), opened])["tokenizers"]
    assert told[1]["bytes_per_token"] > 2
    strange = "né 日本語 🙂\x07\t  x"
    assert opened.backend.decode(opened.backend.encode(strange).ids) == strange  # no byte is unknown


def test_single_digits_stay_single(tmp_path):
    data = dataset(tmp_path / "a.jsonl", words())
    for single, tokens in ((True, 4), (False, 1)):
        train(data, tmp_path / "t.json", vocab_size=300, single_digits=single)
        entry = measure(data, [open_tokenizer(str(tmp_path / "t.json"))])["tokenizers"][0]
        assert entry["digits"]["tokens_per_run"] == tokens


def test_a_vocabulary_is_no_larger_than_the_data_gives(tmp_path):
    made = train(dataset(tmp_path / "a.jsonl", [{"text": "ab ab"}]), tmp_path / "t.json", vocab_size=5000)
    assert 256 < made["vocabulary"] < 265
    assert made["asked"] == 5000


def test_what_cannot_be_trained(tmp_path):
    data = dataset(tmp_path / "a.jsonl", words(5))
    with pytest.raises(UsageError, match="cannot hold every byte"):
        train(data, tmp_path / "t.json", vocab_size=256, special=["<s>"])
    with pytest.raises(UsageError, match="occur once"):
        train(data, tmp_path / "t.json", vocab_size=300, special=["<s>", "<s>"])
    with pytest.raises(UsageError, match="written as JSON"):
        train(data, tmp_path / "t.model", vocab_size=300)
    assert not list(tmp_path.glob("t.*"))
