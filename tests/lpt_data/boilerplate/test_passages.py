"""Passages of a least length: cut exactly where they may be parted, kept whole in the witness, none left shared."""

import random

import numpy as np
import pytest
from boilerplate_cases import Ran, left_of, rows, shared
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_data.boilerplate import documents as held
from lpt_data.boilerplate import passages
from lpt_data.config import BoilerplateConfig
from lpt_data.dataset import Dataset
from manifests.errors import BadInputError, UsageError

LEGAL = (
    "Permission is granted, free of charge, to every person who gets a copy of this text, to use it without any "
    "limit, as long as this notice stands in all copies of it. No one is liable for anything that comes of it."
)
OUGHT = {"method": "substring", "length": 100}


def padded(text, size=400, step=37):
    return text + "".join(f" {chr(0x4E00 + n * step)}" for n in range(size))


def test_a_planted_passage_goes_from_all_but_the_longest(tmp_path):
    texts = [f"Story {n} begins here. {LEGAL} Then number {n} ends." for n in range(4)]
    ran = Ran(tmp_path, rows(*texts, padded(f"Other. {LEGAL} More.")), **OUGHT)
    assert ran.texts[:4] == [f"Story {n} begins here. Then number {n} ends." for n in range(4)]
    assert ran.texts[4].startswith(f"Other. {LEGAL} More.")
    assert ran.report["rewritten"] == {"repeated_substring": 4}
    assert {(d["witness_row"], d["action"]) for d in ran.decisions} == {(4, "rewrite")}
    cut = len(LEGAL) + 1  # with the blank behind it; that in front stays
    assert ran.decisions[0]["score"] == pytest.approx(cut / len(texts[0]))
    assert ran.decisions[0]["detail"].endswith(f"; 1 passage, {cut} characters")
    shown = ran.report["most_repeated"][0]
    assert (shown["documents"], shown["kept_row"], shown["characters_cut"]) == (5, 4, 4 * cut)
    assert LEGAL.startswith(shown["text"][:150])


def test_one_character_short_is_a_near_miss(tmp_path):
    passage = "every word of this is in both of them, and there is nothing else to it"
    texts = rows(f"One {passage} a", padded(f"Two {passage} b"))
    both = len(f" {passage} ")
    ran = Ran(tmp_path / "a", texts, method="substring", length=both)
    assert ran.texts[0] == "One a"
    assert Ran(tmp_path / "b", texts, method="substring", length=both + 1).decisions == []


def test_a_document_of_nothing_but_two_passages_is_removed(tmp_path):
    at = LEGAL.index("without")
    half, other = LEGAL[: at - 1], LEGAL[at:]
    assert min(len(half), len(other)) > 90
    ran = Ran(
        tmp_path,
        rows(f"{half} {other}", padded(f"1 {half} 1"), padded(f"2 {other} 2", 500, 31)),
        method="substring",
        length=90,
    )
    assert [row["n"] for row in ran.rows] == [1, 2]
    (told,) = ran.decisions
    assert (told["action"], told["reason"], told["witness_row"]) == (
        "remove",
        "repeated_substring",
        2,
    )  # who keeps more of it
    assert "nothing else was left" in told["detail"]


@pytest.mark.parametrize(
    ("mine", "theirs", "left"),
    [
        ("é{}é", "è{}ê", "éé"),  # the bytes C3 are shared at both ends
        ("x.{}\u0301y", "z.{}\u0300w", "x。\u0301y"),  # a mark stays with what it stands on
        ("👩‍{}", "👨‍{}", "👩‍本"),  # a joiner ties the next character to the one before
        ("abc{}cab", "dbc{}cad", "abccab"),  # a word is not broken
        ("A\r\n{}\r\nB", "C\r\n{}\r\nD", "A\r\nB"),
        ("🇩🇪{}🇫🇷", "🇬🇪{}🇫🇮", "🇩🇪🇫🇷"),
    ],
)
def test_a_cut_parts_no_character_no_cluster_and_no_word(tmp_path, mine, theirs, left):
    passage = "本" + "".join(chr(0x4E00 + 53 * n) for n in range(40)) + "。"
    ran = Ran(
        tmp_path, rows(f"mine; {mine.format(passage)}", padded(theirs.format(passage))), method="substring", length=40
    )
    assert len(ran.decisions) == 1
    assert ran.texts[0] == f"mine; {left}"


def test_the_length_counts_characters_of_every_script(tmp_path):
    chinese = "".join(chr(0x4E00 + 53 * n) for n in range(99))  # 297 bytes
    texts = rows(f"甲{chinese}乙", padded(f"丙{chinese}丁"))
    assert Ran(tmp_path / "a", texts, method="substring", length=100).decisions == []
    ran = Ran(tmp_path / "b", texts, method="substring", length=99)
    assert ran.texts[0] == "甲乙"


def test_repetition_inside_one_document_is_left_alone(tmp_path):
    assert Ran(tmp_path, rows(f"{LEGAL} {LEGAL} {LEGAL}", "another one"), **OUGHT).decisions == []


def planted(seed, documents=60):
    """Documents of random words with passages of others in them, also overlapping ones."""
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("abcdefghij", k=chosen.randint(2, 6))) for _ in range(300)]
    texts = []
    for _ in range(documents):
        parts = [" ".join(chosen.choices(words, k=chosen.randint(3, 40)))]
        for other in chosen.sample(texts, min(len(texts), chosen.randint(0, 2))):
            at = chosen.randrange(len(other))
            parts.append(other[at : at + chosen.randint(10, 120)])
        chosen.shuffle(parts)
        texts.append(" ".join(parts))
    return texts


@pytest.mark.parametrize("seed", range(3))
def test_no_two_documents_share_a_passage_afterwards_whatever_the_order(tmp_path, seed):
    texts = planted(seed)
    ran = Ran(tmp_path / "a", rows(*texts), method="substring", length=40)
    assert len(ran.decisions) > 15
    for number, text in enumerate(ran.texts):
        for other in ran.texts[:number]:
            assert shared(text, other, 40) is None
            assert shared(other, text, 40) is None
    again = Ran(tmp_path / "b", ran.rows, method="substring", length=40)
    assert again.decisions == []
    mixed = random.Random(seed).sample(rows(*texts), len(texts))
    other = Ran(tmp_path / "c", mixed[:7], mixed[7:8], mixed[8:], method="substring", length=40)
    assert other.told() == ran.told()
    assert sorted(map(str, other.rows)) == sorted(map(str, ran.rows))


def test_every_cut_is_whole_in_its_witness_as_it_is_left(tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in planted(9)))
    documents = held.read(Dataset.open([str(tmp_path / "in.jsonl")]), progress=lambda done: None)
    before = [documents.text(n) for n in range(60)]
    cuts = passages.find(documents, 40, lambda done: None)
    after = [cuts.left.get(n, before[n]) for n in range(60)]
    assert len(cuts.document) > 15
    order = documents.order.tolist()
    for document, keeper in zip(cuts.document.tolist(), cuts.keeper.tolist(), strict=True):
        assert order.index(keeper) < order.index(document)
        assert any(
            before[document][at : at + 38] in after[keeper] and before[document][at : at + 38] not in after[document]
            for at in range(len(before[document]) - 37)
        )
    assert sum(map(len, before)) - sum(map(len, after)) == cuts.chars.sum()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(".,;", min_size=1, max_size=44), min_size=1, max_size=4))
def test_laws_on_texts_that_repeat_everything(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("laws", numbered=True)
    config = BoilerplateConfig("substring", length=20)
    ran = left_of(folder, rows(*texts), config)
    left = [row["text"] for row in ran]
    for number, text in enumerate(left):
        windows = {text[at : at + 20] for at in range(len(text) - 19)}
        assert not any(window in other for other in left[:number] for window in windows)
    assert left_of(folder, ran, config) == ran
    assert sorted(map(str, left_of(folder, rows(*texts)[::-1], config))) == sorted(map(str, ran))


def test_anchors_of_equal_windows_lie_at_the_same_place():
    chosen = np.random.default_rng(0)
    both = chosen.integers(1, 9, 2000).astype(np.uint8)
    k, w = passages.window(200)
    assert k + w - 1 == 200
    found = []
    for _ in range(2):
        own = [chosen.integers(1, 9, 300).astype(np.uint8) for _ in range(2)]
        data = np.concatenate([own[0], both, own[1]])
        places, hashes = np.empty(len(data), np.int64), np.empty(len(data), np.uint64)
        count = passages._anchors(data, 0, len(data), k, w, places, hashes, np.empty(w, np.uint64))
        assert count / len(data) == pytest.approx(2 / (w + 1), rel=0.3)
        inside = (places[:count] >= 300 + w) & (places[:count] <= 2300 - k - w)
        found.append(list(zip(places[:count][inside].tolist(), hashes[:count][inside].tolist(), strict=True)))
    assert found[0] == found[1] != []


def test_crafted_text_ends_in_linear_time_and_says_that_it_gave_up(tmp_path):
    runs = [f"{n}" + "-" * (150 + n % 50) + f"{n * 7}" for n in range(60)]
    row = "-" * 400_000
    ran = Ran(tmp_path, rows(*(f"{'=' * 300_000}{run}" for run in runs[:1]), row + "1", *runs), method="substring")
    assert ran.report["rows_given_up"] in (0, 1)
    assert len(ran.rows) >= 2


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"method": "sentences"}, UsageError, "no such method"),
        ({"method": "substring", "length": 19}, UsageError, "20 characters or more"),
        ({"method": "substring", "drop_all": True}, UsageError, "one copy always stays"),
        ({"least_documents": 1}, UsageError, "repeats nothing"),
        ({"least_words": -1}, UsageError, "not negative"),
        ({"memory": "200B"}, BadInputError, "do not fit"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, config, error, words):
    with pytest.raises(error, match=words):
        Ran(tmp_path, rows(LEGAL, LEGAL), **config)


def test_conversations_are_no_documents(tmp_path):
    with pytest.raises(BadInputError, match="these rows are none") as problem:
        Ran(tmp_path, [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}])
    assert "lpt data dedup" in problem.value.next
