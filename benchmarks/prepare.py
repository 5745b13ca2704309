"""Text to tokens on disk on all cores, against the usual way: `datasets`' map with the same tokenizer.

    python benchmarks/prepare.py [--data FOLDER] [--megabytes 100] [--times 1]

Both read the same JSON lines and write token ids to disk with as many processes as there are cores. Ours also cleans,
removes exact and near duplicates, splits sentences, marks word starts and hashes what it writes; a row without
duplicates shows what those cost. The peer's rows are those of `load_dataset("json")`, `map` and `save_to_disk`, ids
only. Memory is the sum over all processes of what is theirs alone (anonymous pages, by proportion), sampled 20 times a
second: pages of mapped files, which the system can drop, do not count for either. `--times` writes the text that often
into the input, to see memory at scale (near duplicates are then off: they would leave one copy).
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
    """Wikipedia and novels where they are; else sentences of words drawn by Zipf's law."""
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


def ours(source: Path, tokenizer: Path, out: Path, duplicates: str) -> int:
    from polyseme.corpus.build.prepare import PrepareConfig, prepare
    from polyseme.text.tokenizer import Tokenizer

    return int(prepare([source], Tokenizer.load(tokenizer), out, PrepareConfig(dedup=duplicates))["counts"]["tokens"])


def peer(source: Path, tokenizer: Path, out: Path) -> int:
    from datasets import load_dataset
    from transformers import AutoTokenizer

    encode = AutoTokenizer.from_pretrained(tokenizer)
    encode.model_max_length = int(1e12)
    options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    rows = load_dataset("json", data_files=str(source), split="train", cache_dir=str(out / "cache"))
    made = rows.map(
        lambda batch: encode(batch["text"], **options),
        batched=True,
        num_proc=os.cpu_count(),
        remove_columns=rows.column_names,
    )
    made.save_to_disk(out / "made", num_proc=os.cpu_count())
    return sum(made.data.column("input_ids").combine_chunks().flatten().__len__() for _ in range(1))


def measure(arguments: list[str]) -> tuple[float, float, int]:
    """Seconds, peak memory in MB and tokens of one run in a process of its own."""
    import psutil

    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    start, peak = time.monotonic(), 0
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        process = psutil.Process(run.pid)
        while run.poll() is None:
            peak = max(peak, sum(map(own, [process, *process.children(recursive=True)])))
            time.sleep(0.05)
        seconds = time.monotonic() - start
        assert run.stdout and run.stderr
        said, errors = run.stdout.read(), run.stderr.read()
    if run.returncode:
        raise SystemExit(errors[-2000:])
    return seconds, peak / 1e6, int(said.split()[-1])


def own(process: object) -> int:
    """The anonymous memory of a process, shared pages by their part of it."""
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
    given = parser.parse_args()
    if given.run:
        who, *paths, duplicates = given.run
        source, tokenizer, out = map(Path, paths)
        print(peer(source, tokenizer, out) if who == "peer" else ours(source, tokenizer, out, duplicates))
        return
    from polyseme.text.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Tokenizer.train("wordpiece", texts(given.data, 5e6), VOCAB_SIZE).save(folder / "tokenizer")
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts(given.data, given.megabytes * 1e6))
        with open(folder / "text.jsonl", "w") as file:
            for _ in range(given.times):
                file.write(rows)
        megabytes = (folder / "text.jsonl").stat().st_size / 1e6
        del rows
        print(header(f"{megabytes:,.0f} MB of JSON lines to tokens on disk, WordPiece {VOCAB_SIZE:,}"))
        cases = [("polyseme, no near or exact duplicates", "ours", "none")]
        if given.times == 1:
            cases += [("polyseme, near duplicates removed (default)", "ours", "near"), ("datasets map", "peer", "")]
        found = {}
        for number, (label, who, duplicates) in enumerate(cases):
            paths = [str(folder / "text.jsonl"), str(folder / "tokenizer"), str(folder / f"out-{number}")]
            found[label] = measure(["--run", who, *paths, duplicates])
        last = list(found.values())[-1]
        print(
            table(
                ["what", "seconds", "tokens/s", "MB/s", "peak memory, MB", "faster by", "of its memory"],
                [
                    (
                        label,
                        f"{seconds:.1f}",
                        f"{tokens / seconds:,.0f}",
                        f"{megabytes / seconds:.1f}",
                        f"{peak:,.0f}",
                        f"{last[0] / seconds:.2f}×",
                        f"{peak / last[1]:.2f}×",
                    )
                    for label, (seconds, peak, tokens) in found.items()
                ],
            )
        )


if __name__ == "__main__":
    main()
