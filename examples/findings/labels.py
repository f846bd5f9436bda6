"""DPO on correct labels and on the same pairs with half of the labels flipped. usage: labels.py WORK [--model M]

Labels that are wrong half of the time say nothing: on hidden pairs the probability that the model gives to the better
side, σ(β times the gap of log-ratios), stays at a half. Their accuracy alone says less: these pairs differ in one
thing, so that a small rest of it, left by the last steps, tips most of them to the same side, either one. Each seed of
--seeds is a pair of runs from one reference; what was expected has to hold in all of them.
"""

import math

from common import finding, measured


def main() -> None:
    """Train on both, measure both on the same hidden pairs."""
    found = finding("labels", __doc__ or "", steps=40, rate=0.0, beta=0.1, seeds="1,2,3")
    args = found.args
    rate = args.rate or (1e-3 if found.tiny else 2e-4)
    reference = found.reference()
    for seed in map(int, args.seeds.split(",")):
        for labels in ("pairs", "flipped"):
            run = found.train(
                "dpo", f"{labels}:train", f"{labels}-{seed}", model=reference, beta=args.beta, seed=seed,
                max_steps=args.steps, learning_rate=rate, per_device_train_batch_size=8, max_length=768, lora_r=8,
                lora_alpha=16,
            )  # fmt: skip
            report = found.compared(run.path, reference, "pairs:test")
            accuracy = next(m for m in report.together if m.name == "reward_accuracy")
            first, last = (run.body["metrics"][name][1] for name in ("loss", "rewards/accuracies"))
            before, after = (evaluations[0].items for evaluations in report.found.values())
            gaps = [args.beta * (b.margin - a.margin) for a, b in zip(before, after, strict=True)]
            found.rows.append({
                "labels": labels, "seed": seed, "train_loss": first, "train_accuracy": last,
                "hidden_accuracy": accuracy.value, "low": accuracy.low, "high": accuracy.high,
                "hidden_margin": args.beta * measured(report, "reward_margin"),
                "hidden_probability": sum(1 / (1 + math.exp(-gap)) for gap in gaps) / len(gaps),
                "n": accuracy.n, "start": run.body["proof"]["start"][:12],
            })  # fmt: skip
    both = list(zip(found.rows[::2], found.rows[1::2], strict=True))
    found.finish({
        "the same start": all(correct["start"] == flipped["start"] for correct, flipped in both),
        "correct labels order hidden pairs": all(correct["low"] > 0.9 for correct, _ in both),
        "half-flipped labels leave them undecided": all(
            abs(flipped["hidden_probability"] - 0.5) < 0.1 for _, flipped in both
        ),
        "and move that probability less than a quarter as far": all(
            abs(flipped["hidden_probability"] - 0.5) < (correct["hidden_probability"] - 0.5) / 4
            for correct, flipped in both
        ),
        "their margin is less than a quarter": all(
            abs(flipped["hidden_margin"]) < correct["hidden_margin"] / 4 for correct, flipped in both
        ),
    })  # fmt: skip


if __name__ == "__main__":
    main()
