"""Documents as a model reads them to find what means the same, and the clusters that it finds.

A document that is longer than the model reads is cut into segments, between sentences where that is possible; each is
read by itself (Joshi et al. 2019), and mentions are linked over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from polyseme.errors import UserError
from polyseme.nn.heads.coreference import (
    DOCUMENT,
    END,
    FIRST,
    GENRE,
    LAST,
    SPEAKER,
    CoreferenceHead,
    CoreferenceHeadSpec,
)
from polyseme.nn.model import Model
from polyseme.nn.packing import bins
from polyseme.progress import progress
from polyseme.tasks.encoded import Encoded, word_pieces
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.coreference import Mention
from polyseme.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from polyseme.tasks.task import Task


def head_for(spec: CoreferenceHeadSpec, examples: Sequence[Example]) -> CoreferenceHeadSpec:
    """The head of a training set: with the kinds of text that it has, if it says them."""
    if not any(e.clusters for e in examples):
        raise UserError(f"the training data has no mentions ({examples[0].where} …): there is nothing to learn")
    genres = {e.document.genre for e in examples if e.document and e.document.genre}
    return spec.replace(genres=tuple(sorted(genres)))


def encode_documents(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_len: int,
    spec: CoreferenceHeadSpec,
    truncate: bool = False,
    labelled: bool = True,
) -> list[Encoded]:
    """Documents as segments, end to end. A word that is longer than a segment is an error, or is cut if `truncate`."""
    room = max_len - tokenizer.num_added()
    if room < 2:
        raise UserError(f"max_len {max_len} leaves no room for text beside the special tokens")
    before = tokenizer.wrap([-1])[0].index(-1)
    found = []
    for example in examples:
        rows = word_rows(example, spec)
        pieces, of = word_pieces(tokenizer, example.words or ())
        starts = np.searchsorted(of, np.arange(len(rows) + 1))
        sizes = np.diff(starts)
        if sizes.max() > room and not truncate:
            word = (example.words or ())[int(sizes.argmax())]
            raise UserError(f"{example.where}: the word {word[:40]!r} has {sizes.max()} tokens, and {room} are read")
        kept = np.minimum(sizes, room)
        ids: list[int] = []
        segments: list[int] = []
        lengths = []
        for a, b in _cut(kept, rows[:, END], room):
            inner = [int(i) for w in range(a, b) for i in pieces[starts[w] : starts[w] + kept[w]]]
            wrapped, marks = tokenizer.wrap(inner)
            ends = len(ids) + before + np.cumsum(kept[a:b])
            rows[a:b, FIRST], rows[a:b, LAST] = ends - kept[a:b], ends - 1
            ids += wrapped
            segments += marks
            lengths.append(len(wrapped))
        target = mentions_of(example) if labelled else None
        tokens, marked = np.array(ids, dtype=np.int64), np.array(segments, dtype=np.int64)
        found.append(Encoded(tokens, marked, rows, target, tuple(lengths), bool((sizes > room).any())))
    return found


def word_rows(example: Example, spec: CoreferenceHeadSpec) -> np.ndarray:
    """What is known of each word but its tokens, which are those of its number, [n, 6]."""
    document, words = example.document, example.words
    if document is None or not words:
        raise UserError(f"{example.where}: there is no document, which this task reads")
    rows = np.zeros((len(words), 6), dtype=np.int64)
    rows[:, FIRST] = rows[:, LAST] = np.arange(len(words))
    rows[:, END] = np.repeat(np.cumsum(document.sentences) - 1, document.sentences)
    numbers = {name: i for i, name in enumerate(dict.fromkeys(document.speakers))}
    rows[:, SPEAKER] = [numbers[name] for name in document.speakers]
    rows[:, GENRE] = spec.genres.index(document.genre) + 1 if document.genre in spec.genres else 0
    return rows


def mentions_of(example: Example) -> np.ndarray | None:
    """The true mentions: first word, last word, cluster from 1, [m, 3]."""
    if example.clusters is None:
        return None
    found = [(a, b, number) for number, cluster in enumerate(example.clusters, 1) for a, b in cluster]
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def lost_mentions(task: Task, train: Sequence[Example], dev: Sequence[Example]) -> dict[str, dict[str, list[int]]]:
    """For the results of a run: how many mentions the head cannot find, of how many."""
    if task.kind != "coreference":
        return {}
    both = (("train", train), ("dev", dev))
    return {"out_of_reach": {name: out_of_reach(examples, task.coreference) for name, examples in both}}


def out_of_reach(examples: Sequence[Example], spec: CoreferenceHeadSpec) -> list[int]:
    """How many true mentions are no candidates, for they are too wide or cross sentences; and how many there are."""
    lost = total = 0
    for example in examples:
        mentions, ends = mentions_of(example), word_rows(example, spec)[:, END]
        if mentions is not None and len(mentions):
            first, last = mentions[:, 0], mentions[:, 1]
            lost += int(((last - first >= spec.width) | (last > ends[first])).sum())
            total += len(mentions)
    return [lost, total]


def _cut(sizes: np.ndarray, sentence_ends: np.ndarray, room: int) -> list[tuple[int, int]]:
    """Runs of words with at most `room` tokens; each ends with a sentence, unless that does not fit by itself."""
    totals, found, begin = np.cumsum(sizes), list[tuple[int, int]](), 0
    while begin < len(sizes):
        before = int(totals[begin - 1]) if begin else 0
        end = int(np.searchsorted(totals, before + room, side="right"))
        whole = [i for i in range(begin + 1, end + 1) if sentence_ends[i - 1] == i - 1]
        found.append((begin, whole[-1] if whole else end))
        begin = found[-1][1]
    return found


def laid_rows(items: Sequence[Encoded], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and true mentions of several documents in a batch whose sequences start there."""
    rows, mentions = [], [np.zeros((0, 3), dtype=np.int64)]
    words = clusters = sequence = 0
    for number, item in enumerate(items):
        row, borders = item.rows.copy(), np.cumsum([0, *item.sizes])
        of = np.searchsorted(borders, row[:, FIRST], side="right") - 1
        for column in (FIRST, LAST):
            row[:, column] += starts[sequence + of] - borders[of]
        row[:, END] += words
        row[:, DOCUMENT] = number
        if isinstance(item.target, np.ndarray) and len(item.target):
            mentions.append(item.target + np.array([words, words, clusters]))
            clusters += int(item.target[:, 2].max())
        words, sequence = words + len(row), sequence + len(item.sizes)
        rows.append(row)
    return np.concatenate(rows), np.concatenate(mentions)


@torch.inference_mode()
def found_clusters(
    model: Model, task: Task, encoded: Sequence[Encoded], bin_tokens: int = 16384
) -> list[tuple[tuple[Mention, ...], ...]]:
    """What the model holds to be the same in each document, in packed bins."""
    device, training = next(model.parameters()).device, model.training
    head = model.eval().heads[task.head_name]
    assert isinstance(head, CoreferenceHead)
    found: list[tuple[tuple[Mention, ...], ...]] = [()] * len(encoded)
    with progress("predict", len(encoded), "documents") as bar:
        for members in bins([len(e.ids) for e in encoded], bin_tokens):
            batch, order = task.batch([encoded[i] for i in members])
            batch = batch.to(device)
            last = model.trunk(batch.tokens, batch.layout, batch.segments).last
            states = head.states(last, batch.layout, batch.targets[task.head_name].rows, model.trunk.pool)
            for place, clusters in zip(order, head.clusters(states)):
                found[members[place]] = tuple(sorted(tuple(sorted(cluster)) for cluster in clusters))
            bar.advance(len(members))
    model.train(training)
    return found
