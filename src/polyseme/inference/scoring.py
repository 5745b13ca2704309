"""Log-probabilities of last words and of answers to prompts, by a causal or a masked language model.

A causal model reads what prompts have in common once: first the examples that precede all of them, then each prompt,
then its answers, each with the memory of the step before.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch

from polyseme.errors import ConfigError, DataError, UnsupportedError, suggest
from polyseme.generation.session import pack_inputs
from polyseme.inference.packed_model import ROWS_PER_SOFTMAX, PackedModel
from polyseme.inference.results import ChoiceResult, LastWordScore, TextScore
from polyseme.nn.memory import Memory
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout, map_batches
from polyseme.nn.trunks.base import TrunkOutput
from polyseme.text.tokenizer import Tokenizer

TEXT_FIELD, ANSWER_FIELD = "{text}", "{answer}"
GAP_PATTERN = r"_{2,}|(?<!\w)_(?!\w)|@placeholder"  # how data sets write a gap, besides the mask token
NORMALIZATIONS = ("none", "length", "unconditional")


def score_last_words(packed: PackedModel, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]:
    """Score last words by a causal model; a context that is too long loses its start."""
    num_bos = len(packed.bos_ids)
    sequences, answer_starts, num_truncated = [], [], []
    for context, word in texts:
        candidates = encode_candidates(packed, context.rstrip() + " ", [word], check_length=False)
        row, answer_start = candidates.sequences[0], candidates.answer_starts[0]
        excess = max(len(row) - 1 - packed.max_len, 0)
        if excess and answer_start - excess < 1 + num_bos:
            raise DataError(f"the word {word!r} alone is longer than the model reads ({packed.max_len} tokens)")
        sequences.append(np.delete(row, np.s_[num_bos : num_bos + excess]))
        answer_starts.append(answer_start - excess)
        num_truncated.append(excess)
    inputs = [row[:-1] for row in sequences]
    positions = [np.arange(start - 1, len(row)) for start, row in zip(answer_starts, inputs)]
    targets = [row[start:] for start, row in zip(answer_starts, sequences)]
    scores = packed.score_positions("next", inputs, positions, targets)
    return [LastWordScore(*score, excess) for score, excess in zip(scores, num_truncated)]


def score_masked_last_words(packed: PackedModel, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]:
    """Score last words by a masked model: one mask per token of the word, all masked at once."""
    spans = [mask_span(packed.tokenizer, context.rstrip() + " ", word, "", packed.max_len) for context, word in texts]
    return [LastWordScore(*score, span.num_truncated) for score, span in zip(score_masked_spans(packed, spans), spans)]


def rank_choices(
    packed: PackedModel,
    questions: Sequence[tuple[str, Sequence[str]]],
    normalization: str,
    context: str,
    is_masked_lm: bool,
) -> list[ChoiceResult]:
    """Rank the choices of each prompt by their normalized log-probability."""
    supported = NORMALIZATIONS[: 2 if is_masked_lm else 3]
    if normalization not in supported:
        raise ConfigError(f"normalization is {normalization!r}; {suggest(normalization, supported)}")
    if is_masked_lm:
        spans = [candidate_spans(packed.tokenizer, *question, packed.max_len) for question in questions]
        span_scores = iter(score_masked_spans(packed, [span for group in spans for span in group]))
        scores = [tuple(next(span_scores)[0] for _ in group) for group in spans]
    else:
        unconditional = [(context, choices) for _, choices in questions] if normalization == "unconditional" else []
        candidates = [encode_candidates(packed, *question) for question in (*questions, *unconditional)]
        scores = score_candidates(packed.model, candidates, packed.max_batch_tokens)
    results = []
    for i, choice_scores in enumerate(scores[: len(questions)]):
        values = [score.log_prob for score in choice_scores]
        if normalization == "length":
            values = [score.log_prob / score.num_tokens for score in choice_scores]
        elif normalization == "unconditional":
            values = [v - score.log_prob for v, score in zip(values, scores[len(questions) + i])]
        results.append(ChoiceResult(int(np.argmax(values)), tuple(values), choice_scores))
    return results


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


@dataclass(frozen=True, eq=False)
class MaskedSpan:
    """A sequence with its special tokens, and the positions that are masked together.

    `num_truncated` tokens of the text were left out.
    """

    ids: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    num_truncated: int = 0


def candidate_spans(tokenizer: Tokenizer, prompt: str, choices: Sequence[str], max_len: int) -> list[MaskedSpan]:
    """Put each choice into the gap of the prompt, or at its end if it has none; several gaps are an error."""
    if isinstance(choices, str) or not choices:
        raise DataError(f"choices is {choices!r}, expected a list of answers")
    gap = f"{re.escape(tokenizer.mask_token)}|{GAP_PATTERN}" if tokenizer.mask_token else GAP_PATTERN
    before, *after_gaps = re.split(gap, prompt)
    if len(after_gaps) > 1:
        raise DataError(f"there are {len(after_gaps)} gaps in {prompt[:40]!r}, and one answer")
    before, after = (before, after_gaps[0].rstrip(" ")) if after_gaps else (before.rstrip(" ") + " ", "")
    spans = [mask_span(tokenizer, before, choice, after, max_len) for choice in choices]
    if any(span.num_truncated for span in spans):
        raise DataError(f"a text of more than {max_len} tokens is longer than the model reads: {prompt[:40]!r}…")
    return spans


def mask_span(tokenizer: Tokenizer, before: str, word: str, after: str, max_len: int) -> MaskedSpan:
    """Encode a word in its context. A text that is too long loses its start, and its end if necessary."""
    word_start = len(before)
    ids, offsets = tokenizer.encode_with_offsets(before + word + after)
    span_tokens = [i for i, (a, b) in enumerate(offsets) if b > word_start and a < word_start + len(word)]
    if not span_tokens or not word.strip():
        raise DataError(f"the answer {word!r} has no tokens")
    first, last = span_tokens[0], span_tokens[-1] + 1
    max_text_tokens = max_len - tokenizer.num_special_tokens_to_add()
    if last - first > max_text_tokens:
        raise DataError(f"{word[:40]!r} alone is longer than the model reads")
    start = min(max(len(ids) - max_text_tokens, 0), first)
    if last - start > max_text_tokens:  # a long word near the end
        start = last - max_text_tokens
    text_ids = ids[start : start + max_text_tokens]
    input_ids, segments = tokenizer.build_inputs_with_special_tokens(text_ids)
    num_prefix = tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1) - start
    positions = np.arange(num_prefix + first, num_prefix + last)
    return MaskedSpan(np.array(input_ids), np.array(segments), positions, len(ids) - len(text_ids))


def score_masked_spans(packed: PackedModel, spans: Sequence[MaskedSpan]) -> list[tuple[TextScore, bool]]:
    """Score the tokens of each span with all of them masked, as `PackedModel.score_positions` does."""
    mask_id = packed.tokenizer.special_token_ids.mask
    if mask_id is None:
        raise UnsupportedError("the tokenizer has no mask token, which masked prediction needs")
    ids, positions = [span.ids.copy() for span in spans], [span.positions for span in spans]
    for row, masked in zip(ids, positions):
        row[masked] = mask_id
    targets = [span.ids[span.positions] for span in spans]
    return packed.score_positions("masked", ids, positions, targets, [span.segments for span in spans])
