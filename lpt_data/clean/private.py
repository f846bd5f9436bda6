"""Rules for what must not be learned: personal data, masked with typed placeholders, and secrets.

Patterns are anchored and bounded, so that time grows with the length of the text alone; what a pattern proposes, a
check decides (Luhn, the IBAN remainder, public address ranges). High confidence is preferred to recall: there is no
search for names, postal addresses or passwords, and a secret without a known form is not found. Nothing that these
rules find is shown or written down.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from lpt_data.clean.outcome import KEEP, Document, Drop, Limits, Outcome, Rewrite

# -- personal data

_LOCAL = re.compile(r"[A-Za-z0-9._%+-]{1,64}")
_DOMAIN = re.compile(r"(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])")
# Domains that are nobody's (RFC 2606), and the user name of every Git server.
_NO_ADDRESS = re.compile(r"(?:^|\.)(?:example(?:\.(?:com|net|org))?|invalid|localhost|test)$", re.IGNORECASE)


def email_addresses(doc: Document, limits: Limits) -> Outcome:
    """Mask e-mail addresses (Dolma: Soldaini et al. 2024; FineWeb), but none of a reserved domain such as example.com,
    and not the `git@` of a repository.
    """
    text, kept, at, start = doc.text, [], 0, doc.text.find("@")
    while start >= 0:
        backwards = _LOCAL.match(text[max(at, start - 64) : start][::-1])
        local = backwards[0][::-1].lstrip("._%+-") if backwards else ""
        domain = _DOMAIN.match(text, start + 1) if local and local[-1] != "." and local != "git" else None
        if domain and not _NO_ADDRESS.search(domain[0]):
            kept += [text[at : start - len(local)], "<EMAIL_ADDRESS>"]
            at = domain.end()
        start = text.find("@", max(start + 1, at))
    return Rewrite("".join([*kept, text[at:]]), "email_address_masked") if kept else KEEP


# A pattern starts with what it matches and looks back from there: so `re` skips to the first character that fits.
_IPV4 = re.compile(r"\d(?<![\w.+-]\d)\d{0,2}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"[23](?<![\w:.][23])[0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,34}(?![\w:])")
_VERSION = re.compile(r"(?:version|release|firmware|build|ver\.?|v\.?)\s{0,3}\Z", re.IGNORECASE)


def ip_addresses(doc: Document, limits: Limits) -> Outcome:
    """Mask public IPv4 and IPv6 addresses (Dolma; datatrove, which leaves private ranges too).

    Four numbers after the word "version" or the like are none. IPv6 is looked for in 2000::/3 alone.
    """
    text = _IPV4.sub(_masked(lambda found: _is_public(found[0]) and not _after_version(found)), doc.text)
    text = _IPV6.sub(_masked(lambda found: _is_public(found[0].rstrip(":"))), text)
    return _masked_text(doc, text, "ip_address_masked")


def _masked(test: Callable[[re.Match[str]], bool], name: str = "<IP_ADDRESS>") -> Callable[[re.Match[str]], str]:
    return lambda found: name if test(found) else found[0]


def _after_version(found: re.Match[str]) -> bool:
    return bool(_VERSION.search(found.string[max(0, found.start() - 16) : found.start()]))


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


_PHONE = re.compile(r"\+(?<![\w+.-]\+)\d[\d ().-]{6,22}\d(?!\w)")
_NANP = re.compile(r"[(2-9](?<![\w.)-].)(?:(?<=\()[2-9]\d{2}\) ?|(?<!\()\d{2}[.-])[2-9]\d{2}[.-]\d{4}(?![\w-]|\.\d)")


def phone_numbers(doc: Document, limits: Limits) -> Outcome:
    """Mask telephone numbers (Dolma): international with "+" and 8 to 15 digits (E.164), or North American
    with separators. A number in another form cannot be told from other numbers and stays.
    """
    text = _PHONE.sub(_masked(lambda found: 8 <= _digits(found[0]) <= 15, "<PHONE_NUMBER>"), doc.text)
    text = _NANP.sub("<PHONE_NUMBER>", text)
    return _masked_text(doc, text, "phone_number_masked")


def _digits(text: str) -> int:
    return sum(c.isdigit() for c in text)


_CARD = re.compile(r"[2-6](?<![\w.-][2-6])(?:[ -]?\d){12,18}(?![\w-]|\.\d)", re.ASCII)
# First digits and lengths of the networks: Visa, Mastercard, American Express, Discover, JCB, Diners.
_NETWORKS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|6(?:011|5\d\d)\d{12}|35\d{14}|3[068]\d{12}", re.ASCII
)


def card_numbers(doc: Document, limits: Limits) -> Outcome:
    """Mask numbers of payment cards: the form of a network and a right check digit (Luhn, ISO/IEC 7812-1)."""
    text = _CARD.sub(_masked(lambda found: _is_card(re.sub("[ -]", "", found[0])), "<CARD_NUMBER>"), doc.text)
    return _masked_text(doc, text, "card_number_masked")


def _is_card(number: str) -> bool:
    if not _NETWORKS.fullmatch(number) or len(set(number)) < 3:
        return False
    doubled = [int(digit) * (1 + i % 2) for i, digit in enumerate(reversed(number))]
    return sum(n - 9 if n > 9 else n for n in doubled) % 10 == 0


_IBAN = re.compile(r"[A-Z](?<!\w[A-Z])[A-Z]\d{2}(?: ?[A-Z0-9]){11,30}", re.ASCII)
_COUNTRIES = """
    AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20 EG29 ES24 FI18 FO18 FR27
    GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 MC27
    MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SE24 SI19 SK24 SM27 TN24 TR26 UA29
    VA22 VG24 XK20
"""
_IBAN_LENGTHS = {country[:2]: int(country[2:]) for country in _COUNTRIES.split()}


def ibans(doc: Document, limits: Limits) -> Outcome:
    """Mask international bank account numbers: the length of the country and a remainder of 1 by 97 (ISO 13616-1)."""
    return _masked_text(doc, _IBAN.sub(_iban, doc.text), "iban_masked")


def _iban(found: re.Match[str]) -> str:
    """The number may be followed by what looks like more of it: as much as the country's length is taken."""
    need, taken = _IBAN_LENGTHS.get(found[0][:2], 0), 0
    for end, char in enumerate(found[0], 1):
        taken += char != " "
        if taken == need:
            number, rest = found[0][:end].replace(" ", ""), found[0][end:]
            after = rest[:1] or found.string[found.end() : found.end() + 1]
            moved = "".join(str(int(c, 36)) for c in number[4:] + number[:4])
            if int(moved) % 97 == 1 and not after.isalnum():
                return f"<IBAN>{rest}"
    return found[0]


def _masked_text(doc: Document, text: str, reason: str) -> Outcome:
    return KEEP if text == doc.text else Rewrite(text, reason)


# -- secrets


def _token(prefix: str, rest: str, before: str = r"[\w-]") -> tuple[str, re.Pattern[str]]:
    """A prefix that no character of `before` precedes, and what follows; the prefix alone is looked for first."""
    return prefix, re.compile(f"{prefix}(?<!{before}{prefix}){rest}")


_PEM = r"(?:[A-Z]{2,12} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
# Kind -> (what every one of them holds, the whole).
SECRETS: dict[str, tuple[str, re.Pattern[str]]] = {
    "private_key": ("PRIVATE KEY", re.compile(rf"-----BEGIN {_PEM}[^-]{{40,20000}}-----END {_PEM}")),
    "aws_access_key": _token("AKIA", "[A-Z2-7]{16}(?![A-Za-z0-9])"),
    "aws_temporary_key": _token("ASIA", "[A-Z2-7]{16}(?![A-Za-z0-9])"),
    "github_token": _token("gh", "[pousr]_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    "github_fine_grained_token": _token("github_pat_", r"[A-Za-z0-9_]{82}(?!\w)"),
    "gitlab_token": _token("glpat-", r"[A-Za-z0-9_-]{20,64}(?![\w-])"),
    "slack_token": _token("xox", r"[abeprs]-(?:[A-Za-z0-9]{1,64}-){1,5}[A-Za-z0-9]{10,64}(?![\w-])"),
    "slack_webhook": _token("hooks.slack.com/services/T", r"[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{24}(?!\w)"),
    "google_api_key": _token("AIza", r"[A-Za-z0-9_-]{35}(?![\w-])"),
    "stripe_key": _token("sk_live_", r"[A-Za-z0-9]{24,99}(?!\w)"),
    "stripe_restricted_key": _token("rk_live_", r"[A-Za-z0-9]{24,99}(?!\w)"),
    "openai_key": _token("sk-", r"[\w-]{20,90}T3BlbkFJ[\w-]{20,90}(?![\w-])"),
    "anthropic_key": _token("sk-ant-", r"[a-z0-9]{2,8}-[A-Za-z0-9_-]{80,120}(?![\w-])"),
    "hugging_face_token": _token("hf_", r"[A-Za-z]{34}(?!\w)"),
    "npm_token": _token("npm_", r"[A-Za-z0-9]{36}(?!\w)"),
    "json_web_token": _token(
        "eyJ", r"[A-Za-z0-9_-]{10,4096}\.eyJ[A-Za-z0-9_-]{10,8192}\.[A-Za-z0-9_-]{20,2048}(?![\w-])"
    ),
}
_SAMPLE = re.compile(r"EXAMPLE|example|XXXX|xxxx|0{8}")  # what manuals print


def secrets_masked(doc: Document, limits: Limits) -> Outcome:
    """Mask secrets of a known form (the token formats of their issuers, as in gitleaks and detect-secrets)."""
    text, kinds = doc.text, list[str]()
    for kind, (hint, pattern) in SECRETS.items():
        if hint in text:
            masked = pattern.sub(_masked(_is_no_sample, f"<{kind.upper()}>"), text)
            if masked != text:
                text, kinds = masked, [*kinds, kind]
    return Rewrite(text, f"{kinds[0]}_masked") if kinds else KEEP


def secrets_dropped(doc: Document, limits: Limits) -> Outcome:
    """Drop a row that holds a secret of a known form (the token formats of their issuers, as in gitleaks)."""
    for kind, (hint, pattern) in SECRETS.items():
        if hint in doc.text:
            count = sum(map(_is_no_sample, pattern.finditer(doc.text)))
            if count:
                return Drop(f"holds_{kind}", float(count))
    return KEEP


def _is_no_sample(found: re.Match[str]) -> bool:
    return len(found[0]) > 200 or not _SAMPLE.search(found[0])
