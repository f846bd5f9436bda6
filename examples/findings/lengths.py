"""A ladder of lengths, 256 to 2,048 tokens, packed and not. usage: lengths.py WORK [--model M]

Continued pre-training on documents; each rung spends about as many tokens a step and as many steps. Padding is what a
batch that is filled up would waste, packed rows up to the length, unpacked ones up to the longest of their batch (lpt
itself lays rows end to end and wastes none of it on the way through the model). Truncation: rows that are longer than
the rung, and the share of all tokens that is lost with their ends. The loss is that of the same held-out documents,
whole up to 2,048 tokens.
"""

import json
import statistics

import numpy as np
from common import finding, rising

from lpt_train.likelihood import likelihood
from lpt_train.measured import load_subject
from lpt_train.models import load_tokenizer
from lpt_train.packing import Row, best_fit_decreasing, epoch_order, render_rows
from lpt_train.render import Renderer

LADDER = (256, 512, 1024, 2048)


def padded_share(rows: list[Row], size: int) -> float:
    """What filling batches of `size` rows up to their longest row adds, over all it makes."""
    lengths = np.array([len(row.ids) for row in rows])[epoch_order(len(rows), 1, 0)]
    batches = [lengths[at : at + size] for at in range(0, len(lengths), size)]
    made = sum(int(batch.max()) * len(batch) for batch in batches)
    return 1 - int(lengths.sum()) / made


def main() -> None:
    """Climb the ladder twice."""
    found = finding("lengths", __doc__ or "", steps=20, step_tokens=8192, rate=0.0)
    args = found.args
    rate = args.rate or (3e-3 if found.tiny else 1e-4)
    source = found.start
    renderer = Renderer(load_tokenizer(source))
    whole = render_rows(found.split("docs:train").rows(), renderer, max_length=10**9)
    for length in LADDER:
        cut = [Row(row.index, row.ids[:length], row.loss_mask[:length]) for row in whole.rows]
        tokens = sum(len(row.ids) for row in cut)
        for packed in (False, True):
            size = max(1, round(args.step_tokens / (length if packed else tokens / len(cut))))
            run = found.train(
                "sft", "docs:train", f"{length}-{'packed' if packed else 'rows'}", model=source, seed=1,
                max_length=length, truncation="keep_start", packing=packed, per_device_train_batch_size=size,
                max_steps=args.steps, learning_rate=rate, lora_r=8, lora_alpha=16,
            )  # fmt: skip
            lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()][3:]
            bins = best_fit_decreasing([len(row.ids) for row in cut], length) if packed else []
            subject = load_subject(str(run.path), merge=False)
            loss = likelihood(subject, found.split("docs:validation"), max_length=2048).measure("loss")
            found.rows.append({
                "max_length": length, "packed": packed, "rows_a_step": size,
                "tokens_a_step": statistics.mean(line["tokens"] for line in lines),
                "tokens_per_second": statistics.median(line["tokens"] / line["step_seconds"] for line in lines),
                "padding_share": 1 - tokens / (len(bins) * length) if packed else padded_share(cut, size),
                "truncated_rows": sum(len(row.ids) > length for row in whole.rows) / len(whole.rows),
                "tokens_lost": 1 - tokens / whole.tokens, "heldout_loss": loss.value,
                "peak_memory_mb": run.body["peak_memory_bytes"] / 2**20,
            })  # fmt: skip
    packed_rows = [row for row in found.rows if row["packed"]]
    plain_rows = [row for row in found.rows if not row["packed"]]
    found.finish({
        "truncation falls with the length": rising([row["truncated_rows"] for row in plain_rows][::-1]),
        "tokens lost fall with the length": rising([row["tokens_lost"] for row in plain_rows][::-1]),
        "packing pads less at every length": all(
            a["padding_share"] < b["padding_share"] for a, b in zip(packed_rows, plain_rows, strict=True)
        ),
    })  # fmt: skip


if __name__ == "__main__":
    main()
