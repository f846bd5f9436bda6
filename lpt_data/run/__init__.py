"""A recipe: the stages of a data set in one file, run in order, each reused where nothing that it depends on changed.

`recipe` reads the file, `table` says what each stage is, `order` what comes before what and why, `standing` what would
be reused, `runner` does it, `gates` audits and admits, `totals` adds up.
"""

from lpt_data.run.order import wrong_order
from lpt_data.run.recipe import Recipe, load_recipe, parse_recipe, shipped
from lpt_data.run.runner import Ran, RecipeReport, planned, run
from lpt_data.run.table import STAGES, Tools

__all__ = [
    "STAGES", "Ran", "Recipe", "RecipeReport", "Tools", "load_recipe", "parse_recipe", "planned", "run", "shipped",
    "wrong_order",
]  # fmt: skip
