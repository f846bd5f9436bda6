"""The peer: the same rules as they are usually written, `re` and `split` for each rule and each row, in one process.

Reads JSON lines, applies the mending, masking and quality rules of the web preset one after the other, writes the rows
that stay. It keeps no decisions, computes no identity and knows no scripts without spaces.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections import Counter

import ftfy

TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<!--.*?-->", re.DOTALL)
EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}")
IP = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}")
PHONE = re.compile(r"\(?\d{3}\)?[-. ]\d{3}[-.]\d{4}")
CARD = re.compile(r"(?:\d[ -]?){13,16}")
IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b")
SECRETS = [
    re.compile(p)
    for p in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"gh[pousr]_[A-Za-z0-9]{36}",
        r"github_pat_\w{82}",
        r"glpat-[\w-]{20}",
        r"xox[abprs]-[\w-]{10,}",
        r"AIza[\w-]{35}",
        r"[sr]k_live_\w{24,}",
        r"T3BlbkFJ",
        r"sk-ant-[\w-]{80,}",
        r"hf_[A-Za-z]{34}",
        r"npm_\w{36}",
        r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}",
    )
]
NOTICE = re.compile(r"terms of use|privacy policy|cookie policy|uses cookies|use of cookies|javascript", re.IGNORECASE)


def mended(text: str) -> str:
    text = unicodedata.normalize("NFC", ftfy.fix_text(text, uncurl_quotes=False))
    text = re.sub(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff]", "", text)
    text = TAG.sub("", text)
    text = "\n".join(line.rstrip() for line in text.split("\n") if not NOTICE.search(line))
    for pattern, name in ((EMAIL, "EMAIL"), (IBAN, "IBAN"), (CARD, "CARD"), (PHONE, "PHONE"), (IP, "IP")):
        text = pattern.sub(f"<{name}>", text)
    return text


def share_of_repeats(words: list[str], n: int, chars: int) -> float:
    seen, found, i = set(), 0, 0
    while i < len(words) - n + 1:
        gram = " ".join(words[i : i + n])
        if gram in seen:
            found += len(gram)
            i += n
        else:
            seen.add(gram)
            i += 1
    return found / chars


def good(text: str) -> bool:
    if any(secret.search(text) for secret in SECRETS):
        return False
    words = text.split()
    if not 50 <= len(words) <= 100_000 or not 3 <= sum(map(len, words)) / len(words) <= 10:
        return False
    if text.count("#") > 0.1 * len(words) or text.count("...") + text.count("\u2026") > 0.1 * len(words):
        return False
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if sum(line.startswith(("-", "*", "\u2022")) for line in lines) > 0.9 * len(lines):
        return False
    if sum(line.endswith(("...", "\u2026")) for line in lines) > 0.3 * len(lines):
        return False
    if sum(any(c.isalpha() for c in word) for word in words) < 0.8 * len(words):
        return False
    repeated = [line for line, n in Counter(lines).items() for _ in range(n - 1)]
    if len(repeated) > 0.3 * len(lines) or sum(map(len, repeated)) > 0.1 * len(text):
        return False
    for n, limit in ((2, 0.20), (3, 0.18), (4, 0.16)):
        gram, count = Counter(zip(*(words[k:] for k in range(n)), strict=False)).most_common(1)[0]
        if count > 1 and len(" ".join(gram)) * count > limit * len(text):
            return False
    for n, limit in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10)):
        if share_of_repeats(words, n, len(text)) > limit:
            return False
    if "lorem ipsum" in text.lower() or "{" in text or len(re.findall(r"[.!?](?:\s|$)", text)) < 3:
        return False
    ends = sum(line.endswith((".", "!", "?", '"', "'")) for line in lines)
    if ends <= 0.12 * len(lines) or sum(len(line) <= 30 for line in lines) > 0.67 * len(lines):
        return False
    return text.count("\n") <= 0.3 * len(words)


def main() -> None:
    kept = 0
    with open(sys.argv[1], encoding="utf-8") as source, open(sys.argv[2], "w", encoding="utf-8") as out:
        for line in source:
            row = json.loads(line)
            row["text"] = mended(row["text"])
            if good(row["text"]):
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                kept += 1
    print(kept)


if __name__ == "__main__":
    main()
