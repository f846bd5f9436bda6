"""Options of adapters and of the base under them. Names are TRL's where TRL has the option. Free to import."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lpt_train.config_checks import at_least, one_of
from manifests.errors import UsageError

# Starts whose first step computes what the base computes. `pissa` (`pissa_niter_N`: by a randomised decomposition) and
# `olora` take what the adapter begins with out of the base.
INITS = ("gaussian", "orthogonal", "pissa", "olora")
QUANT_TYPES = ("nf4", "fp4")
COMPUTE_DTYPES = ("auto", "float32", "bfloat16")
_PISSA_STEPS = re.compile(r"pissa_niter_[1-9][0-9]{0,2}")


@dataclass(frozen=True)
class Lora:
    """LoRA, rsLoRA, DoRA by peft, over a base as it is or in four bits; `use_peft=False` trains every parameter."""

    use_peft: bool = True
    lora_r: int = 16  # rank
    lora_alpha: int = 32  # scale = alpha / r
    lora_dropout: float = 0.0  # probability, on the input of A
    lora_target_modules: str = "all-linear"  # all-linear | attention | mlp, or names of modules, separated by commas
    lora_exclude_modules: str = ""  # names of modules left out of the targets, separated by commas
    lora_modules_to_save: str = ""  # modules that train whole beside the adapter, such as lm_head where it is not tied
    use_rslora: bool = False  # scale = alpha / sqrt(r)
    use_dora: bool = False  # a trained magnitude for each output beside the direction
    init_lora_weights: bool | str = True  # true | gaussian | orthogonal | pissa | pissa_niter_N | olora
    load_in_4bit: bool = False  # QLoRA: the linear layers of the base in four bits, by bitsandbytes
    bnb_4bit_quant_type: str = "nf4"  # nf4 | fp4
    use_bnb_nested_quant: bool = False  # the scales are quantised, too: 0.37 bits a weight less
    bnb_4bit_compute_dtype: str = "auto"  # auto: the dtype of the run | float32 | bfloat16

    def __post_init__(self) -> None:
        at_least("lora_r", self.lora_r, 1)
        at_least("lora_alpha", self.lora_alpha, 1)
        one_of("bnb_4bit_quant_type", self.bnb_4bit_quant_type, QUANT_TYPES)
        one_of("bnb_4bit_compute_dtype", self.bnb_4bit_compute_dtype, COMPUTE_DTYPES)
        if not 0 <= self.lora_dropout < 1:
            raise UsageError(
                "lora_dropout is a probability", seen=self.lora_dropout, next="give a value in [0, 1), such as 0.05"
            )
        if self.init_lora_weights is False:
            raise UsageError(
                "an adapter with random factors is another model than its base before the first step",
                seen="init_lora_weights=false", next=f"init_lora_weights=true, or one of {', '.join(INITS)}",
            )  # fmt: skip
        if isinstance(self.init_lora_weights, str) and not _PISSA_STEPS.fullmatch(self.init_lora_weights):
            one_of("init_lora_weights", self.init_lora_weights, ("true", *INITS))
        if self.init_lora_weights == "orthogonal" and self.lora_r % 2:
            raise UsageError(
                "orthogonal factors come in pairs", seen=f"lora_r={self.lora_r}", next="give an even lora_r"
            )
        if self.load_in_4bit and not self.use_peft:
            raise UsageError(
                "weights of four bits cannot be trained, only an adapter over them",
                seen="load_in_4bit=true with use_peft=false", next="leave out one of the two",
            )  # fmt: skip
        if self.load_in_4bit and self.changes_base:
            raise UsageError(
                "this start rewrites the base, which four bits cannot hold exactly",
                seen=f"load_in_4bit=true with init_lora_weights={self.init_lora_weights}",
                next="init_lora_weights=true or gaussian",
            )  # fmt: skip

    @property
    def changes_base(self) -> bool:
        """Whether the start of the adapter is taken out of the base: with the adapter off it is another model."""
        return str(self.init_lora_weights).startswith(("pissa", "olora"))
