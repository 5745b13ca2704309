"""Relative compared with absolute positions beyond the training length, on synthetic music.

    python benchmarks/music.py [--steps 200] [--length 128] [--out FOLDER]

A piece repeats a motif of six notes in a fixed cycle of transpositions, so that everything but the motif is
predictable. Two models differ only in their positions: an embedding for each distance (Huang et al. 2018), or an
embedding for each position, of which the model has four times as many as training uses. Both are pre-trained on pieces
of `--length` events and read held-out pieces of four times that length.
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
from polyseme.corpus.sources.midi import Note, notes_to_events
from polyseme.nn.model import Model
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.recipes import get_training_recipe
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.pretrain import pretrain
from polyseme.weights.folder import load_model

CYCLE = (0, 5, 7, 0)  # transpositions of a motif, in semitones
FURTHER = 4  # length of the held-out pieces, relative to training


def compose(seed: int, events: int, notes: int = 6, cycle: tuple[int, ...] = CYCLE) -> list[str]:
    """Compose a piece of this many events by repeating a motif."""
    draw = random.Random(seed)
    scale = [48 + 12 * octave + tone for octave in range(2) for tone in (0, 2, 4, 5, 7, 9, 11)]
    motif = [(draw.choice(scale), draw.choice((12, 25, 50))) for _ in range(notes)]
    piece: list[Note] = []
    now = repeats = 0
    while 3 * len(piece) < events:
        for pitch, steps in motif:
            pitch += cycle[repeats % len(cycle)]
            piece.append(Note(now / 100, (now + steps) / 100, pitch, 64))
            now += steps
        repeats += 1
    return notes_to_events(piece)[:events]


@torch.inference_mode()
def loss_by_position(model: Model, pieces: list[list[int]], bos: int, borders: list[int]) -> list[float]:
    """Return the mean loss per event, in nats, between successive positions; the pieces have one length."""
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
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp())
    tokenizer, longest = Tokenizer.load("events"), FURTHER * args.length
    out.mkdir(parents=True, exist_ok=True)
    lines = [" ".join(compose(seed, args.length - 1)) for seed in range(args.pieces)]
    (out / "pieces.txt").write_text("\n".join(lines) + "\n")
    prepare([out / "pieces.txt"], tokenizer, out / "corpus", PrepareConfig(split="line", dedup="none", num_workers=1))
    held_out = [tokenizer.encode(" ".join(compose(args.pieces + seed, longest))) for seed in range(64)]
    borders = [0, args.length // 2, args.length, 2 * args.length, longest]
    rows = []
    for positions in ("relative", "learned"):
        recipe = get_training_recipe("music-tiny").replace(
            model={"dropout": 0.0, "attention_dropout": 0.0, "positions": positions, "max_len": longest,
                   "max_distance": 3 * args.length // 4},
            max_len=args.length, eval_every=10**6, save_every=10**6,
        )  # fmt: skip
        start = time.perf_counter()
        pretrain(recipe.with_override("budget.steps", str(args.steps)), out / "corpus", out / positions)
        seconds = time.perf_counter() - start
        model = load_model(out / positions / "model").model
        losses = loss_by_position(model, held_out, tokenizer.special_token_ids.bos or 0, borders)
        rows.append([positions, f"{seconds:.0f} s", *(f"{loss:.3f}" for loss in losses)])
    print(header("Relative and absolute positions"))
    bands = [f"events {a} to {b}" for a, b in pairwise(borders)]
    print(f"held-out loss in nats, 64 pieces of {longest} events; trained on {args.length}, {args.steps} steps\n")
    print(table(["positions", "training", *bands], rows))


if __name__ == "__main__":
    main()
