"""DPO on correct labels and on the same pairs with half of the labels flipped. usage: labels.py WORK [--model M]

Labels that are wrong half of the time say nothing: the loss goes down on the pairs that are trained, by heart, and
hidden pairs are ordered no better than by chance. A training loss alone does not tell the two apart; hidden pairs do.
"""

from common import finding, measured


def main() -> None:
    """Train on both, measure both on the same hidden pairs."""
    found = finding("labels", __doc__ or "", steps=40, rate=0.0, beta=0.1)
    args = found.args
    rate = args.rate or (1e-3 if found.tiny else 2e-4)
    reference = found.reference()
    for labels in ("pairs", "flipped"):
        run = found.train(
            "dpo", f"{labels}:train", labels, model=reference, beta=args.beta, seed=1, max_steps=args.steps,
            learning_rate=rate, per_device_train_batch_size=8, max_length=768, lora_r=8, lora_alpha=16,
        )  # fmt: skip
        report = found.compared(run.path, reference, "pairs:test")
        accuracy = next(m for m in report.together if m.name == "reward_accuracy")
        first, last = (run.body["metrics"][name][1] for name in ("loss", "rewards/accuracies"))
        found.rows.append({
            "labels": labels, "train_loss": first, "train_accuracy": last, "hidden_accuracy": accuracy.value,
            "low": accuracy.low, "high": accuracy.high, "hidden_margin": args.beta * measured(report, "reward_margin"),
            "n": accuracy.n, "start": run.body["proof"]["start"][:12],
        })  # fmt: skip
    correct, flipped = found.rows
    found.finish({
        "the same start": correct["start"] == flipped["start"],
        "correct labels order hidden pairs": correct["low"] > 0.9,
        "half-flipped labels order them by chance": abs(flipped["hidden_accuracy"] - 0.5) < 0.25,
        "their margin is less than a quarter": abs(flipped["hidden_margin"]) < correct["hidden_margin"] / 4,
    })  # fmt: skip


if __name__ == "__main__":
    main()
