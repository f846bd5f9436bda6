"""Forward and backward of a micro-batch, by the fastest way that its model and device allow.

    graph     the layers compiled, forward and backward recorded once for each shape and replayed as one CUDA graph
    compiled  the layers compiled
    eager     rows end to end through the model as it is
    rows      each row through the model alone: for layers that carry state from one row into the next

All give the same losses and gradients up to rounding. `auto` is `graph` on CUDA in bfloat16 and `eager` elsewhere; what
the model does not take falls to the next way down, and `notes` says so. Asked for by name, a way that fails raises.

A step of a small model is bound by the launches of its thousands of kernels, not by arithmetic: replaying a recording
leaves one launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from lpt_train.adapters import trainable
from lpt_train.flat import FlatBatch, Shape, flatten
from lpt_train.heads import causal_model, decoder, draws, head_logprobs
from lpt_train.models import Placement
from lpt_train.packing import Row
from lpt_train.ranks import SOLO, Ranks
from lpt_train.recompute import on_host
from lpt_train.sharded import shard
from lpt_train.varlen import NAME
from lpt_train.watch import Watch, unwatched
from manifests.errors import LptError, RefusedError

WAYS = ("graph", "compiled", "eager", "rows")
Extras = Mapping[str, torch.Tensor]
# (log-probs [N] or what the head gives, batch, extras) -> the scalar to go backward from, and tensors to report.
Objective = Callable[[torch.Tensor, FlatBatch, Extras], tuple[torch.Tensor, dict[str, torch.Tensor]]]
# (model, hidden states [T, H], batch) -> the values that the objective is about, where they are not log-probs.
Head = Callable[[torch.nn.Module, torch.Tensor, FlatBatch], torch.Tensor]

COMPILED: dict[str, Any] = {"emulate_precision_casts": True}  # options of the compiler

# A micro-batch of nothing: what a process computes when a step has none left for it.
BLANK = Row(-1, np.zeros(2, np.int32), np.zeros(2, np.uint8))

Work = Callable[[FlatBatch, Extras], dict[str, torch.Tensor]]


class MicroBatch:
    """Runs micro-batches of one model: call it with rows, and gradients are added to the parameters'."""

    def __init__(
        self,
        model: torch.nn.Module,
        place: Placement,
        objective: Objective,
        *,
        execution: str,
        longest: int,
        most_tokens: int,
        most_rows: int,
        pad_id: int,
        most_scores: int | None = None,
        chunk: int = 1024,
        head: Head | None = None,
        ranks: Ranks = SOLO,
    ) -> None:
        self.model, self.place, self.objective, self.pad_id, self.chunk = model, place, objective, pad_id, chunk
        self.head, self.ranks = head, ranks
        self.notes: list[str] = []
        self.watch: Watch = unwatched  # of what is computed before the first step
        self.offload_activations = False
        self.memory: Any = None  # what `memory.fit` predicted
        self._most_tokens = most_tokens
        self.most_scores = most_tokens * longest if most_scores is None else most_scores  # `steps.scores` of a line
        self._plain = Shape(longest)
        self._filled = Shape.of(longest, most_tokens, most_rows, chunk)
        self._recorded: dict[Any, Work] = {}
        self._warm: set[Any] = set()  # shapes that have run once, so that they are compiled
        self._pool: Any = None
        self._asked = execution
        self.way = self._choose(execution)
        self._through = self._hidden_logprobs if not ranks.sharded else shard(
            model, self._hidden_logprobs, _layers(model) or (), world=ranks.world, place=place
        )  # fmt: skip
        self._parameters = trainable(model)  # walking through the modules takes longer than a replay

    @property
    def _compiled(self) -> bool:
        return self.way in ("graph", "compiled")

    def program(self) -> dict[str, Any]:
        """What decides how a value is rounded, besides weights and rows: two runs that agree in it agree to the bit."""
        device, work = self.place.device, getattr(self.memory, "work", None)
        cuda, matmul = device.type == "cuda", torch.backends.cuda.matmul
        reduced = (
            matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction,
            matmul.allow_fp16_reduced_precision_reduction,
        )  # fmt: skip
        return {
            "way": self.way, "dtype": str(self.place.dtype), "chunk": self.chunk, "sharding": self.ranks.sharding,
            "filled": str(self._filled) if self._compiled else "", "plain": str(self._plain),
            "matmul": [torch.get_float32_matmul_precision(), *(map(str, reduced) if cuda else ())],
            "recomputed": [self.offload_activations, getattr(work, "checkpoint_every", 0)],
            "device": torch.cuda.get_device_name(device) if cuda else torch.backends.cpu.get_cpu_capability(),
            "threads": 0 if cuda else torch.get_num_threads(),
        }  # fmt: skip

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest line, filler included."""
        shape = self._filled if self._compiled else self._plain
        return math.ceil(self._most_tokens / shape.tokens) * shape.tokens

    def leave_recordings(self, option: str, because: str) -> None:
        """Run compiled layers in place of recordings, which do not go with `option`; refused if recordings were asked
        for by name."""
        if self.way != "graph":
            return
        if self._asked == "graph":
            raise RefusedError(
                f"a recording does not go with {option}: {because}", seen=f"execution=graph, {option}",
                next=f"--set execution=compiled, or leave out {option}",
            )  # fmt: skip
        self.way = "compiled"
        self.notes.append(f"execution=graph does not go with {option} ({because}); compiled layers are used")

    def draws_twice(self) -> bool:
        """Whether dropout is drawn again in the backward pass: that reads the generator, which a recording may not."""
        again = any(getattr(layer, "gradient_checkpointing", False) for layer in _layers(self.model) or ())
        head = causal_model(self.model).get_output_embeddings()  # None: a reward model reads one number, once
        return (head is not None and draws(head)) or (again and draws(self.model))

    def __call__(self, rows: Sequence[Row], extras: Extras) -> dict[str, torch.Tensor]:
        """Add the gradients of these rows; return `loss` and what the objective reports, detached, on the device."""
        return self._run("train", self._forward_backward, rows, extras)

    def row_logprobs(self, rows: Sequence[Row]) -> torch.Tensor:
        """Summed log-probs of the targets of each row, float32 [rows], as the forward pass that trains rounds them; a
        recording with dropout is another than one without."""
        return self._run(f"scored, training={self.model.training}", self._scored, rows, {})["sums"][: len(rows)]

    @torch.no_grad()
    def plain_logprobs(self, rows: Sequence[Row]) -> torch.Tensor:
        """Summed log-probs of the targets of each row, float32 [rows], as an evaluation rounds them: see `logprobs`."""
        return row_sums(*self.logprobs(rows))[: len(rows)]

    def start_logprobs(
        self, batches: Iterable[Sequence[Row]], score: Callable[[Sequence[Row]], torch.Tensor]
    ) -> list[torch.Tensor]:
        """`score` (`row_logprobs` or `plain_logprobs`) of each batch under the model as it is now, without dropout.

        Asked before the first step this is the model that a run starts from. It is read through the very program that
        it will be compared with, for another one rounds otherwise, which in bfloat16 is a margin before anything was
        learned; compiled layers of weights that are spread over processes alone are read without gradients. A fresh
        adapter stays on (it adds nothing yet), and compiled layers without dropout stay as they train.
        """
        was_training = self.model.training
        self.model.train(was_training and self._compiled and not draws(self.model))
        try:
            return [score(rows).float().cpu() for rows in batches]
        except torch.OutOfMemoryError as error:  # before the run's own guard
            raise (error if self.memory is None else self.memory.answer(error)) from error
        finally:
            self.model.train(was_training)

    def _scored(self, batch: FlatBatch, extras: Extras) -> dict[str, torch.Tensor]:
        """Without gradients where that changes no rounding; compiled layers are another program with them."""
        with torch.set_grad_enabled(self._compiled and not self.ranks.sharded):
            return {"sums": row_sums(self._forward(batch), batch).detach()}

    def _forward(self, batch: FlatBatch) -> torch.Tensor:
        with self.place.autocast(), on_host(self.model.parameters()) if self.offload_activations else nullcontext():
            return self._through(batch)

    def _run(self, name: str, work: Work, rows: Sequence[Row], extras: Extras) -> dict[str, torch.Tensor]:
        batch = flatten(rows, self.pad_id, self._filled if self._compiled else self._plain).to(self.place.device)
        extras = {key: tensor.to(self.place.device) for key, tensor in extras.items()}
        if self.way != "graph":
            return work(batch, extras)
        key = (name, *(tensor.shape for tensor in (*batch.tensors().values(), *extras.values())))
        if key not in self._recorded:
            try:
                # A replay draws dropout anew; what making it draws is given back, or a resumed run would draw others.
                with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
                    if key not in self._warm:
                        self._warm_up(work, batch, extras)
                        self._warm.add(key)
                    self._recorded[key] = self._record(work, batch, extras)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # what the compiler or a recording does not take
                if self._asked != "auto" or self._warm:
                    raise
                self._give_up_compiling(_in_one_line(error))
                return self._run(name, work, rows, extras)
        return self._recorded[key](batch, extras)

    def zero_grad(self) -> None:
        """Forget the gradients; a recording goes on to write into the same memory."""
        if self.way == "graph":
            torch._foreach_zero_(self._gradients())
        else:
            for parameter in self._parameters:
                parameter.grad = None

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row]) -> tuple[torch.Tensor, FlatBatch]:
        """Log-probs [N] of the targets of rows, or what the head gives, without gradients, filler or compilation."""
        batch = flatten(rows, self.pad_id, self._plain).to(self.place.device)
        with torch.compiler.set_stance("force_eager"), self.place.autocast():
            return self._through(batch), batch

    @torch.no_grad()
    def _hidden_of(self, rows: Sequence[Row]) -> torch.Tensor:
        with self.place.autocast():
            return self._hidden(flatten(rows, self.pad_id, self._plain).to(self.place.device)).float()

    def _hidden_logprobs(self, batch: FlatBatch) -> torch.Tensor:
        hidden_T_H = self._hidden(batch)
        if self.head is not None:
            return self.head(self.model, hidden_T_H, batch)
        return head_logprobs(
            self.model, hidden_T_H[batch.predict_N], batch.targets_N, 1.0, self.chunk, False,
            compiled=self._compiled,
        )[0]  # fmt: skip

    def _hidden(self, batch: FlatBatch) -> torch.Tensor:
        body, ids, positions = decoder(self.model), batch.input_ids_1_T, batch.position_ids_1_T
        if self.way == "rows":
            ends = batch.cu_seqlens.tolist()
            parts = [
                body(input_ids=ids[:, a:b], position_ids=positions[:, a:b], use_cache=False).last_hidden_state[0]
                for a, b in zip(ends[:-1], ends[1:], strict=True)
                if a < b
            ]
            return torch.cat(parts)
        return body(
            input_ids=ids, position_ids=positions, attention_mask=None, use_cache=False, cu_seqlens=batch.cu_seqlens,
            longest=batch.longest,
        ).last_hidden_state[0]  # fmt: skip

    def _forward_backward(self, batch: FlatBatch, extras: Extras) -> dict[str, torch.Tensor]:
        loss, report = self.objective(self._forward(batch), batch, extras)
        loss.backward()
        return {"loss": loss.detach(), **{name: value.detach() for name, value in report.items()}}

    def _gradients(self) -> list[torch.Tensor]:
        """The gradients, made once: a recording adds to the memory that it found."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def _warm_up(self, work: Work, batch: FlatBatch, extras: Extras) -> None:
        """Compile what a new shape needs; the gradients that are there already stay as they are.

        Recordings hold memory of their own. They are dropped first and made again when their shapes come back, so that
        a warm-up never needs its memory beside theirs.
        """
        self._recorded.clear()
        self._pool = None
        torch.cuda.empty_cache()
        gradients = self._gradients()
        before = [gradient.clone() for gradient in gradients]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work(batch, extras)
        torch.cuda.current_stream().wait_stream(side)
        torch._foreach_copy_(gradients, before)
        torch.cuda.empty_cache()

    def _record(self, work: Work, batch: FlatBatch, extras: Extras) -> Work:
        """Record the work of one shape."""
        still = {name: tensor.clone() for name, tensor in batch.tensors().items()}
        still_extras = {name: tensor.clone() for name, tensor in extras.items()}
        still_batch = batch.with_tensors(still)
        graph = torch.cuda.CUDAGraph()
        # Of this thread alone: NCCL has one that looks after events of its own.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outcome = work(still_batch, still_extras)
        self._pool = self._pool or graph.pool()

        def replay(batch: FlatBatch, extras: Extras) -> dict[str, torch.Tensor]:
            for name, tensor in batch.tensors().items():
                still[name].copy_(tensor)
            for name, tensor in extras.items():
                still_extras[name].copy_(tensor)
            graph.replay()
            return {name: value.clone() for name, value in outcome.items()}  # the next replay writes over them

        return replay

    def _give_up_compiling(self, problem: str) -> None:
        self.way = "eager"
        told = self.notes if self.memory is None else self.memory.notes  # which the run reads at its end
        told.append(f"execution=graph does not fit this model ({problem}); eager is used")
        for layer in _layers(self.model) or ():
            layer._compiled_call_impl = None
        for parameter in self._parameters:
            parameter.grad = None  # the first micro-batch of the run: nothing is lost

    def _choose(self, execution: str) -> str:
        way = self._found(execution)
        if self.ranks.sharded and way in ("graph", "rows"):  # gathered anew in each pass; a pass of each row of its own
            raise RefusedError(
                f"execution={way} does not go with weights that are spread over processes", seen="sharding=fsdp2",
                next="sharding=none, or execution=auto",
            )  # fmt: skip
        return way

    def _found(self, execution: str) -> str:
        if execution == "rows":
            return "rows"
        asked = execution
        if execution == "auto":
            cuda = self.place.device.type == "cuda" and not self.ranks.sharded
            fast = cuda and self.place.dtype is torch.bfloat16
            execution = "graph" if fast else "eager"
        for way in WAYS[WAYS.index(execution) :]:
            problem = self._problem(way)
            if problem is None:
                return way
            if asked == way:
                raise RefusedError(f"this model does not run with execution={way}", seen=problem, next="execution=auto")
            self.notes.append(f"execution={way} does not fit this model ({problem}); the next way down is used")
        raise LptError("no way to run the model was found", seen=execution)

    def _problem(self, way: str) -> str | None:
        """Why a way does not fit, found by two short rows against each of them alone; None when it does."""
        if way in ("graph", "compiled") and self.place.device.type != "cuda":
            return "no CUDA device"
        if way in ("graph", "compiled") and self.place.dtype is torch.float32:
            return "attention in float32 reads the lengths of rows on the host; dtype=bfloat16 does not"
        causal = causal_model(self.model)
        own = getattr(causal.config, "_attn_implementation", "sdpa")
        rows = [Row(n, torch.arange(n, n + 5).int().numpy(), torch.ones(5).byte().numpy()) for n in (1, 3)]
        was_training = self.model.training
        self.model.eval()
        self.way = "rows"
        try:
            alone_T_H = self._hidden_of(rows)
            if way != "rows":
                causal.set_attn_implementation(NAME)
                if getattr(causal.config, "_attn_implementation", None) != NAME:
                    raise RefusedError("its attention cannot be exchanged")
                self.way = "eager"
                gap = float((self._hidden_of(rows) - alone_T_H).abs().max() / alone_T_H.abs().max())
                if not gap <= 0.02:
                    raise RefusedError("rows are not isolated", seen=f"hidden states differ by {gap:.1%}")
        except (LptError, TypeError, ValueError, RuntimeError, NotImplementedError) as error:
            if way == "rows":
                raise
            causal.set_attn_implementation(own)
            return _in_one_line(error)
        finally:
            self.model.train(was_training)
        return _compile(self.model) if way in ("graph", "compiled") else None


def row_sums(values_N: torch.Tensor, batch: FlatBatch) -> torch.Tensor:
    """Sums of the values of the targets over each row [S]; always added in the same order."""
    rows_S_1 = torch.arange(batch.cu_seqlens.shape[0] - 1, device=values_N.device)[:, None]
    return ((batch.rows_N[None] == rows_S_1) * (values_N * batch.weights_N)[None]).sum(1)


def _compile(model: torch.nn.Module) -> str | None:
    """Compile the layers of the decoder, each on its own: they share one compilation, seconds instead of minutes.

    They round where eager layers do. A fused sum of residual, product and adapter that is rounded once falls on ties so
    often that any trace of an adapter decides them all: in bfloat16 the first updates of a run count for far too much
    (docs/log.md).
    """
    layers = _layers(model)
    if layers is None:
        return "its layers were not found"
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    for layer in layers:
        layer.compile(fullgraph=True, dynamic=False, options=dict(COMPILED))
    return None


def _layers(model: torch.nn.Module) -> Any:
    return getattr(decoder(model), "layers", None)


def _in_one_line(error: Exception) -> str:
    if isinstance(error, LptError):
        return f"{error.what}: {error.seen}" if error.seen else error.what
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
