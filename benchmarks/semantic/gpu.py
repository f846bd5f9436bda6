"""The embedder and the search of all pairs on one GPU, by the very modules that `lpt data dedup` runs.

    python benchmarks/semantic/gpu.py pack FOLDER     # here: code and MiniLM as float16 safetensors (46 MB), to carry
    cd FOLDER && python benchmarks/semantic/gpu.py run model --out F.json
                                                      # there: needs torch, transformers, tokenizers and numpy alone

Texts are made of whole words of the tokenizer, with Zipf's frequencies. Two in a hundred are copies with one word
changed, so that there are pairs to find. The peer, where it is installed, is sentence-transformers itself on the same
texts. Hits are held against products in float64 of a sample of rows with all others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lpt_data.semantic import embed, neighbours  # noqa: E402
from lpt_data.semantic.models import find_model  # noqa: E402

PEAK = 790e12  # float16 products of an H200 per second, as measured with 8192-cubed matrices


CODE = (
    "lpt_data/__init__.py",
    "lpt_data/semantic",
    "lpt_data/spill.py",
    "manifests/__init__.py",
    "manifests/errors.py",
    "manifests/files.py",
    "benchmarks/semantic",
)


def pack(target: Path) -> None:
    """Write the code that is measured, and the default embedder with its weights in float16."""
    for name in CODE:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, target / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, target / name)
    (target / "commit").write_text(_commit())
    folder = target / "model"
    import torch
    from safetensors.torch import load_file, save_file

    model = find_model("minilm")
    for name in ("config.json", "modules.json", "sentence_bert_config.json", "tokenizer.json", "1_Pooling/config.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(model.folder / name, folder / name)
    weights = load_file(model.folder / "model.safetensors")
    halves = {k: v.half() if v.dtype == torch.float32 else v for k, v in weights.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    print(target, sum(p.stat().st_size for p in target.rglob("*") if p.is_file()), "bytes")


def texts(folder: Path, count: int, words_each: tuple[int, int], seed: int = 0) -> list[str]:
    """Short texts; every fiftieth is the one before with one word changed."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = [w for w in vocabulary if w.isascii() and w.isalpha() and len(w) > 2]
    rng = np.random.default_rng(seed)
    sizes = rng.integers(*words_each, size=count)
    picked = np.minimum(rng.zipf(1.3, size=int(sizes.sum())) - 1, len(words) - 1)
    uniform = rng.integers(len(words), size=len(picked))
    picked = np.where(rng.random(len(picked)) < 0.4, picked, uniform)
    made, at = [], 0
    for n, size in enumerate(sizes.tolist()):
        made.append([words[k] for k in picked[at : at + size]])
        at += size
        if n % 50 == 49:
            made[-1] = list(made[-2])
            made[-1][int(uniform[at - 1]) % len(made[-1])] = words[int(uniform[at - 2])]
    return [" ".join(one) for one in made]


def encoded(embedder: embed.Embedder, said: list[str]) -> np.ndarray:
    chunks = [said[at : at + embedder.chunk] for at in range(0, len(said), embedder.chunk)]
    return np.concatenate([part.vectors for part in embedder.encode(chunks)])


def throughput(embedder: embed.Embedder, folder: Path, count: int, words_each: tuple[int, int]) -> tuple[dict, list]:
    said = texts(folder, count, words_each)
    started = time.perf_counter()
    vectors = encoded(embedder, said)
    seconds = time.perf_counter() - started
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    some = said[:100_000]
    started = time.perf_counter()
    tokens = sum(len(e) for e in tokenizer.encode_batch_fast(some)) / len(some)
    alone = time.perf_counter() - started
    told = {
        "texts": count,
        "tokens_a_text": round(tokens, 2),
        "seconds": round(seconds, 3),
        "texts_per_second": round(count / seconds),
        "tokenizer_alone_texts_per_second": round(len(some) / alone),
        # 2 operations for each of 10.6 million weights outside the embeddings, for each token
        "percent_of_peak": round(100 * 2 * 10.6e6 * tokens * count / seconds / PEAK, 3),
    }
    return told, [said, vectors]


def invariance(embedder: embed.Embedder, said: list[str], vectors: np.ndarray) -> dict:
    """The same texts in another order and in other company: do their vectors change?"""
    order = list(range(len(said)))
    random.Random(1).shuffle(order)
    again = encoded(embedder, [said[i] for i in order])
    moved = encoded(embedder, said[: len(said) // 3])
    differs = int((again.view(np.uint16) != vectors[order].view(np.uint16)).any(1).sum())
    fewer = int((moved.view(np.uint16) != vectors[: len(moved)].view(np.uint16)).any(1).sum())
    largest = float(np.abs(again.astype(np.float32) - vectors[order].astype(np.float32)).max())
    return {"texts": len(said), "differ_when_shuffled": differs, "differ_among_fewer": fewer, "largest": largest}


def peer(folder: Path, said: list[str], device: str) -> dict:
    try:
        import torch
        from sentence_transformers import SentenceTransformer, __version__
    except ImportError:
        return {"skipped": "sentence-transformers is not installed"}
    network = SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": torch.float16})
    network.encode(said[:2000], batch_size=512)
    started = time.perf_counter()
    network.encode(said, batch_size=512, convert_to_numpy=True)
    seconds = time.perf_counter() - started
    return {"name": "sentence-transformers", "version": __version__, "texts_per_second": round(len(said) / seconds)}


def pairs(vectors: np.ndarray, floor: float, sample: int, device: str) -> dict:
    import torch

    neighbours.all_pairs(vectors[:20_000], floor, device=device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    found = neighbours.all_pairs(vectors, floor, device=device).whole()
    seconds = time.perf_counter() - started
    rows = np.linspace(0, len(vectors) - 1, sample).astype(np.int64)
    held = torch.from_numpy(vectors).to(device)
    true: set[tuple[int, int]] = set()
    border = 0
    lengths = torch.cat([part.double().norm(dim=1) for part in held.split(100_000)])
    for chunk in np.array_split(rows, max(1, sample // 50)):
        places = torch.from_numpy(chunk).to(device)
        picked = held[places].double()
        for at in range(0, len(vectors), 200_000):
            cosine = picked @ held[at : at + 200_000].double().T
            cosine /= lengths[places][:, None] * lengths[at : at + 200_000][None, :]
            border += int(((cosine - floor).abs() < 1e-12).sum())
            for i, j in (cosine >= floor).nonzero().tolist():
                one, other = int(chunk[i]), at + j
                if one != other:
                    true.add((min(one, other), max(one, other)))
    mine = np.isin(found.a, rows) | np.isin(found.b, rows)
    ours = set(zip(found.a[mine].tolist(), found.b[mine].tolist(), strict=True))
    operations = len(vectors) ** 2 * vectors.shape[1]  # half of the pairs, 2 operations each
    return {
        "vectors": len(vectors),
        "dimension": vectors.shape[1],
        "floor": floor,
        "pairs": len(found.a),
        "seconds": round(seconds, 3),
        "floor_seconds": round(operations / PEAK, 3),
        "times_the_floor": round(seconds / (operations / PEAK), 2),
        "peak_gpu_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "check": {
            "rows": sample,
            "pairs_in_float64": len(true),
            "ours": len(ours),
            "equal": true == ours,
            "at_the_floor": border,
        },
    }


def run(folder: Path, out: Path, count: int, vectors_count: int, floor: float, device: str) -> None:
    import torch

    started = time.perf_counter()
    embedder = embed.open_embedder(find_model(str(folder)), device)
    encoded(embedder, texts(folder, min(count, 70_000), (6, 28), seed=9))  # warm
    load = time.perf_counter() - started
    short, (said, vectors) = throughput(embedder, folder, count, (6, 28))
    print(json.dumps(short), flush=True)
    longer, _ = throughput(embedder, folder, count // 5, (40, 80))
    print(json.dumps(longer), flush=True)
    same = invariance(embedder, said[:150_000], vectors[:150_000])
    print(json.dumps(same), flush=True)
    try:
        search = pairs(vectors[:vectors_count], floor, min(count, 1000), device)
    except Exception as problem:  # what was measured before is not lost
        search = {"error": f"{type(problem).__name__}: {problem}"}
    print(json.dumps(search), flush=True)
    told = {
        "command": " ".join(sys.argv),
        "machine": f"{torch.cuda.get_device_name() if device == 'cuda' else platform.machine()}, "
        f"{len(os.sched_getaffinity(0))} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
        | {name: __import__(name).__version__ for name in ("transformers", "tokenizers")},
        "commit": _commit(),
        "embedder": embedder.told(),
        "load_and_warm_seconds": round(load, 2),
        "short_texts": short,
        "longer_texts": longer,
        "vectors_that_depend_on_company": same,
        "all_pairs": search,
        "peer": peer(folder, said[:200_000], device),
    }
    print(json.dumps(told["peer"]), flush=True)
    out.write_text(json.dumps(told, indent=1) + "\n")


def _commit() -> str:
    if (ROOT / "commit").is_file():
        return (ROOT / "commit").read_text()
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pack").add_argument("folder", type=Path)
    there = commands.add_parser("run")
    there.add_argument("folder", type=Path)
    there.add_argument("--out", type=Path, required=True)
    there.add_argument("--texts", type=int, default=1_000_000)
    there.add_argument("--vectors", type=int, default=1_000_000)
    there.add_argument("--floor", type=float, default=0.9)
    there.add_argument("--device", default="cuda")
    given = parser.parse_args()
    if given.command == "pack":
        pack(given.folder)
    else:
        run(given.folder, given.out, given.texts, given.vectors, given.floor, given.device)


if __name__ == "__main__":
    main()
