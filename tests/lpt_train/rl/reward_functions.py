"""Reward functions that misbehave, each in its own way; run by real worker processes."""

from __future__ import annotations

import math
import os
import socket
import sys
import time


def good(completions, answers):
    return [float(len(c)) for c in completions]


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
