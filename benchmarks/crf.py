"""The CRF compared with a plain loop over sentences, words and tags: loss with gradient, and best paths."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from polyseme.nn.heads.crf import CRF, ChainLayout, CRFConfig


def loop_loss(crf: CRF, scores: Tensor, lengths: list[int], values: Tensor) -> Tensor:
    """Compute the same loss, one tag at a time."""
    total = scores.new_zeros(())
    for rows, tags in zip(scores.split(lengths), values.split(lengths)):
        sums = crf.start_transitions + rows[0]
        gold_score = crf.start_transitions[tags[0]] + rows[0, tags[0]]
        for i in range(1, len(rows)):
            sums = torch.stack([(sums + crf.transitions[:, j]).logsumexp(0) + rows[i, j] for j in range(len(sums))])
            gold_score = gold_score + crf.transitions[tags[i - 1], tags[i]] + rows[i, tags[i]]
        total = total + (sums + crf.end_transitions).logsumexp(0) - gold_score - crf.end_transitions[tags[-1]]
    return total


def loop_best(crf: CRF, scores: Tensor, lengths: list[int]) -> Tensor:
    """Compute the best paths, one tag at a time."""
    paths = []
    for rows in scores.split(lengths):
        sums, pointers = crf.start_transitions + rows[0], []
        for row in rows[1:]:
            best = [(sums + crf.transitions[:, j]).max(0) for j in range(len(sums))]
            pointers.append(torch.stack([b.indices for b in best]))
            sums = torch.stack([b.values for b in best]) + row
        path = [int((sums + crf.end_transitions).argmax())]
        for pointer in reversed(pointers):
            path.append(int(pointer[path[-1]]))
        paths += path[::-1]
    return torch.tensor(paths)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the mean time of a call, after a warm-up."""
    work()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--tags", type=int, default=13, help="WNUT-17 has 13")
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 38, (options.sentences,), generator=generator).tolist()
    crf = CRF(CRFConfig(False), [f"t{i}" for i in range(options.tags)])
    for p in crf.parameters():
        p.data.normal_(generator=generator)
    scores = torch.randn(sum(lengths), options.tags, generator=generator, requires_grad=True)
    values = torch.randint(0, options.tags, (sum(lengths),), generator=generator)
    chains = ChainLayout.from_lengths(lengths)
    torch.testing.assert_close(crf.loss(scores, chains, values, -1), loop_loss(crf, scores, lengths, values))
    with torch.no_grad():
        assert crf.decode(scores, chains).equal(loop_best(crf, scores, lengths))
        rows = {"best path": (lambda: crf.decode(scores, chains), lambda: loop_best(crf, scores, lengths))}
    rows["loss and gradient"] = (
        lambda: crf.loss(scores, chains, values, -1).backward(),
        lambda: loop_loss(crf, scores, lengths, values).backward(),
    )
    print(f"{options.sentences} sentences, {sum(lengths)} words, {options.tags} tags, one core")
    for name, (ours, plain) in rows.items():
        with torch.set_grad_enabled(name != "best path"):
            fast, slow = seconds(ours, 20), seconds(plain, 1)
        print(f"{name:18} {fast * 1e3:8.2f} ms   loop {slow * 1e3:8.1f} ms   {slow / fast:6.0f} times")


if __name__ == "__main__":
    main()
