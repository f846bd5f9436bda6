"""SFT, DPO and KTO through TRL's trainers: the same admitted split, options and records as the loops of this package.

TRL's trainer gets our ids, masks and order and does the updates: losses, gradients, optimizer and schedule are its own.
Around it stand the door for data, the record of the run, the proof of its update and checkpoints in our layout, so that
`lpt eval`, `--model RUN` and the like take what it made. What TRL lacks of our options is refused by name.

Left out: resuming (TRL's trainers go on from pickled optimizer states, which are neither written nor read here, so a
run that was stopped is a model to start from and no more), the steps of a mixture, several processes or GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import DPOConfig, DPOTrainer, KTOTrainer, SFTTrainer
from trl import KTOConfig as TrlKTOConfig
from trl import SFTConfig as TrlSFTConfig

from lpt_train.adapters import lora_config, parameter_report, report_line
from lpt_train.admitted import AdmittedSplit, check_contract, check_tokenizer, check_trains, split_notes
from lpt_train.checkpoint import save_checkpoint
from lpt_train.config import SFTConfig, to_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import PreferenceConfig
from lpt_train.engines.trl_data import Work, dpo_work, kto_work, sft_work
from lpt_train.engines.trl_options import Config, arguments, check_options
from lpt_train.models import (
    Placement,
    check_vocabulary,
    load_model,
    load_tokenizer,
    model_digest,
    pad_id,
    placement,
    resolve,
)
from lpt_train.preference import loss_options
from lpt_train.proof import Proof
from lpt_train.render import Renderer
from lpt_train.resume import not_with_trl
from lpt_train.runs import Progress, Run, RunResult, seed_everything
from lpt_train.speed import Speed, evaluations_after
from lpt_train.steps import batched
from lpt_train.stop import StopRequest
from lpt_train.watch import FIRST, begins, waits
from manifests.catalog import Catalog
from manifests.errors import RefusedError, UsageError

OLDEST = (1, 16)


def _as_it_is(_trainer: Any, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
    """In place of TRL's tokenising: the rows are rendered already."""
    return dataset


class _DPO(DPOTrainer):
    """TRL's DPO over rendered pairs."""

    _prepare_dataset = _as_it_is


class _KTO(KTOTrainer):
    """TRL's KTO over rendered completions."""

    _prepare_dataset = _as_it_is


@dataclass(frozen=True)
class Algorithm:
    """How one kind of config is trained; `metrics` are TRL's names that a step and an evaluation record."""

    name: str
    work: Callable[..., Work]
    trainer: type
    told: type
    reference: bool
    metrics: tuple[str, ...] = ()


_REWARDS = ("rewards/chosen", "rewards/rejected", "rewards/margins")
ALGORITHMS: dict[type, Algorithm] = {
    SFTConfig: Algorithm("sft", sft_work, SFTTrainer, TrlSFTConfig, reference=False),
    PreferenceConfig: Algorithm(
        "dpo", dpo_work, _DPO, DPOConfig, reference=True,
        metrics=(*_REWARDS, "rewards/accuracies", "logps/chosen", "logps/rejected"),
    ),
    KTOConfig: Algorithm("kto", kto_work, _KTO, TrlKTOConfig, reference=True, metrics=(*_REWARDS, "kl")),
}  # fmt: skip


def train(
    config: Config,
    *,
    split: AdmittedSplit,
    out: Path | str,
    catalog: Catalog | None = None,
    progress: Progress | None = None,
    eval_split: AdmittedSplit | None = None,
    resume: bool = False,
) -> RunResult:
    """Train `config.model` by TRL on an admitted split and return the run; everything it makes is under `out`.

    Raises `UsageError` for an option that TRL does not have and for `resume`, `RefusedError` as the loops do and for
    what TRL refuses, and `LptError` when the loss or a gradient is not finite.
    """
    if type(config) not in ALGORITHMS:
        raise UsageError(
            "--engine trl trains sft, dpo and kto", seen=type(config).__name__.removesuffix("Config").lower(),
            next="leave out --engine",
        )  # fmt: skip
    algorithm, out = ALGORITHMS[type(config)], Path(out)
    place = placement(config.run.device, config.run.dtype)
    _check_can_run(config, place, resume)
    check_trains(split, algorithm.name)
    source = resolve(config.model, out, seed=config.run.seed)
    tokenizer = load_tokenizer(source)
    renderer = Renderer(tokenizer, max_length=config.max_length)
    for given in (split, *([eval_split] if eval_split is not None else [])):
        check_contract(given, algorithm.name)
        check_tokenizer(given, renderer.fingerprint, renderer.name)
    work = algorithm.work(config, split, eval_split, renderer, pad_id(tokenizer))
    seed_everything(config.run.seed)
    told = arguments(
        config, steps=work.steps, out=out, cuda=place.device.type == "cuda", bf16=place.dtype is torch.bfloat16
    )
    told |= work.told
    trainer = _trainer(algorithm, config, work, told, source, tokenizer, place)
    proof = Proof(trainer.model)
    run = Run.create(
        out, algorithm.name, config, split, {"name": source, "digest": model_digest(source)}, seed=config.run.seed,
        tokenizer=renderer.told(),
        tokenized_id=work.tokenized_id, eval_split=eval_split, catalog=catalog,
        engine={"name": "trl", "version": metadata.version("trl"), "options": _plain(told)},
    )  # fmt: skip
    run.notes += work.notes + renderer.notes_for(split.kind) + split_notes(split, eval_split, config.max_length)
    observer = Observer(trainer, work, algorithm, config, run, proof, tokenizer, progress)
    trainer.add_callback(observer)
    with run.guarded(proof) as stop:
        observer.stop = stop
        trainer.train()
    done = int(trainer.state.global_step)
    return run.finish(
        "done" if done >= work.steps else "stopped", steps=done, proof=proof.finish(),
        failures=[f"stopped by {stop.signal}"] if done < work.steps else [],
        tokens_per_second=observer.speed.tokens_per_second,
        extra={"data": work.data, **parameter_report(trainer.model), "execution": "trl"},
    )  # fmt: skip


def _check_can_run(config: Config, place: Placement, resume: bool) -> None:
    version = metadata.version("trl")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise UsageError("TRL is too old for --engine trl", seen=version, next="pip install -U 'lpt[trl]'")
    if resume:
        raise not_with_trl("resume")
    cuda = place.device.type == "cuda"
    check_options(config, cuda=cuda)
    processes, gpus = int(os.environ.get("WORLD_SIZE", "1")), torch.cuda.device_count() if cuda else 0
    if processes > 1 or gpus > 1:
        raise RefusedError(
            "--engine trl runs in one process on one device", seen=f"{processes} processes, {gpus} GPUs",
            next="start it once, with CUDA_VISIBLE_DEVICES=0",
        )  # fmt: skip


def _trainer(
    algorithm: Algorithm,
    config: Config,
    work: Work,
    told: dict[str, Any],
    source: str,
    tokenizer: Any,
    place: Placement,
) -> Any:
    """TRL's trainer, with the adapter on; its reference is the model as the run starts from it."""
    adapted = config.lora.use_peft
    dtype = place.dtype if adapted else torch.float32
    model = load_model(source, dtype=dtype, device=place.device)
    check_vocabulary(model, tokenizer)
    parts: dict[str, Any] = {"peft_config": lora_config(model, config.lora)} if adapted else {}
    if algorithm.reference and not adapted:
        parts["ref_model"] = load_model(source, dtype=dtype, device=place.device).requires_grad_(False)
    try:
        trainer = algorithm.trainer(
            model=model if adapted else model.requires_grad_(True), args=algorithm.told(**told),
            processing_class=tokenizer, train_dataset=Dataset.from_dict({"unit": list(work.order)}),
            data_collator=lambda lines: work.collate([work.units[line["unit"]] for line in lines]), **parts,
        )  # fmt: skip
    except (ValueError, NotImplementedError) as error:
        raise RefusedError(
            "TRL does not take this run", seen=f"{error}"[:400],
            next="change the option that TRL names, or train with --engine lean",
        ) from error  # fmt: skip
    trainer.remove_callback(PrinterCallback)  # it prints to where the data goes
    return trainer


def _plain(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sorted(told.items()) if name != "output_dir"}


class Observer(TrainerCallback):
    """What the loops do at the end of a step, at the points that TRL's trainer offers."""

    stop: StopRequest
    speed: Speed

    def __init__(
        self,
        trainer: Any,
        work: Work,
        algorithm: Algorithm,
        config: Config,
        run: Run,
        proof: Proof,
        tokenizer: Any,
        progress: Progress | None,
    ) -> None:
        self.trainer, self.work, self.algorithm, self.config = trainer, work, algorithm, config
        self.run, self.proof, self.tokenizer, self.progress = run, proof, tokenizer, progress

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure what the run starts from."""
        steps, every, evaluated = self.work.steps, self.config.run.eval_steps, bool(self.work.held_out)
        self.speed = Speed(0, steps, None, lambda done: evaluations_after(done, steps, every) if evaluated else 0)
        begins(self.progress, report_line(parameter_report(self.trainer.model)), self.run.notes)
        if self.work.held_out:
            with waits(self.progress, FIRST):
                measured = self.evaluated()
            self.run.log(0, measured)

    def evaluated(self) -> dict[str, float]:
        """The held-out split, measured now."""
        with self.speed.evaluation():
            found = evaluate(self.trainer, self.work, self.algorithm)
        return found | _kl(found, self.config, "eval_")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """No update by gradients that are not finite (TRL clips before, which leaves them so)."""
        gradients = [parameter.grad for parameter in self.trainer.model.parameters() if parameter.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        self.run.require_finite(state.global_step + 1, grad_norm=norm)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop where a signal asked for it; what was done so far is logged and saved first."""
        if self.stop:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The end of a step: proof, metrics, evaluation, checkpoint."""
        logs: dict[str, float] = kwargs["logs"]
        if "loss" not in logs:
            return  # of the whole run
        done, options = int(state.global_step), self.config.run
        self.run.require_finite(done, loss=logs["loss"])
        self.proof.observe(logs["grad_norm"])
        taken = self.work.taken(done - 1)
        tokens = sum(self.work.tokens(unit) for unit in taken)
        metrics = {
            name: logs[name] for name in ("loss", "grad_norm", "learning_rate", *self.algorithm.metrics) if name in logs
        }
        metrics |= _kl(metrics, self.config)
        if self.algorithm.name == "sft":
            metrics["supervised_tokens"] = sum(self.work.supervised(unit) for unit in taken)
        epoch = self.work.place(done) / len(self.work.units)
        metrics |= {"tokens": tokens, "epoch": epoch, **self.speed.step(done, tokens)}
        last = done == self.work.steps or control.should_training_stop
        if self.work.held_out and (last or (options.eval_steps and done % options.eval_steps == 0)):
            metrics |= self.evaluated()
        if last or done == 1 or "eval_loss" in metrics or done % options.logging_steps == 0:
            self.run.log(done, metrics)
        if self.progress is not None:
            self.progress(done, self.work.steps, metrics)
        if last or (options.save_steps and done % options.save_steps == 0):
            save_checkpoint(
                self.run.checkpoints, step=done, model=self.trainer.model, optimizer=None,
                provenance=self.run.provenance, config=to_mapping(self.config), tokenizer=self.tokenizer,
                cursor={"place": self.work.place(done), "units": len(self.work.units)},
                extra={"proof": self.proof.state()}, keep_last=options.save_total_limit,
            )  # fmt: skip
        self.speed.resume()


def _kl(metrics: dict[str, float], config: Config, prefix: str = "") -> dict[str, float]:
    """`kl_k1` of `lpt_train.preference`: TRL's rewards are beta times the log-ratios that it is the mean of."""
    if not isinstance(config, PreferenceConfig):
        return {}
    rewards = metrics[f"{prefix}rewards/chosen"] + metrics[f"{prefix}rewards/rejected"]
    return {f"{prefix}kl_k1": rewards / 2 / loss_options(config).beta}


@torch.no_grad()
def evaluate(trainer: Any, work: Work, algorithm: Algorithm) -> dict[str, float]:
    """TRL's loss and metrics over the held-out units as `eval_…`, each unit (sft: each supervised token) once.

    TRL's own evaluation weighs means of batches by their rows, so that the loss of SFT would depend on the batches.
    """
    trainer.model.eval()
    found: dict[str, float] = {}
    supervised = sum(work.supervised(unit) for unit in work.held_out)
    for units in batched(work.held_out, work.held_out_batch):
        batch = {
            name: value.to(trainer.args.device) if isinstance(value, torch.Tensor) else value
            for name, value in work.collate(units).items()
        }
        with trainer.compute_loss_context_manager():
            whole = {"num_items_in_batch": supervised} if algorithm.name == "sft" else {}
            loss = float(trainer.compute_loss(trainer.model, batch, **whole))
        weight = 1.0 if whole else len(units) / len(work.held_out)
        noted = {name: values[-1] for name, values in trainer._metrics["eval"].items() if name in algorithm.metrics}
        for name, value in {"loss": loss, **noted}.items():
            found[f"eval_{name}"] = found.get(f"eval_{name}", 0.0) + weight * value
    trainer._metrics["eval"].clear()
    trainer.model.train()
    return found
