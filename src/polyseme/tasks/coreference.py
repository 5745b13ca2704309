"""Documents as a model reads them to find what means the same, and the clusters that it finds.

A document that is longer than the model reads is cut into segments, between sentences where that is possible; each is
read by itself (Joshi et al. 2019), and mentions are linked over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError
from polyseme.nn.heads.coreference import (
    DOCUMENT,
    FIRST_TOKEN,
    GENRE,
    LAST_TOKEN,
    SENTENCE_END,
    SPEAKER,
    CoreferenceHead,
    CoreferenceHeadConfig,
)
from polyseme.nn.model import Model
from polyseme.nn.packing import token_budget_batches
from polyseme.progress import progress
from polyseme.tasks.encoded import EncodedExample, encode_words
from polyseme.tasks.examples import Example
from polyseme.tasks.metrics.coreference import Mention
from polyseme.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from polyseme.tasks.task import Task


def head_config_from_examples(config: CoreferenceHeadConfig, examples: Sequence[Example]) -> CoreferenceHeadConfig:
    """The head of a training set: with the kinds of text that it has, if it says them."""
    if not any(e.clusters for e in examples):
        raise DataError(f"the training data has no mentions ({examples[0].location} …): there is nothing to learn")
    genres = {e.document.genre for e in examples if e.document and e.document.genre}
    return config.replace(genres=tuple(sorted(genres)))


def encode_documents(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_len: int,
    config: CoreferenceHeadConfig,
    truncate: bool = False,
    use_labels: bool = True,
) -> list[EncodedExample]:
    """Documents as segments, end to end. A word that is longer than a segment is an error, or is cut if `truncate`."""
    room = max_len - tokenizer.num_special_tokens_to_add()
    if room < 2:
        raise ConfigError(f"max_len {max_len} leaves no room for text beside the special tokens")
    before = tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
    encoded = []
    for example in examples:
        rows = word_rows(example, config)
        pieces, word_index = encode_words(tokenizer, example.words or ())
        starts = np.searchsorted(word_index, np.arange(len(rows) + 1))
        sizes = np.diff(starts)
        if sizes.max() > room and not truncate:
            word = (example.words or ())[int(sizes.argmax())]
            raise DataError(f"{example.location}: the word {word[:40]!r} has {sizes.max()} tokens, and {room} are read")
        piece_counts = np.minimum(sizes, room)
        ids: list[int] = []
        segments: list[int] = []
        lengths = []
        for a, b in _split_segments(piece_counts, rows[:, SENTENCE_END], room):
            inner = [int(i) for w in range(a, b) for i in pieces[starts[w] : starts[w] + piece_counts[w]]]
            wrapped, chunk_segments = tokenizer.build_inputs_with_special_tokens(inner)
            ends = len(ids) + before + np.cumsum(piece_counts[a:b])
            rows[a:b, FIRST_TOKEN], rows[a:b, LAST_TOKEN] = ends - piece_counts[a:b], ends - 1
            ids += wrapped
            segments += chunk_segments
            lengths.append(len(wrapped))
        target = gold_mentions(example) if use_labels else None
        tokens, segment_ids = np.array(ids, dtype=np.int64), np.array(segments, dtype=np.int64)
        encoded.append(EncodedExample(tokens, segment_ids, rows, target, tuple(lengths), bool((sizes > room).any())))
    return encoded


def word_rows(example: Example, config: CoreferenceHeadConfig) -> np.ndarray:
    """What is known of each word but its tokens, which are those of its number, [n, 6]."""
    document, words = example.document, example.words
    if document is None or not words:
        raise DataError(f"{example.location}: there is no document, which this task reads")
    rows = np.zeros((len(words), 6), dtype=np.int64)
    rows[:, FIRST_TOKEN] = rows[:, LAST_TOKEN] = np.arange(len(words))
    rows[:, SENTENCE_END] = np.repeat(np.cumsum(document.sentence_lengths) - 1, document.sentence_lengths)
    speaker_ids = {name: i for i, name in enumerate(dict.fromkeys(document.speakers))}
    rows[:, SPEAKER] = [speaker_ids[name] for name in document.speakers]
    rows[:, GENRE] = config.genres.index(document.genre) + 1 if document.genre in config.genres else 0
    return rows


def gold_mentions(example: Example) -> np.ndarray | None:
    """The true mentions: first word, last word, cluster from 1, [m, 3]."""
    if example.clusters is None:
        return None
    mentions = [(a, b, number) for number, cluster in enumerate(example.clusters, 1) for a, b in cluster]
    return np.array(mentions, dtype=np.int64).reshape(-1, 3)


def count_unreachable_mentions(
    task: Task, train: Sequence[Example], dev: Sequence[Example]
) -> dict[str, dict[str, list[int]]]:
    """For the results of a run: how many mentions the head cannot find, of how many."""
    if task.task_type != "coreference":
        return {}
    splits = (("train", train), ("dev", dev))
    return {
        "unreachable_mentions": {name: unreachable_mentions(examples, task.coreference) for name, examples in splits}
    }


def unreachable_mentions(examples: Sequence[Example], config: CoreferenceHeadConfig) -> list[int]:
    """How many true mentions are no candidates, for they are too wide or cross sentences; and how many there are."""
    num_unreachable = num_mentions = 0
    for example in examples:
        mentions, ends = gold_mentions(example), word_rows(example, config)[:, SENTENCE_END]
        if mentions is not None and len(mentions):
            first, last = mentions[:, 0], mentions[:, 1]
            num_unreachable += int(((last - first >= config.max_span_width) | (last > ends[first])).sum())
            num_mentions += len(mentions)
    return [num_unreachable, num_mentions]


def _split_segments(sizes: np.ndarray, sentence_ends: np.ndarray, room: int) -> list[tuple[int, int]]:
    """Runs of words with at most `room` tokens; each ends with a sentence, unless that does not fit by itself."""
    totals, segments, begin = np.cumsum(sizes), list[tuple[int, int]](), 0
    while begin < len(sizes):
        before = int(totals[begin - 1]) if begin else 0
        end = int(np.searchsorted(totals, before + room, side="right"))
        whole = [i for i in range(begin + 1, end + 1) if sentence_ends[i - 1] == i - 1]
        segments.append((begin, whole[-1] if whole else end))
        begin = segments[-1][1]
    return segments


def batch_word_rows(documents: Sequence[EncodedExample], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and true mentions of several documents in a batch whose sequences start there."""
    rows, mentions = [], [np.zeros((0, 3), dtype=np.int64)]
    words = clusters = sequence = 0
    for number, document in enumerate(documents):
        row, borders = document.positions.copy(), np.cumsum([0, *document.sequence_lengths])
        sequence_index = np.searchsorted(borders, row[:, FIRST_TOKEN], side="right") - 1
        for column in (FIRST_TOKEN, LAST_TOKEN):
            row[:, column] += starts[sequence + sequence_index] - borders[sequence_index]
        row[:, SENTENCE_END] += words
        row[:, DOCUMENT] = number
        if isinstance(document.target, np.ndarray) and len(document.target):
            mentions.append(document.target + np.array([words, words, clusters]))
            clusters += int(document.target[:, 2].max())
        words, sequence = words + len(row), sequence + len(document.sequence_lengths)
        rows.append(row)
    return np.concatenate(rows), np.concatenate(mentions)


@torch.inference_mode()
def predict_clusters(
    model: Model, task: Task, encoded: Sequence[EncodedExample], max_batch_tokens: int = 16384
) -> list[tuple[tuple[Mention, ...], ...]]:
    """What the model holds to be the same in each document, in packed bins."""
    device, training = next(model.parameters()).device, model.training
    head = model.eval().heads[task.head_name]
    assert isinstance(head, CoreferenceHead)
    clusters_by_document: list[tuple[tuple[Mention, ...], ...]] = [()] * len(encoded)
    with progress("predict", len(encoded), "documents") as bar:
        for members in token_budget_batches([len(e.ids) for e in encoded], max_batch_tokens):
            batch, order = task.collate([encoded[i] for i in members])
            batch = batch.for_trunk(model.config.trunk).to(device)
            last = model.trunk(batch.inputs).hidden
            states = head.select_states(last, batch.inputs.layout, batch.targets[task.head_name].rows, model.trunk.pool)
            for place, clusters in zip(order, head.decode_clusters(states)):
                clusters_by_document[members[place]] = tuple(sorted(tuple(sorted(cluster)) for cluster in clusters))
            bar.advance(len(members))
    model.train(training)
    return clusters_by_document
