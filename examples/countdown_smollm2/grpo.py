"""GRPO from Python on the admitted split, with its paired measurement. usage: grpo.py WORK MODEL [STEPS]"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import yaml

from lpt_train.admitted import load_split
from lpt_train.config import from_mapping
from lpt_train.config_grpo import GRPOConfig
from lpt_train.evaluate import evaluate, paired_difference
from lpt_train.grpo import train
from manifests.catalog import Catalog

work, model, steps = Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "150"
HELD_OUT = 1000  # keys, declared before training

catalog = Catalog.open(work / ".lpt-gpu")
options = yaml.safe_load((Path(__file__).parent / "grpo.yaml").read_text())
config = from_mapping(GRPOConfig, options | {"model": model, "reward": "countdown", "max_steps": steps})
run = train(
    config, split=load_split(f"{work}/rlvr/manifest.json:train"), out=work / "runs/grpo-python", catalog=catalog
)

test = load_split(f"{work}/rlvr/manifest.json:test")
before, after = (
    evaluate(name, test, n=HELD_OUT, max_completion_length=48, catalog=catalog) for name in (model, str(run.path))
)
sys.stdout.write(json.dumps({"run": run.run_id, **asdict(paired_difference(before, after))}, indent=2) + "\n")
