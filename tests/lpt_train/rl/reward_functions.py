"""Reward functions that misbehave, each in its own way; run by real worker processes."""

from __future__ import annotations

import math
import os
import socket
import sys
import tempfile
import time


def good(completions, answers):
    return [float(len(c)) for c in completions]


def size_of_batch(completions, answers):
    return [float(len(completions))] * len(completions)


def named(completions, answer, prompts, **kwargs):
    assert len(answer) == len(prompts) == len(completions)
    return [1.0 if c == a else 0.0 for c, a in zip(completions, answer, strict=True)]


def positional(texts, golds):
    return [t == g for t, g in zip(texts, golds, strict=True)]


def raises_on_bad(completions, answers):
    if any(c == "bad" for c in completions):
        raise ValueError("cannot read this one")
    return [1.0] * len(completions)


def hangs_on_bad(completions, answers):
    if "bad" in completions:
        time.sleep(3600)
    return [1.0] * len(completions)


def spins_on_bad(completions, answers):
    while "bad" in completions:
        pass
    return [1.0] * len(completions)


def dies_on_bad(completions, answers):
    if "bad" in completions:
        os._exit(3)
    return [1.0] * len(completions)


def eats_memory_on_bad(completions, answers):
    if "bad" in completions:
        return [len(bytearray(10 << 30))]
    return [1.0] * len(completions)


def wrong_length(completions, answers):
    return [1.0]


def one_too_many(completions, answers):
    return [1.0] * (len(completions) + 1)


def strange_values(completions, answers):
    table = {"nan": math.nan, "inf": math.inf, "text": "1", "none": None, "list": [1]}
    return [table.get(c, 0.5) for c in completions]


def uses_network(completions, answers):
    connection = socket.create_connection(("127.0.0.1", int(answers[0])), timeout=2)
    connection.close()
    return [1.0] * len(completions)


def heavy_modules(completions, answers):
    return [float("torch" in sys.modules or "numpy" in sys.modules)] * len(completions)


def prints(completions, answers):
    sys.stdout.write("x" * 100_000)
    sys.stdout.flush()
    os.write(1, b"straight to standard output")
    return [1.0] * len(completions)


def always_raises(completions, answers):
    raise KeyError("nothing here")


not_a_function = 3


def likes_small_bytes(completions, answers):
    """The share of characters that a byte under 100 wrote: dense, bounded, different for most completions."""
    return [sum(ord(c) < 100 for c in text) / max(1, len(text)) for text in completions]


def constant(completions, answers):
    return [1.0] * len(completions)


def never(completions, answers):
    return [None if text else 0.0 for text in completions]


def sometimes(completions, answers):
    """Unscorable for a third of the texts, by their content."""
    return [None if sum(map(ord, text)) % 3 == 0 else float(len(text)) for text in completions]


def prints_much(completions, answers):
    for completion in completions:
        lines = [f"{completion} {n:06}\n" for n in range(11_111)]
        sys.stdout.write("".join([*lines, f"end of {completion}\n"]))
    sys.stdout.flush()
    return [float(len(completions))] * len(completions)


def leaves_files(completions, answers):
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "left behind"), "w", encoding="utf-8") as file:
        file.write(completions[0])
    if "hang" in completions:
        time.sleep(3600)
    return [1.0] * len(completions)
