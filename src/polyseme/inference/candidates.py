"""Prompts and the answers that may follow them: how likely is each? (Brown et al. 2020, §2.4)

What prompts have in common is read once: first the examples that precede all of them, then each prompt, then its
answers, each with the memory of the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError
from polyseme.generation.session import pack_inputs
from polyseme.inference.packed_model import ROWS_PER_SOFTMAX, PackedModel
from polyseme.inference.results import TextScore
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout, map_batches
from polyseme.nn.trunks.base import TrunkOutput

TEXT_FIELD, ANSWER_FIELD = "{text}", "{answer}"


@dataclass(frozen=True, eq=False)
class CandidateBatch:
    """A prompt with each of its answers as token ids, and where the answer starts in each sequence."""

    sequences: list[np.ndarray]
    answer_starts: list[int]

    @cached_property
    def shared_prefix_len(self) -> int:
        """The number of tokens that are read once for all answers: all but the last of their common prefix."""
        first = self.sequences[0]
        common = min(_common_prefix_len(first, other) for other in self.sequences)
        return min(common, *self.answer_starts, len(first)) - 1


def format_prompt(text: str, template: str, shots: Sequence[tuple[str, str]], separator: str = "\n\n") -> str:
    """Write the examples with the template, then its part before the answer with the text filled in."""
    head, answer, tail = template.partition(ANSWER_FIELD)
    if not answer or tail.strip() or TEXT_FIELD not in head:
        raise ConfigError(f"the template {template!r} has to hold {TEXT_FIELD} and end in {ANSWER_FIELD}")
    formatted_shots = (_join(head.replace(TEXT_FIELD, shot), shot_answer) for shot, shot_answer in shots)
    return separator.join([*formatted_shots, head.replace(TEXT_FIELD, text)])


def _join(prompt: str, answer: str) -> str:
    """Join a prompt and an answer with at most one space between them."""
    return prompt.rstrip(" ") + " " + answer.lstrip(" ") if prompt.endswith(" ") else prompt + answer


def encode_candidates(
    packed: PackedModel, prompt: str, choices: Sequence[str], check_length: bool = True
) -> CandidateBatch:
    """Encode each choice after the prompt. A space between them belongs to the first token of the choice."""
    if isinstance(choices, str) or not choices:
        raise DataError(f"choices is {choices!r}, expected a list of answers")
    num_bos = len(packed.bos_ids)
    sequences, answer_starts = [], []
    for choice in choices:
        text = _join(prompt, choice)
        ids, offsets = packed.tokenizer.encode_with_offsets(text)
        answer_start = next((i for i, (_, end) in enumerate(offsets) if end > len(prompt.rstrip(" "))), len(ids))
        if answer_start == len(ids) or not choice.strip():
            raise DataError(f"the choice {choice!r} has no tokens")
        if not answer_start and not num_bos:
            raise DataError(f"the choice {choice!r} needs a prompt: the model has no token that starts a text")
        if check_length:
            packed.check_length(num_bos + len(ids) - 1, text)
        sequences.append(np.array([*packed.bos_ids, *ids]))
        answer_starts.append(num_bos + answer_start)
    return CandidateBatch(sequences, answer_starts)


@torch.inference_mode()
def score_candidates(
    model: Model, candidates: Sequence[CandidateBatch], max_batch_tokens: int
) -> list[tuple[TextScore, ...]]:
    """Score the tokens of each answer after its prompt."""
    scores: list[tuple[TextScore, ...]] = [()] * len(candidates)
    for has_prefix in (True, False):  # an answer that follows only a start token has no prefix to share
        indices = [i for i, batch in enumerate(candidates) if (batch.shared_prefix_len > 0) == has_prefix]
        batches = [candidates[i] for i in indices]
        prefix_len = _shared_by_all(batches) if has_prefix else 0
        prefix_memory = _read(model, [batches[0].sequences[0][:prefix_len]], None)[0].memory if prefix_len else None
        lengths = [sum(map(len, batch.sequences)) for batch in batches]

        def score_batch(index: np.ndarray) -> list[tuple[TextScore, ...]]:
            return _score_group(model, [batches[i] for i in index], prefix_memory, prefix_len)  # noqa: B023

        show = len(candidates) > 200
        group_scores = map_batches(score_batch, lengths, max_batch_tokens, "score", "questions", show)
        for i, each in zip(indices, group_scores):
            scores[i] = each
    return scores


def _score_group(
    model: Model, group: list[CandidateBatch], prefix_memory: Memory | None, prefix_len: int
) -> list[tuple[TextScore, ...]]:
    memory = prefix_memory.select([0] * len(group)) if prefix_memory else None
    if group[0].shared_prefix_len:
        prompts = [batch.sequences[0][prefix_len : batch.shared_prefix_len] for batch in group]
        memory = _read(model, prompts, memory)[0].memory
    prompt_rows = [i for i, batch in enumerate(group) for _ in batch.sequences]
    suffixes = [sequence[batch.shared_prefix_len : -1] for batch in group for sequence in batch.sequences]
    output, layout = _read(model, suffixes, memory.select(prompt_rows) if memory else None)
    first_rows = [start - 1 - batch.shared_prefix_len for batch in group for start in batch.answer_starts]
    ends = np.cumsum(layout.lengths)
    rows = np.concatenate([np.arange(e - n + f, e) for e, n, f in zip(ends, layout.lengths, first_rows)])
    answers = [s[start:] for batch in group for s, start in zip(batch.sequences, batch.answer_starts)]
    targets = np.concatenate(answers)
    log_probs = []
    for chunk in np.array_split(np.arange(len(rows)), -(-len(rows) // ROWS_PER_SOFTMAX)):
        chunk_rows, chunk_targets = (torch.from_numpy(x[chunk]).to(output.hidden.device) for x in (rows, targets))
        chunk_log_probs = model.predict("next", output.hidden, layout, chunk_rows).float().log_softmax(-1)
        log_probs.append(chunk_log_probs.gather(1, chunk_targets[:, None])[:, 0].double())
    parts = torch.cat(log_probs).cpu().split([len(answer) for answer in answers])
    scores = (TextScore(float(part.sum()), len(part)) for part in parts)
    return [tuple(islice(scores, len(batch.sequences))) for batch in group]


def _read(model: Model, sequences: list[np.ndarray], memory: Memory | None) -> tuple[TrunkOutput, PackedLayout]:
    inputs = pack_inputs(sequences, model)
    return model.trunk(inputs, memory=memory, return_memory=True), inputs.layout


def _shared_by_all(candidates: list[CandidateBatch]) -> int:
    """The number of tokens that start every prompt; at least one of each is left to read."""
    if len(candidates) < 2:
        return 0
    first = candidates[0].sequences[0]
    return min(min(_common_prefix_len(first, a.sequences[0]), a.shared_prefix_len - 1) for a in candidates)


def _common_prefix_len(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differences = np.flatnonzero(a[:size] != b[:size])
    return int(differences[0]) if len(differences) else size
