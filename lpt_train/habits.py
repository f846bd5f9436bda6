"""What people who come from other tools type, and what to type here: errors say it, nothing is an alias.

To add a name: one line in one of the two tables. Free to import.
"""

from __future__ import annotations

from collections.abc import Collection

# Value -> the choice of ours that is meant by it, wherever an option has that choice.
CHOICES = {
    "gpu": "cuda",
    "adamw": "adamw_torch",
    "adamw_torch_fused": "adamw_torch",
    "adamw_bnb_8bit": "adamw_8bit",
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "fp32": "float32",
    "wsd": "warmup_stable_decay",
    "fsdp": "fsdp2",
    "dpo": "sigmoid",
}

_OWN_LOSS = "nothing to set: of chats the assistant's tokens alone are trained, always"

# Name -> what does it here; {} is the value that was typed. A setting is written as --set takes it.
NAMES = {
    "lr": "learning_rate={}",
    "epochs": "num_train_epochs={}",
    "num_epochs": "num_train_epochs={}",
    "steps": "max_steps={}",
    "batch_size": "per_device_train_batch_size={}",
    "train_batch_size": "per_device_train_batch_size={}",
    "per_device_batch_size": "per_device_train_batch_size={}",
    "eval_batch_size": "per_device_eval_batch_size={}",
    "grad_accum": "gradient_accumulation_steps={}",
    "accumulation_steps": "gradient_accumulation_steps={}",
    "max_seq_length": "max_length={}",
    "max_seq_len": "max_length={}",
    "seq_len": "max_length={}",
    "cutoff_len": "max_length={}",
    "max_new_tokens": "max_completion_length={}",
    "optimizer": "optim={}",
    "scheduler": "lr_scheduler_type={}",
    "lr_scheduler": "lr_scheduler_type={}",
    "warmup": "warmup_steps={}",
    "grad_clip": "max_grad_norm={}",
    "gradient_clipping": "max_grad_norm={}",
    "logging_dir": "report_to=tensorboard",
    "rank": "lora_r={}",
    "lora_rank": "lora_r={}",
    "target_modules": "lora_target_modules={}",
    "lora": "use_peft=true",
    "qlora": "load_in_4bit=true",
    "torch_dtype": "dtype={}",
    "bf16": "dtype=bfloat16",
    "fp16": "dtype=bfloat16",
    "fp32": "dtype=float32",
    "fsdp": "sharding=fsdp2",
    "eval_strategy": "eval_steps=100",
    "save_strategy": "save_steps=100",
    "gamma": "simpo_gamma={}",
    "output_dir": "--out {}",
    "out_dir": "--out {}",
    "output": "--out {}",
    "model_name_or_path": "--model {}",
    "model_name": "--model {}",
    "base_model": "--model {}",
    "resume_from_checkpoint": "--resume RUN",
    "dataset": "lpt admit NAME --contract {contract} --train {}; then --admitted NAME:train",
    "dataset_name": "lpt admit NAME --contract {contract} --train {}; then --admitted NAME:train",
    "data": "lpt admit NAME --contract {contract} --train {}; then --admitted NAME:train",
    "train_file": "lpt admit NAME --contract {contract} --train {}; then --admitted NAME:train",
    "eval_dataset": "--eval NAME:validation",
    "validation_file": "--eval NAME:validation",
    "assistant_only_loss": _OWN_LOSS,
    "completion_only_loss": _OWN_LOSS,
    "train_on_inputs": _OWN_LOSS,
}


def instead(name: str, value: object, settings: Collection[str], contract: str = "sft") -> str | None:
    """Return what to type here in place of `name=value`, of an algorithm with these settings; None: no such habit."""
    text = NAMES.get(name)
    if text is None:
        return None
    setting, equals, _ = text.partition("=")
    if equals and setting.isidentifier() and setting not in settings:
        return None
    shown = str(value) if value not in ("", None) else "…"
    return text.replace("{contract}", contract).replace("{}", CHOICES.get(shown, shown) if equals else shown)
