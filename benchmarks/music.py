"""Relative against absolute places beyond the length of training, on music that this file composes.

    python benchmarks/music.py [--steps 200] [--length 128] [--out FOLDER]

A piece repeats a motif of six notes in a fixed cycle of transpositions, so that all of it but the motif can be known
from what came before. Two models differ in their places alone: a vector for each distance (Huang et al. 2018), or a
vector for each place, of which the model has four times as many as training uses. Both are trained by `pretrain` on
pieces cut at `--length` events, and read held-out pieces of four times that, at once.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from report import header, table

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sources.events import Note, notes_to_events
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout
from polyseme.recipes import get_training_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import pretrain
from polyseme.weights.folder import load_model

CYCLE = (0, 5, 7, 0)  # the transpositions of a motif, in half tones
FURTHER = 4  # how many times the length of training the held-out pieces have


def compose(seed: int, events: int, notes: int = 6, cycle: tuple[int, ...] = CYCLE) -> list[str]:
    """A piece of so many events: a motif, again and again."""
    draw = random.Random(seed)
    scale = [48 + 12 * octave + tone for octave in range(2) for tone in (0, 2, 4, 5, 7, 9, 11)]
    motif = [(draw.choice(scale), draw.choice((12, 25, 50))) for _ in range(notes)]
    found: list[Note] = []
    now = repeats = 0
    while 3 * len(found) < events:
        for pitch, steps in motif:
            pitch += cycle[repeats % len(cycle)]
            found.append(Note(now / 100, (now + steps) / 100, pitch, 64))
            now += steps
        repeats += 1
    return notes_to_events(found)[:events]


@torch.inference_mode()
def by_place(model: Model, pieces: list[list[int]], bos: int, borders: list[int]) -> list[float]:
    """The mean loss of an event, in nats, between each two borders of places; the pieces are of one length."""
    tokens = torch.tensor([[bos, *piece] for piece in pieces])
    layout = PackedLayout.from_lengths([tokens.shape[1] - 1] * len(pieces))
    last = model.eval().trunk(Inputs(tokens[:, :-1].reshape(-1), layout)).hidden
    scores = model.predict("next", last, layout).float().log_softmax(-1)
    losses = -scores.gather(1, tokens[:, 1:].reshape(-1, 1)).view(len(pieces), -1)
    return [float(losses[:, a:b].mean()) for a, b in pairwise(borders)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--pieces", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp())
    tokenizer, longest = Tokenizer.load("events"), FURTHER * given.length
    out.mkdir(parents=True, exist_ok=True)
    lines = [" ".join(compose(seed, given.length - 1)) for seed in range(given.pieces)]
    (out / "pieces.txt").write_text("\n".join(lines) + "\n")
    prepare([out / "pieces.txt"], tokenizer, out / "corpus", PrepareConfig(split="line", dedup="none", num_workers=1))
    held_out = [tokenizer.encode(" ".join(compose(given.pieces + seed, longest))) for seed in range(64)]
    borders = [0, given.length // 2, given.length, 2 * given.length, longest]
    rows = []
    for positions in ("relative", "learned"):
        recipe = get_training_recipe("music-tiny").replace(
            model={"dropout": 0.0, "attention_dropout": 0.0, "positions": positions, "max_len": longest,
                   "max_distance": 3 * given.length // 4},
            max_len=given.length, eval_every=10**6, save_every=10**6,
        )  # fmt: skip
        began = time.perf_counter()
        pretrain(recipe.with_override("budget.steps", str(given.steps)), out / "corpus", out / positions)
        seconds = time.perf_counter() - began
        model = load_model(out / positions / "model").model
        losses = by_place(model, held_out, tokenizer.special_token_ids.bos or 0, borders)
        rows.append([positions, f"{seconds:.0f} s", *(f"{loss:.3f}" for loss in losses)])
    print(header("relative and absolute places"))
    bands = [f"events {a} to {b}" for a, b in pairwise(borders)]
    print(f"held-out loss in nats, 64 pieces of {longest} events; trained on {given.length}, {given.steps} steps\n")
    print(table(["places", "training", *bands], rows))


if __name__ == "__main__":
    main()
