"""What a GPU can do at most: dense bfloat16 arithmetic, memory, bandwidth, from the data sheets of their makers.

Data sheets print twice the arithmetic "with sparsity"; here it is the dense figure. Memory is what a driver leaves to
programs, in GiB, a little less than the number in the name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from manifests.errors import UsageError

CONTEXT_BYTES = 1_000_000_000  # of a process: the CUDA context, the libraries' code and workspaces


@dataclass(frozen=True)
class GPU:
    """Peak dense bfloat16 FLOP/s in units of 10^12, memory in GiB, bandwidth in 10^12 bytes a second."""

    name: str
    teraflops: float
    memory_gib: float
    terabytes_per_second: float
    source: str

    @property
    def usable_bytes(self) -> int:
        """Memory that is left for tensors."""
        return int(self.memory_gib * 2**30) - CONTEXT_BYTES


GPUS: tuple[GPU, ...] = (
    GPU("a10", 125.0, 22.0, 0.600, "NVIDIA A10 data sheet, 2021"),
    GPU("a30", 165.0, 23.5, 0.933, "NVIDIA A30 data sheet, 2021"),
    GPU("a40", 149.7, 44.3, 0.696, "NVIDIA A40 data sheet, 2022"),
    GPU("rtxa6000", 154.8, 47.3, 0.768, "NVIDIA RTX A6000 data sheet, 2021"),
    GPU("l4", 121.0, 22.0, 0.300, "NVIDIA L4 data sheet, 2023"),
    GPU("rtx3090", 71.0, 23.5, 0.936, "NVIDIA GA102 white paper, 2020 (float32 sums)"),
    GPU("rtx4090", 165.2, 23.5, 1.008, "NVIDIA Ada white paper, 2022 (float32 sums)"),
    GPU("rtx5090", 209.5, 31.3, 1.792, "NVIDIA RTX Blackwell white paper, 2025 (float32 sums)"),
    GPU("l40", 181.0, 44.3, 0.864, "NVIDIA L40 data sheet, 2022"),
    GPU("l40s", 362.0, 44.3, 0.864, "NVIDIA L40S data sheet, 2023"),
    GPU("a100-40", 312.0, 39.3, 1.555, "NVIDIA A100 data sheet, 2021"),
    GPU("a100", 312.0, 79.1, 2.039, "NVIDIA A100 data sheet, 2021 (SXM, 80 GB)"),
    GPU("h100-pcie", 756.0, 79.1, 2.0, "NVIDIA H100 data sheet, 2022"),
    GPU("h100-nvl", 835.0, 93.1, 3.9, "NVIDIA H100 NVL data sheet, 2024"),
    GPU("h100", 989.4, 79.1, 3.35, "NVIDIA H100 data sheet, 2022 (SXM)"),
    GPU("h200", 989.4, 139.7, 4.8, "NVIDIA H200 data sheet, 2023 (SXM)"),
    GPU("h200-nvl", 835.0, 139.7, 4.8, "NVIDIA H200 NVL data sheet, 2024"),
    GPU("mi300x", 1307.4, 191.0, 5.3, "AMD Instinct MI300X data sheet, 2023"),
    GPU("b200", 2250.0, 178.0, 8.0, "NVIDIA HGX B200 data sheet, 2024"),
)


def gpu(name: str) -> GPU:
    """The GPU of that name; raises `UsageError` with those there are."""
    found = {each.name: each for each in GPUS}.get(name.lower())
    if found is None:
        raise UsageError(
            "no GPU of that name is known", seen=name, next=f"one of {', '.join(each.name for each in GPUS)}"
        )
    return found


def by_device(name: str) -> GPU | None:
    """The GPU that a driver calls so ("NVIDIA A100-SXM4-80GB"): the entry with the most parts in that name, or None."""
    words = re.findall("[a-z0-9]+", name.lower())
    words += ["".join(pair) for pair in zip(words, words[1:], strict=False)]  # "RTX 4090"
    words += [word.removesuffix("gb") for word in words if word.endswith("gb")]
    known = [each for each in GPUS if set(each.name.split("-")) <= set(words)]
    return max(known, key=lambda each: each.name.count("-"), default=None)
