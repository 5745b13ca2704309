"""ELMo on a CPU: character convolutions once for each distinct word, compared with once for each token."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from polyseme.families import FAMILIES
from polyseme.nn.layers.char_cnn import BOS_CHARACTER, EOS_CHARACTER, CharCNN, words_to_char_ids
from polyseme.nn.packing import Inputs, PackedLayout, token_budget_batches
from polyseme.tasks.tagging import TaggingTask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="CoNLL file, e.g. the training set of WNUT-17")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--size", default="small", choices=["small", "medium", "original"])
    parser.add_argument("--bin-tokens", type=int, default=32768)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = FAMILIES["elmo"].model_config(options.size, with_heads=False, vocab_size=1).build(0).eval()
    bottom = model.trunk.embeddings
    assert isinstance(bottom, CharCNN)
    sentences = [e.words or () for e in TaggingTask.read(options.data)[: options.sentences]]
    rows = [words_to_char_ids([BOS_CHARACTER, *words, EOS_CHARACTER]) for words in sentences]

    def naive(tokens: torch.Tensor) -> torch.Tensor:
        """Convolve every token over all of its 50 characters."""
        x = torch.nn.functional.embedding(tokens.long(), bottom.char_embeddings.weight).transpose(1, 2)
        x = torch.cat([convolve(x).amax(-1).relu() for convolve in bottom.convolutions], dim=-1)
        for highway in bottom.highways:
            x = highway(x)
        return bottom.projection(x)

    def read(once: bool) -> tuple[float, float, float]:
        """Return the seconds for characters and in total, and a checksum."""
        char_seconds, total, start = 0.0, 0.0, time.perf_counter()
        plain = bottom.forward
        with torch.inference_mode():
            for index in token_budget_batches([len(row) for row in rows], options.bin_tokens):
                layout = PackedLayout.from_lengths([len(rows[i]) for i in index])
                tokens = torch.from_numpy(np.concatenate([rows[i] for i in index]))
                batch_start = time.perf_counter()
                if once:
                    words = plain(tokens, layout.positions, None, layout.max_seqlen)
                else:
                    words = torch.cat(list(map(naive, tokens.split(1024))))
                char_seconds += time.perf_counter() - batch_start
                bottom.forward = lambda *_, words=words: words  # type: ignore[method-assign]
                total += model.trunk(Inputs(tokens, layout)).hidden.double().sum().item()
        bottom.forward = plain  # type: ignore[method-assign]
        return char_seconds, time.perf_counter() - start, total

    fast, slow = read(True), read(False)
    assert abs(fast[2] - slow[2]) < 1e-2 * max(abs(slow[2]), 1), (fast, slow)
    number = sum(len(row) for row in rows)
    print(f"{len(rows)} sentences, {number} tokens, ELMo {options.size}, one core")
    for name, ours, plain in (("characters", fast[0], slow[0]), ("all", fast[1], slow[1])):
        print(f"{name:10}  once per word {ours:7.2f} s   naive {plain:7.2f} s   {plain / ours:5.1f} times")


if __name__ == "__main__":
    main()
