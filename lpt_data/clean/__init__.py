"""Cleaning: texts mended, masked or dropped by a table of rules, every decision with its reason."""

from lpt_data.clean.plan import config_of, make_plan
from lpt_data.clean.stage import clean_text, decide
from lpt_data.clean.table import PRESETS, RULES

__all__ = ["PRESETS", "RULES", "clean_text", "config_of", "decide", "make_plan"]
