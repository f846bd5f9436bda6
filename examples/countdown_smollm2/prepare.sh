#!/usr/bin/env bash
# Data for the recipe: problems → split by key → admitted twice, for sft and for rlvr. usage: prepare.sh WORK
set -euo pipefail
work=$1
export LPT_CATALOG=$work/.lpt
mkdir -p "$work"
lpt data generate countdown --n 40000 --numbers 3 --low 1 --high 50 --seed 20 --out "$work/problems.jsonl"
lpt data dedup "$work/problems.jsonl" --out "$work/unique.jsonl" --key row --method exact
lpt data split "$work/unique.jsonl" --key countdown --test 1000 --validation 500 --seed 20 --out "$work/splits"
for contract in sft rlvr; do
  lpt admit "countdown-$contract" --contract "$contract" --key countdown --out "$work/$contract" \
    --train "$work/splits/train.jsonl" --validation "$work/splits/validation.jsonl" --test "$work/splits/test.jsonl"
done
