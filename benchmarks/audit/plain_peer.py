"""The peer: what a careful team writes by hand before a run, `json`, `re` and sets, a row at a time, in one process.

Of each contract it checks the turns and their texts, reserved markers, control characters, exact repeats, repeated and
contradicting prompts under a normalised key, and what the contract asks for besides (refusals and openings, identical
and inverted pairs, guessable answers). It keeps no findings, no record ids that another format would share, quarantines
nothing and refuses no duplicate keys; gold answers are read with one pattern and no verifier is tested.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import unicodedata
from collections import Counter
from typing import Any

PUNCTUATION = re.compile(r"[^\w\s]|_")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffd]")
MOJIBAKE = re.compile(r"Ã[\x80-\xbf]|Â[\x80-\xbf]|â€")
RESERVED = re.compile(r"<\|(?:im_start|im_end|endoftext|eot_id)\|>|\[/?INST\]")
REFUSAL = re.compile(r"i'?m sorry,? but i can|i can(?:'t|not) (?:help|assist|provide)|as an ai", re.IGNORECASE)
GUESSABLE = re.compile(r"\s*(?:yes|no|true|false|[a-e]|[0-4])\s*", re.IGNORECASE)


def key(text: str) -> str:
    return " ".join(PUNCTUATION.sub(" ", unicodedata.normalize("NFKC", text).lower()).split())


def messages_of(row: dict[str, Any]) -> list[dict[str, str]]:
    if "messages" in row:
        return row["messages"]
    if "text" in row:
        return [{"role": "user", "content": row["text"]}]
    asked = row.get("prompt", row.get("question", ""))
    replies = [row[name] for name in ("chosen", "rejected", "completion", "answer") if name in row]
    return [{"role": "user", "content": asked}, *({"role": "assistant", "content": reply} for reply in replies)]


def main() -> None:
    path, contract = sys.argv[1:]
    faults: Counter[str] = Counter()
    records: set[bytes] = set()
    keys: dict[bytes, bytes] = {}
    openings: Counter[str] = Counter()
    lengths, rows = [], 0
    with open(path, encoding="utf-8") as source:
        for line in source:
            row = json.loads(line)
            rows += 1
            name = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).digest()
            faults["duplicate"] += name in records
            records.add(name)
            turns = messages_of(row)
            for turn in turns:
                text = turn["content"]
                faults["empty"] += not text.strip()
                faults["control"] += CONTROL.search(text) is not None
                faults["mojibake"] += MOJIBAKE.search(text) is not None
                faults["reserved"] += RESERVED.search(text) is not None
            if contract == "sft":
                roles = [turn["role"] for turn in turns]
                faults["roles"] += roles != ["user", "assistant"] * (len(roles) // 2)
                faults["refusal"] += REFUSAL.search(turns[-1]["content"][:200]) is not None
                openings[" ".join(turns[-1]["content"].split()[:4]).lower()] += 1
            asked = " ".join(turn["content"] for turn in turns if turn["role"] == "user")
            hashed = hashlib.sha256(key(asked).encode()).digest()
            said = hashlib.sha256(turns[-1]["content"].encode()).digest()
            faults["repeated prompt"] += hashed in keys
            faults["conflict"] += keys.setdefault(hashed, said) != said
            lengths.append(len(turns[-1]["content"]))
            if contract == "preference":
                one, other = " ".join(row["chosen"].split()), " ".join(row["rejected"].split())
                faults["identical"] += one == other
                faults["prefix"] += one.startswith(other) or other.startswith(one)
                faults["longer"] += len(one) > len(other)
            if contract == "rlvr":
                gold = row["answer"].rpartition("####")[2].strip()
                faults["unparsed"] += re.fullmatch(r"-?[\d,]+", gold) is None
                faults["guessable"] += GUESSABLE.fullmatch(gold) is not None
                faults["in prompt"] += re.search(rf"\b{re.escape(gold)}\b", asked) is not None
    print(json.dumps({"rows": rows, **{name: n for name, n in faults.items() if n}}))


if __name__ == "__main__":
    main()
