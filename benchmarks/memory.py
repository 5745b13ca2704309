"""The memory that training takes on a CPU, compared with what `polyseme recipes --describe` estimates.

    python benchmarks/memory.py [bert-tiny gpt2-tiny transformer-tiny t5-tiny]

Each recipe runs three steps on one full micro-batch of random tokens in a process of its own. Measured is the largest
resident memory beyond that of the imported libraries.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from report import header, table

from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.objectives.batch import Batch, Targets
from polyseme.recipes import get_recipe
from polyseme.recipes.describe import describe_recipe
from polyseme.train.loop import setup_device, train
from polyseme.train.memory import DeviceMemory
from polyseme.train.pretrain import build_train_state
from polyseme.train.recipe import Recipe

RECIPES = ("bert-tiny", "gpt2-tiny", "transformer-tiny", "t5-tiny")
NUM_STEPS = 3
PAGE_BYTES = 4096


def resident_bytes() -> int:
    """Return the memory of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def full_batch(recipe: Recipe, vocab_size: int, num_segments: int) -> Batch:
    """Return a micro-batch of random tokens in sequences of full length."""
    target_len, source_len = recipe.objective.full_lengths(recipe.max_len)
    num_sequences = recipe.micro_batch_tokens // max(target_len, source_len)
    layouts = [PackedLayout.from_lengths([n] * num_sequences) for n in (target_len, source_len)]
    tokens, source = (torch.randint(10, vocab_size, (layout.num_tokens,)) for layout in layouts)
    rows = torch.arange(len(tokens))
    rows = rows[torch.rand(len(tokens)) < recipe.objective.predicted_fraction]
    targets = {
        name: Targets(rows, torch.randint(0, vocab_size, (len(rows),)), len(rows)) for name in recipe.objective.terms
    }
    if "pair" in targets:
        targets["pair"] = Targets(torch.arange(num_sequences), torch.randint(0, 2, (num_sequences,)), num_sequences)
    segments = torch.zeros_like(tokens) if num_segments else None
    encoder_input = EncoderInput(source, layouts[1]) if source_len else None
    return Batch(Inputs(tokens, layouts[0], segments, encoder_input), targets)


def measure(name: str) -> str:
    """Return the measured and the estimated bytes of a recipe, as two words."""
    torch.manual_seed(0)
    recipe = get_recipe(name)
    described = describe_recipe(recipe, DeviceMemory("a CPU", 1 << 40, False))
    torch.randn(64, 64) @ torch.randn(64, 64)  # libraries allocate in the first product
    start, peak, is_done = resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_done.is_set():
            peak = max(peak, resident_bytes())
            time.sleep(0.002)

    config = recipe.model_config(described.vocab_size)
    state = build_train_state(recipe, config, setup_device())
    state.total_steps = NUM_STEPS
    batch = full_batch(recipe, described.vocab_size, config.trunk.num_segments)
    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in train(state, (([batch], step) for step in range(NUM_STEPS))):
        pass
    is_done.set()
    watcher.join()
    return f"{peak - start} {described.memory.total}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # measure this recipe in this process
    args = parser.parse_args()
    if args.one:
        print(measure(args.one))
        return
    rows = []
    for name in args.recipes:
        output = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, check=True)
        measured, estimated = map(int, output.stdout.split()[-2:])
        rows.append([name, f"{measured / 2**20:,.0f}", f"{estimated / 2**20:,.0f}", f"{measured / estimated:.2f}"])
    print(header("Memory of training, MiB"))
    print(table(["recipe", "measured", "estimated", "ratio"], rows))


if __name__ == "__main__":
    main()
