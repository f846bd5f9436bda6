"""Contracts: what rows of one kind have to keep before anything trains on them; one module and one line each."""

from __future__ import annotations

from collections.abc import Mapping

from lpt_data.contracts import kto, preference, rlvr, sft, synthetic, text
from lpt_data.contracts.survey import Contract

CONTRACTS: Mapping[str, Contract] = {
    "text": text.CONTRACT,
    "sft": sft.CONTRACT,
    "preference": preference.CONTRACT,
    "rlvr": rlvr.CONTRACT,
    "kto": kto.CONTRACT,
    "synthetic": synthetic.CONTRACT,
}
