"""Corpus preparation on all cores compared with `datasets.map` and the same tokenizer.

    python benchmarks/prepare.py [--data FOLDER] [--megabytes 100] [--times 1]

Both read the same JSON lines and write token ids to disk with one process per core. Ours also cleans, removes exact and
near duplicates, splits sentences, marks word starts and hashes its output; a row without deduplication shows its
cost. The peer uses `load_dataset("json")`, `map` and `save_to_disk`, ids only. Memory is the sum of the proportional
anonymous memory of all processes, sampled 20 times per second, without pages of mapped files, which the system can
drop. `--times` repeats the text in the input, to measure memory at scale (without deduplication, which would leave one
copy).
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from report import header, table

HERE = Path(__file__).parent
VOCAB_SIZE = 30_522


def texts(folder: Path | None, size: float) -> Iterator[str]:
    """Yield texts of the files in a folder, then random words that follow Zipf's law."""
    import numpy as np

    count = 0
    if folder is not None and folder.is_dir():
        for path in sorted(folder.glob("*.jsonl.xz")):
            with lzma.open(path, "rt", encoding="utf-8") as file:
                for line in file:
                    text = json.loads(line)["text"]
                    count += len(text)
                    yield text
                    if count >= size:
                        return
    draw = np.random.default_rng(0)
    words = ["".join(chr(97 + i) for i in draw.integers(0, 26, 2 + n % 9)) for n in range(200_000)]
    while count < size:
        ranks = np.minimum(draw.zipf(1.2, 600), len(words)) - 1
        text = " ".join(words[rank] + "." * (i % 17 == 16) for i, rank in enumerate(ranks))
        count += len(text)
        yield text


def ours(source: Path, tokenizer: Path, out: Path, dedup: str) -> int:
    """Prepare a corpus and return its number of tokens."""
    from polyseme.corpus.build.prepare import PrepareConfig, prepare
    from polyseme.text.tokenizer import Tokenizer

    return int(prepare([source], Tokenizer.load(tokenizer), out, PrepareConfig(dedup=dedup))["counts"]["tokens"])


def peer(source: Path, tokenizer: Path, out: Path) -> int:
    """Tokenize with `datasets` and return the number of tokens."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(tokenizer)
    encode.model_max_length = int(1e12)
    options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    rows = load_dataset("json", data_files=str(source), split="train", cache_dir=str(out / "cache"))
    encoded = rows.map(
        lambda batch: encode(batch["text"], **options),
        batched=True,
        num_proc=os.cpu_count(),
        remove_columns=rows.column_names,
    )
    encoded.save_to_disk(out / "encoded", num_proc=os.cpu_count())
    return len(encoded.data.column("input_ids").combine_chunks().flatten())


def measure(arguments: list[str]) -> tuple[float, float, int]:
    """Return the seconds, the peak memory in MB and the tokens of a run in its own process."""
    import psutil

    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    start, peak = time.monotonic(), 0
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        process = psutil.Process(run.pid)
        while run.poll() is None:
            peak = max(peak, sum(map(anonymous_memory, [process, *process.children(recursive=True)])))
            time.sleep(0.05)
        seconds = time.monotonic() - start
        assert run.stdout and run.stderr
        output, errors = run.stdout.read(), run.stderr.read()
    if run.returncode:
        raise SystemExit(errors[-2000:])
    return seconds, peak / 1e6, int(output.split()[-1])


def anonymous_memory(process: object) -> int:
    """Return the anonymous memory of a process in bytes, shared pages in proportion."""
    try:
        with open(f"/proc/{process.pid}/smaps_rollup") as file:  # type: ignore[attr-defined]
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss_Anon:"))
    except (OSError, StopIteration):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=HERE.parents[1] / "shared" / "data" / "pretrain")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        who, *paths, dedup = args.run
        source, tokenizer, out = map(Path, paths)
        print(peer(source, tokenizer, out) if who == "peer" else ours(source, tokenizer, out, dedup))
        return
    from polyseme.text.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Tokenizer.train("wordpiece", texts(args.data, 5e6), VOCAB_SIZE).save(folder / "tokenizer")
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts(args.data, args.megabytes * 1e6))
        with open(folder / "text.jsonl", "w") as file:
            for _ in range(args.times):
                file.write(lines)
        megabytes = (folder / "text.jsonl").stat().st_size / 1e6
        del lines
        print(header(f"{megabytes:,.0f} MB of JSON lines to tokens on disk, WordPiece {VOCAB_SIZE:,}"))
        cases = [("polyseme, no deduplication", "ours", "none")]
        if args.times == 1:
            cases += [("polyseme, near duplicates removed (default)", "ours", "near"), ("datasets map", "peer", "")]
        results = {}
        for number, (label, who, dedup) in enumerate(cases):
            paths = [str(folder / "text.jsonl"), str(folder / "tokenizer"), str(folder / f"out-{number}")]
            results[label] = measure(["--run", who, *paths, dedup])
        last = list(results.values())[-1]
        rows = []
        for label, (seconds, peak, tokens) in results.items():
            speed = [f"{seconds:.1f}", f"{tokens / seconds:,.0f}", f"{megabytes / seconds:.1f}", f"{peak:,.0f}"]
            rows.append([label, *speed, f"{last[0] / seconds:.2f}×", f"{peak / last[1]:.2f}×"])
        names = ["pipeline", "seconds", "tokens/s", "MB/s", "peak memory, MB", "faster by", "relative memory"]
        print(table(names, rows))


if __name__ == "__main__":
    main()
