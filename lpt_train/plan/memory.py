"""Bytes that a training run takes, by part, from the shape of the model and a few numbers of the run.

Of each token, with h hidden, a query, k key and f inner values and numbers of w bytes in the forward pass, a layer
keeps for its backward pass (counted tensor by tensor in this code's own forward pass, and held to it by tests):

    eager      w [x + 2a + 2k + 3f] + 8h (norms in float32; 16h when they train) + 4 heads + 8
               x: inputs of the projections, 2h + f where w = 4 (one copy for all that read it), 5h + f where autocast
               casts it for each reader (and a under LoRA); and for each adapted projection its rank
    compiled   w [4h + 2a + 2k + 3f] (and a copy of the attended values and the ranks under LoRA; 2 bytes of h more
               where the sum of the layers is float32): the compiler computes norms and products of gates again

In float32 on CUDA attention is plain products, computed again in the backward pass (`varlen._by_groups`): a layer keeps
queries, keys and values (a + 2k), what comes out only where the output projection has to remember it (a: it trains or
is adapted), and no 4 of a head; all layers together 16 bytes a token for the tables of the groups. The backward pass of
a layer makes its scores again: for each pair of tokens of one row and each head 4 bytes of their softmax, and 8 of two
gradients of that size, so 12 heads l a token in rows of l tokens, beside copies of queries, keys and values (3a).
Groups take turns but keep their softmaxes: several need less. Rows filled up to at most 3/2 of their length need more.

The family is that of Korthikanti et al. 2022 (arXiv 2205.05198), eq. 1: there GELU, dropout and scores of 34 h a layer;
here gated units, no dropout, flash attention without scores. A checkpointed layer keeps its input alone, and one such
layer at a time is there whole in the backward pass.

States: weights 4 bytes a parameter where they train (bfloat16 would lose small updates) and w where they are frozen;
gradients 4; AdamW 8 (arXiv 2110.02861 for 8 bits: 2 and 8/256); autocast's copies of weights that train 2. NF4
(arXiv 2305.14314): 4 bits and 32/64 for its scales, 4.5 bits a value; where those are quantised as well, 8/64 and
32/(64 256), 4.127 bits.

The allocator holds more than the tensors have, because blocks that are free have the sizes of what was there before.
The head leaves blocks of the size of its chunks, of which it was never using all: a third of it. The backward pass of
a layer makes tensors of other sizes than those that the layer gives up: about what one layer keeps. A recording takes
its memory in the order of its one pass, and neither gives it back nor shares it with what is not recorded: about what
four layers keep. So a share of all would be wrong for a step that computes its layers again: they are few bytes, and
leave as many gaps. The three numbers were chosen after the measurements (32 steps on an H200,
`benchmarks/results/plan-h200.json` and two `train-sft-*-h200.json`), so that what is foretold is rarely below them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from lpt_train.plan.shape import ModelShape

SCOPES = ("full", "lora", "qlora")
NF4_BITS = {False: 4 + 32 / 64, True: 4 + 8 / 64 + 32 / (64 * 256)}  # a weight, by: are its scales quantised, too?
HEAD_SPARE = 1 / 3  # of the head's bytes that are reserved once more
LAYERS_SPARE = {False: 1, True: 4}  # layers of a micro-batch that are, by: compiled or recorded?
EIGHT_BIT_FROM = 4096  # values from which on bitsandbytes keeps the moments of a tensor in 8 bits
_BLOCK = 256


@dataclass(frozen=True)
class Workload:
    """What a run does to a model, as far as memory is concerned."""

    tokens: int  # of a micro-batch, filler included
    scope: str = "lora"  # full | lora | qlora
    width: int = 2  # bytes of a number in the forward pass: 2 bfloat16, 4 float32
    counted: int | None = None  # tokens of a micro-batch that are targets; none: all of them
    rank: int = 16
    targets: str = "all-linear"
    dora: bool = False
    dropout: bool = False
    nested: bool = False  # of a base in four bits, are the scales quantised as well?
    wide_base: bool = False  # a frozen base is kept in float32
    optim: str = "adamw_torch"
    chunk: int = 1024  # positions whose logits exist at the same time
    compiled: bool = True  # compiled layers, or recordings of them
    kept_gradients: bool = True  # gradients are there before the backward pass: several micro-batches, or a recording
    checkpoint_every: int = 0  # every k-th layer keeps its input alone; 0: none does
    offload_optimizer: bool = False
    offload_activations: bool = False
    frozen_copies: int = 0  # whole models beside the one that trains (a reference, a reward model), `width` a value
    second_trained: bool = False  # a second model that trains in the same way (the critic of PPO)
    plain_head: bool = False  # a head that also gives entropies: its logits are made again in the backward pass
    rollout_rows: int = 0  # completions sampled at the same time, …
    rollout_tokens: int = 0  # … each with its prompt of up to so many tokens
    copies_attended: bool = False  # attention row by row: its output is put together once more
    scored: int = 0  # attention by plain products: tokens that each is scored against, in the mean; 0: scores not held


@dataclass(frozen=True)
class Memory:
    """Predicted bytes by part. `peak` is the most that is there at once on the device; `host` what lies outside it.

    `static` stays for the whole run, `moving` comes and goes within a micro-batch and is given as it is at the peak.
    """

    static: dict[str, int]
    moving: dict[str, int]
    host: dict[str, int] = field(default_factory=dict)
    spare: int = 0  # bytes that the allocator holds beside them

    @property
    def peak(self) -> int:
        """Bytes of tensors on the device at the worst moment."""
        return sum(self.static.values()) + sum(self.moving.values())

    @property
    def reserved(self) -> int:
        """Bytes that the allocator will hold for them."""
        return self.peak + self.spare

    def to_json(self) -> dict[str, object]:
        """By part, with the sums."""
        return {
            "static": self.static, "moving": self.moving, "host": self.host, "peak_bytes": self.peak,
            "reserved_bytes": self.reserved,
        }  # fmt: skip


def predict(shape: ModelShape, work: Workload) -> Memory:
    """The memory of one training step of `work` on a model of `shape`."""
    full, adapter = work.scope == "full", sum(_adapter(shape, work))
    trained = (
        [(size, table) for size, table in shape.tensors()] if full else [(n, False) for n in _adapter(shape, work)]
    )
    models = 2 if work.second_trained else 1
    static = {
        "weights": models * weight_bytes(
            shape, work.scope, 4 if work.wide_base else work.width, nested=work.nested
        ),
        "adapter": models * 4 * adapter, "frozen models": work.frozen_copies * work.width * shape.parameters,
    }  # fmt: skip
    moments, on_host = optimizer_bytes(work.optim, trained, offload=work.offload_optimizer)
    static["optimizer"] = models * moments
    gradients = models * 4 * sum(size for size, _ in trained)
    activations, again, host_activations = _activations(shape, work)
    casts, casts_later = _casts(shape, work, adapter)
    head = _head(shape, work)
    vocabulary = 4 * shape.vocabulary * shape.hidden if full else 0
    visit = 8 * max((size for size, _ in trained), default=0) if on_host else 0  # one tensor of moments at a time
    # The worst moment is one of five: in the head, in the first layer of the backward pass, at its end, …
    at_head = {"activations": activations, "casts": casts, "head": head}
    in_layer = {
        "activations": activations + again, "casts": casts_later, "gradients of a layer": _of_a_layer(shape, work),
    }  # fmt: skip
    at_end = {"head": vocabulary}
    update = {"optimizer's visit": visit}
    rollout = {
        "key-value cache": work.rollout_rows * work.rollout_tokens * shape.kv_bytes_per_token(work.width),
        "head": 8 * work.rollout_rows * shape.vocabulary,
    }  # fmt: skip
    if work.kept_gradients:
        static["gradients"] = gradients
    else:  # they come while activations go
        at_end["gradients"] = update["gradients"] = gradients
    moving = max((at_head, in_layer, at_end, update, rollout), key=lambda moment: sum(moment.values()))
    host = {"optimizer": models * on_host, "activations": host_activations}
    spare = LAYERS_SPARE[work.compiled] * work.tokens * layer_bytes(shape, work) + math.ceil(HEAD_SPARE * head)
    static, moving, host = (
        {name: size for name, size in part.items() if size} for part in (static, moving, host)
    )  # fmt: skip
    return Memory(static, moving, host, spare)


def weight_bytes(shape: ModelShape, scope: str, width: int, *, nested: bool = False) -> int:
    """The model that trains: float32 where every value does; else frozen in `width` bytes, or in NF4."""
    if scope == "full":
        return 4 * shape.parameters
    if scope == "qlora":
        rest = shape.parameters - shape.linear_parameters
        return math.ceil(NF4_BITS[nested] / 8 * shape.linear_parameters) + width * rest
    return width * shape.parameters


def optimizer_bytes(optim: str, tensors: list[tuple[int, bool]], *, offload: bool = False) -> tuple[int, int]:
    """(device, host) bytes of the moments for tensors of so many values, each a vocabulary table or not."""
    values = sum(size for size, _ in tensors)
    if optim == "sgd":
        return 0, 0
    if optim == "adamw_torch_offload" or (offload and optim == "adamw_torch"):
        return 0, 8 * values
    if optim == "paged_adamw_32bit":
        return 0, 8 * values
    if optim == "adamw_torch":
        return 8 * values, 0
    small = sum(8 * size for size, table in tensors if table or size < EIGHT_BIT_FROM)
    wide = [size for size, table in tensors if not table and size >= EIGHT_BIT_FROM]
    total = small + sum(2 * size + 8 * math.ceil(size / _BLOCK) for size in wide)
    return (0, total) if optim == "paged_adamw_8bit" else (total, 0)


def layer_bytes(shape: ModelShape, work: Workload) -> int:
    """Bytes that one layer keeps for its backward pass, a token."""
    full, cast, w = work.scope == "full", work.width != 4, work.width
    h, a, k, f = shape.hidden, shape.query, shape.key, shape.inner
    adapted = [] if full else shape.targets(work.targets)
    inputs = [shape.linear[name][0] for name in adapted]
    small = (0 if work.scored else 4 * shape.heads) + 8 + w * work.rank * len(adapted)
    if work.dropout:
        small += sum(inputs) * (1 if cast else 1 + w)
    if shape.head_norms:
        small += 4 * shape.heads * (a + k) // a
    if work.compiled:
        values = 4 * h + 2 * a + 2 * k + 3 * f
        values += a if cast and not full else 0
        values += a + k if shape.head_norms else 0
        return w * values + small + (2 * h if cast and full else 0)
    if full:
        inputs_kept = (5 if cast else 2) * h + f
    elif cast:
        inputs_kept = sum(inputs)
    else:
        inputs_kept = _shared_inputs(shape, adapted)
    if work.copies_attended and (full or not cast):
        inputs_kept += a
    norms = (16 if full else 8) * h
    if shape.head_norms:
        norms += (4 + (w if full else 0)) * (a + k)
    attended = a if full or not work.scored or "o_proj" in adapted else 0
    return w * (inputs_kept + a + attended + 2 * k + 3 * f) + norms + small


def _shared_inputs(shape: ModelShape, adapted: list[str]) -> int:
    """Values of inputs of adapted projections, one for those that read the same; attended ones are kept anyway."""
    groups = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("down_proj",))
    return sum(shape.linear[group[0]][0] for group in groups if set(group) & set(adapted))


def _activations(shape: ModelShape, work: Workload) -> tuple[int, int, int]:
    """Bytes kept by all layers and the last norm after the forward pass, of a layer computed again, and on the host."""
    full = work.scope == "full"
    saved = shape.layers // work.checkpoint_every if work.checkpoint_every else 0
    layer = layer_bytes(shape, work)
    boundary = shape.hidden * (4 if full else work.width)
    kept = (shape.layers - saved) * layer + saved * boundary
    around = shape.hidden * (4 + (4 if full else 0) + work.width) + 16 + (16 if work.scored else 0)
    again = work.tokens * layer if saved or work.offload_activations else 0
    if work.offload_activations:
        return work.tokens * around, again, work.tokens * kept
    return work.tokens * (kept + around), again, 0


def _casts(shape: ModelShape, work: Workload, adapter: int) -> tuple[int, int]:
    """Copies of float32 weights in the numbers of the forward pass: in the head's backward pass, and in a layer's.

    Layers that are not computed again keep theirs; the others make them anew.
    """
    if work.width == 4:
        return 0, 0
    if work.scope != "full":
        return work.width * adapter, work.width * adapter
    saved = shape.layers // work.checkpoint_every if work.checkpoint_every else 0
    kept, one = (
        shape.linear_parameters * (shape.layers - saved) // shape.layers,
        shape.linear_parameters // shape.layers,
    )
    return work.width * (kept + shape.vocabulary * shape.hidden), work.width * (kept + (one if saved else 0))


def _head(shape: ModelShape, work: Workload) -> int:
    """The vocabulary head at its worst: a chunk of logits and what is made of it, hidden states, their gradients."""
    counted = work.tokens if work.counted is None else work.counted
    logits = min(work.chunk, counted) * shape.vocabulary
    kept = counted * shape.hidden * work.width * 2
    if work.scope == "full":  # logits, their softmax and gradients; the gradient of the table, narrow and then wide
        return kept + 20 * logits + (4 + work.width % 4) * shape.vocabulary * shape.hidden
    if work.plain_head:
        return kept + 28 * logits
    several = work.width if work.chunk < counted else 0  # the slope of the chunk before is there until the next is made
    return kept + ((6 if work.compiled else 21) + several) * logits


def _of_a_layer(shape: ModelShape, work: Workload) -> int:
    """What the backward pass of one layer makes: gradients of the inner values and of the input; later, where scores
    are made again, these and what they are made of, when all that the layer kept behind its attention is gone."""
    inner = 3 * work.width * (shape.inner + shape.hidden)
    return work.tokens * max(inner, _of_scores(shape, work) if work.scored else 0)


def _of_scores(shape: ModelShape, work: Workload) -> int:
    """Bytes a token of scores in a backward pass, beyond what the layer has kept for the steps behind them."""
    full, h, a, k, w = work.scope == "full", shape.hidden, shape.query, shape.key, work.width
    inputs = h if full or {"q_proj", "k_proj", "v_proj"} & set(shape.targets(work.targets)) else 0
    before = w * (inputs + a + 2 * k) + (8 if full else 4) * h
    return 12 * shape.heads * work.scored + w * (3 * a + h) - (layer_bytes(shape, work) - before)


def _adapter(shape: ModelShape, work: Workload) -> list[int]:
    return [] if work.scope == "full" else shape.adapter_tensors(work.rank, work.targets, dora=work.dora)


def largest(shape: ModelShape, work: Workload, budget: int, *, tokens_a_row: int, most: int = 1 << 20) -> int:
    """The most rows of `tokens_a_row` tokens that a micro-batch can have within `budget` bytes; 0 when none fits."""
    share = 1.0 if work.counted is None else work.counted / max(1, work.tokens)

    def fits(rows: int) -> bool:
        tokens = rows * tokens_a_row
        counted = None if work.counted is None else math.ceil(tokens * share)
        return predict(shape, replace(work, tokens=tokens, counted=counted)).reserved <= budget

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
