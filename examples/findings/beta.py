"""DPO with β 0.05, 0.10 and 0.30 on the same pairs, order and start. usage: beta.py WORK [--model M]

β is the price of leaving the reference. A larger one buys the same reward with less movement, so that on hidden pairs
the reward margin (β times the gap of log-ratios) grows with β while everything that measures drift falls: the gap
itself, the mean |change of log-prob| a token, and the KL of sampled completions to the reference, summed over the
vocabulary.
"""

from common import finding, measured, rising

BETAS = (0.05, 0.10, 0.30)


def main() -> None:
    """Train, measure on hidden pairs, say whether the order is there."""
    found = finding("beta", __doc__ or "", steps=40, seeds=1, rate=0.0, kl_prompts=64, kl_tokens=48)
    args = found.args
    rate = args.rate or (1e-3 if found.tiny else 2e-4)
    reference = found.reference()
    for beta in BETAS:
        for seed in range(1, args.seeds + 1):
            run = found.train(
                "dpo", "pairs:train", f"beta-{beta}-{seed}", model=reference, beta=beta, seed=seed,
                max_steps=args.steps, learning_rate=rate, per_device_train_batch_size=8, max_length=768, lora_r=8,
                lora_alpha=16,
            )  # fmt: skip
            report = found.compared(
                run.path, reference, "pairs:test", drift=True, n=args.kl_prompts, max_completion_length=args.kl_tokens
            )
            gap = measured(report, "reward_margin")
            found.rows.append({
                "beta": beta, "seed": seed, "train_loss": run.body["metrics"]["loss"][1],
                "reward_accuracy": measured(report, "reward_accuracy"), "reward_margin": beta * gap,
                "log_ratio_gap": gap, "logp_change": measured(report, "logp_change"), "kl": measured(report, "kl"),
                "kl_per_token": measured(report, "kl_per_token"), "start": run.body["proof"]["start"][:12],
            })  # fmt: skip

    def means(name: str) -> list[float]:
        return [sum(r[name] for r in found.rows if r["beta"] == beta) / args.seeds for beta in BETAS]

    starts = {(row["seed"], row["start"]) for row in found.rows}
    found.finish({
        "the same start for every beta": len(starts) == args.seeds,
        "hidden pairs are ordered at every beta": min(means("reward_accuracy")) > 0.9,
        "the reward margin grows with beta": rising(means("reward_margin")),
        "the gap of log-ratios falls with beta": rising(means("log_ratio_gap")[::-1]),
        "the change of log-probs falls with beta": rising(means("logp_change")[::-1]),
        "the KL to the reference falls with beta": rising(means("kl")[::-1]),
    })  # fmt: skip


if __name__ == "__main__":
    main()
