"""The README of an exported folder: what it is, what it was trained on, what was measured, how to load it."""

from __future__ import annotations

import json
from typing import Any


def model_card(body: dict[str, Any], name: str) -> str:
    """Markdown with a YAML head, as hubs read it, from the record of an export; every value is quoted."""
    base = (body["base"] or {}).get("name")
    head = ["---", *([f"base_model: {json.dumps(base)}"] if base else [])]
    head += [f"library_name: {'peft' if _alone(body) else 'transformers'}", "tags: [lpt]", "---", ""]
    lines = [f"# {_plain(name)}", ""]
    if body["tainted"]:
        lines += ["**Marked: trained on data that was not admitted.**", ""]
    lines += [f"{_what(body)} Made by lpt; `lpt.json` has its origin, the run and the digests.", ""]
    rows = [
        ("base", base), ("run", body["run_id"]), ("data", body["split"]), ("admission", body["manifest"]),
        ("verified", body["verified"]), ("dtype", body["dtype"]),
    ]  # fmt: skip
    lines += ["| | |", "| --- | --- |", *(f"| {label} | `{_plain(value)}` |" for label, value in rows if value), ""]
    if (measured := body["measured"]) is not None:
        lines += [
            f"Read back and compared with the trained model on {measured['positions']:,} positions "
            f"({_plain(measured['on'])}): mean KL {measured['mean_kl']:.3g} nats, largest difference of a logit "
            f"{measured['max_abs_logit']:.3g}, same first choice at {measured['top1_agreement']:.2%}.",
            "",
        ]
    return "\n".join(head + lines + ["```python", *_how(body), "```", ""])


def _alone(body: dict[str, Any]) -> bool:
    return body["base"] is not None and not body["merged"]


def _what(body: dict[str, Any]) -> str:
    if _alone(body):
        under = "" if body["quantisation"] is None else " It was trained over a base in four bits."
        return f"An adapter: it needs its base.{under}"
    if body["merged"]:
        under = "" if body["quantisation"] is None else " (the weights that its 4-bit codes stand for)"
        return f"Base{under} and adapter, merged in float32."
    return "Every weight was trained."


def _how(body: dict[str, Any]) -> list[str]:
    if _alone(body):
        base, codes = json.dumps(body["base"]["name"]), body["quantisation"]
        how = "" if codes is None else ", quantization_config=codes"
        more = ", BitsAndBytesConfig" if codes else ""
        return [
            "from peft import PeftModel", f"from transformers import AutoModelForCausalLM, AutoTokenizer{more}", "",
            *_codes(codes), f"base = AutoModelForCausalLM.from_pretrained({base}{how})",
            'model = PeftModel.from_pretrained(base, ".")', 'tokenizer = AutoTokenizer.from_pretrained(".")',
        ]  # fmt: skip
    return [
        "from transformers import AutoModelForCausalLM, AutoTokenizer", "",
        'model = AutoModelForCausalLM.from_pretrained(".")', 'tokenizer = AutoTokenizer.from_pretrained(".")',
    ]  # fmt: skip


def _codes(codes: dict[str, Any] | None) -> list[str]:
    if codes is None:
        return []
    return [
        "codes = BitsAndBytesConfig(",
        f'    load_in_4bit=True, bnb_4bit_quant_type="{codes["quant_type"]}",',
        f'    bnb_4bit_use_double_quant={codes["nested"]}, bnb_4bit_compute_dtype="{codes["compute_dtype"]}",',
        ")",
    ]


def _plain(value: Any) -> str:
    """Text that neither ends a cell or a code span nor starts a line of its own."""
    return " ".join(str(value).replace("|", "/").replace("`", "'").split())
