#!/usr/bin/env bash
# SFT, GRPO, evaluation on one GPU. usage: run.sh WORK MODEL
set -euo pipefail
work=$1 model=$2
here=$(dirname "$0")
export LPT_CATALOG=$work/.lpt-gpu
n=1000 # held-out keys, declared before training; greedy, one answer a problem

lpt train sft --admitted "$work/sft/manifest.json:train" --model "$model" --out "$work/runs/sft" --config "$here/sft.yaml"
lpt train grpo --admitted "$work/rlvr/manifest.json:train" --model "$work/runs/sft" --out "$work/runs/grpo" \
  --reward countdown --config "$here/grpo.yaml"
lpt eval --admitted "$work/rlvr/manifest.json:test" --model "$work/runs/grpo" --baseline "$work/runs/sft" --n "$n" --max-tokens 48 --json \
  > "$work/eval.json"
cat "$work/eval.json"
lpt sql "select run_id, algorithm, verified, steps from v_run"
