#!/usr/bin/env bash
# Data of the findings, made and admitted on any machine without a GPU, in a minute. usage: prepare.sh WORK [QUESTIONS.jsonl]
# The admitted folders can be carried: the scripts need WORK/admitted and nothing else of it.
set -euo pipefail
work=$1
here=$(dirname "$0")
export LPT_CATALOG=$work/.lpt
mkdir -p "$work/admitted"
python "$here/planted.py" "$work" ${2:+"$2"}
for labels in pairs flipped; do
  lpt admit "findings-$labels" --contract preference --out "$work/admitted/$labels" \
    --train "$work/$labels.jsonl" --test "$work/hidden.jsonl" || [ $? -eq 3 ] # 3: tune, which may be trained on
done
lpt admit findings-chats --contract sft --out "$work/admitted/chats" \
  --train "$work/chats.jsonl" --validation "$work/chats-held.jsonl" || [ $? -eq 3 ]
# Long documents for the ladder of lengths: the documentation of the packages that are installed here.
lpt data generate package-docs --out "$work/docs.jsonl" --max-bytes 6000000
lpt data dedup "$work/docs.jsonl" --out "$work/unique.jsonl" --method exact,minhash
lpt data split "$work/unique.jsonl" --key text --validation 60 --seed 1 --out "$work/docs"
lpt admit findings-docs --contract text --out "$work/admitted/docs" \
  --train "$work/docs/train.jsonl" --validation "$work/docs/validation.jsonl" || [ $? -eq 3 ]
