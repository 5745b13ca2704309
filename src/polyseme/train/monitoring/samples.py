"""What a model writes during pre-training, for the report: filled masks or continuations, and nearest tokens.

Prompts are fixed held-out sentences. Drawing changes no weight and no random state, so that a run has the same bits.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F

from polyseme.corpus.store import Corpus
from polyseme.families import text_start_id
from polyseme.io.atomic import wrap_os_errors
from polyseme.nn.model import Model, ModelConfig
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.objectives.packing import BatchBuilder
from polyseme.text.tokenizer import Tokenizer
from polyseme.train.loop import TrainState
from polyseme.train.optimizer import swap_averaged_weights
from polyseme.train.run_folder import truncate_rows

SAMPLES_FILE = "samples.jsonl"
NEIGHBORS_FILE = "neighbors.json"
_NUM_PROMPTS, _NUM_GUESSES, _PROMPT_TOKENS, _NEW_TOKENS = 4, 3, 8, 24
_MAX_PARAMETERS = 2_000_000_000  # of a model that draws samples
_MAX_SENTENCES = 2000  # that are searched for prompts
_MAX_COUNTED_TOKENS = 2_000_000
_MIN_COUNT, _NUM_WORDS, _NUM_NEIGHBORS, _MAX_CANDIDATES = 10, 10, 6, 5000


@dataclass
class HeldOutSamples:
    """Fixed held-out prompts, and the file that collects what the model makes of them at each validation.

    A masked language model fills one masked word of each sentence; a causal one continues the start of each.
    """

    path: Path
    tokenizer: Tokenizer
    is_masked: bool
    prompts: list[list[int]]  # token ids with special tokens
    answers: list[int] = field(default_factory=list)  # the masked tokens

    @classmethod
    def open(
        cls, out: Path, config: ModelConfig, tokenizer: Tokenizer, valid: BatchBuilder | None, max_len: int
    ) -> Self | None:
        """Choose the prompts; None if nothing is held out, or the model neither fills nor continues text."""
        corpus, trunk, ids = getattr(valid, "corpus", None), config.trunk, tokenizer.special_token_ids
        if not isinstance(corpus, Corpus) or trunk.has_source or trunk.has_query_stream or tokenizer.kind == "events":
            return None
        mask_ids = [i for i in (ids.cls, ids.mask, ids.sep) if i is not None]
        is_masked = "masked" in config.heads and len(mask_ids) == 3
        if not is_masked and not ("next" in config.heads and trunk.causal):
            return None
        prompts: list[list[int]] = []
        answers: list[int] = []
        for sentence, is_whole_word in _candidate_sentences(corpus, max_len - 2):
            if is_masked:
                position = _word_to_mask(sentence, is_whole_word, tokenizer)
                if position is None:
                    continue
                cls_id, mask_id, sep_id = mask_ids
                prompts.append([cls_id, *sentence[:position], mask_id, *sentence[position + 1 :], sep_id])
                answers.append(sentence[position])
            else:
                start = text_start_id(config.family, ids.text_boundaries)
                prompts.append([*([] if start is None else [start]), *sentence[:_PROMPT_TOKENS]])
            if len(prompts) == _NUM_PROMPTS:
                break
        return cls(out / SAMPLES_FILE, tokenizer, is_masked, prompts, answers) if prompts else None

    def truncate(self, step: int) -> None:
        """Remove what was written after a step, from which the run is resumed."""
        if self.path.exists():
            truncate_rows(self.path, step)

    def write(self, state: TrainState, step: int) -> None:
        """Append what the model makes of the prompts after a step; rank 0 writes."""
        if state.rank != 0 or sum(p.numel() for p in state.model.parameters()) > _MAX_PARAMETERS:
            return
        state.model.eval()
        with torch.no_grad(), swap_averaged_weights(state.optimizer), state.autocast():
            samples = self._fill(state.model) if self.is_masked else self._continue(state.model)
        state.model.train()
        with wrap_os_errors(self.path), open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps({"step": step, "samples": samples}, ensure_ascii=False) + "\n")

    def _fill(self, model: Model) -> list[dict[str, Any]]:
        """Return the best tokens for the mask of each prompt."""
        inputs = _pack(model, self.prompts)
        rows = torch.eq(inputs.tokens, self.tokenizer.special_token_ids.mask or 0).nonzero().squeeze(1)
        hidden = model.trunk(inputs).hidden
        probs = model.predict("masked", hidden, inputs.layout, rows).float().softmax(-1)
        best = probs.topk(min(_NUM_GUESSES, probs.shape[-1]))
        samples = []
        for row, (prompt, answer) in enumerate(zip(self.prompts, self.answers)):
            guesses = zip(best.indices[row].tolist(), best.values[row].tolist())
            samples.append({
                "prompt": self._show(prompt[1:-1]),
                "answer": self._show([answer]),
                "answer_probability": float(f"{probs[row, answer].item():.3g}"),
                "guesses": [(self._show([token]), float(f"{value:.3g}")) for token, value in guesses],
            })  # fmt: skip
        return samples

    def _continue(self, model: Model) -> list[dict[str, Any]]:
        """Return a continuation of each prompt, drawn from the 20 best tokens with a generator of its own."""
        generator = torch.Generator().manual_seed(0)
        sequences = [list(prompt) for prompt in self.prompts]
        max_len = model.config.trunk.embeddings.max_len
        for _ in range(_NEW_TOKENS):
            inputs = _pack(model, [sequence[-max_len:] for sequence in sequences])
            hidden = model.trunk(inputs).hidden
            logits = model.predict("next", hidden, inputs.layout, inputs.layout.last_indices).float().cpu()
            best = logits.topk(min(20, logits.shape[-1]))
            choices = torch.multinomial(best.values.softmax(-1), 1, generator=generator)
            for sequence, token in zip(sequences, best.indices.gather(1, choices).squeeze(1).tolist()):
                sequence.append(token)
        eos = self.tokenizer.special_token_ids.text_boundaries[1]
        samples = []
        for prompt, sequence in zip(self.prompts, sequences):
            new = sequence[len(prompt) :]
            new = new[: new.index(eos)] if eos in new else new
            samples.append({"prompt": self._show(prompt), "continuation": self._show(new)})
        return samples

    def _show(self, ids: list[int]) -> str:
        hidden_ids = self.tokenizer.all_special_ids - {self.tokenizer.special_token_ids.mask}
        return self.tokenizer.decode([i for i in ids if i not in hidden_ids], skip_special_tokens=False)


def _pack(model: Model, sequences: list[list[int]]) -> Inputs:
    device = next(model.parameters()).device
    tokens = torch.tensor([token for sequence in sequences for token in sequence], device=device)
    return Inputs(tokens, PackedLayout.from_lengths(list(map(len, sequences)), device=device))


def _candidate_sentences(corpus: Corpus, max_len: int) -> Iterator[tuple[list[int], list[bool]]]:
    """Yield sentences of medium length from all over the corpus, and which of their tokens are whole words."""
    offsets = np.asarray(corpus.sentence_offsets)
    lengths = np.diff(offsets)
    for low, high in ((8, 24), (_PROMPT_TOKENS // 2, max_len)):
        numbers = np.flatnonzero((lengths >= low) & (lengths <= min(high, max_len)))
        if len(numbers):
            stride = max(len(numbers) // _NUM_PROMPTS, 1)
            order = np.argsort(np.arange(len(numbers)) % stride, kind="stable")[:_MAX_SENTENCES]
            for number in numbers[order]:
                tokens, is_whole_word = _read_tokens(corpus, offsets[[number]], lengths[[number]])
                yield tokens.tolist(), is_whole_word.tolist()
            return


def _read_tokens(corpus: Corpus, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens of a corpus, and which of them are whole words."""
    starts_word = corpus.gather_word_starts(starts, lengths)
    return corpus.gather_tokens(starts, lengths), starts_word & np.append(starts_word[1:], True)


def _word_to_mask(sentence: list[int], is_whole_word: list[bool], tokenizer: Tokenizer) -> int | None:
    """Return the position of a word of one token and at least four letters, as near to the middle as there is."""
    words = [tokenizer.decode([token]).strip() for token in sentence]
    positions = [i for i, word in enumerate(words) if is_whole_word[i] and len(word) >= 4 and word.isalpha()]
    return min(positions, key=lambda i: abs(i - len(sentence) / 2), default=None)


@torch.no_grad()
def nearest_tokens(model: Model, tokenizer: Tokenizer, corpus: Corpus) -> list[dict[str, Any]]:
    """Return the nearest neighbors of a few frequent words by the cosine of their vectors; none without a table."""
    table = getattr(model.trunk, "token_embeddings", None)
    if not isinstance(table, torch.Tensor) or table.shape[0] < tokenizer.vocab_size or tokenizer.kind == "events":
        return []
    offsets = np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)]
    num_documents = max(int(np.searchsorted(offsets[1:], _MAX_COUNTED_TOKENS)), 1)
    tokens, is_whole_word = _read_tokens(corpus, offsets[:-1][:num_documents], np.diff(offsets)[:num_documents])
    counts = np.bincount(tokens[is_whole_word], minlength=tokenizer.vocab_size)
    order = np.argsort(-counts, kind="stable")[:_MAX_CANDIDATES]
    texts, lowercase_texts = {}, set()
    for token in order[counts[order] >= _MIN_COUNT].tolist():
        text = tokenizer.decode([token]).strip()
        if text.isalpha() and len(text) >= 3 and text.lower() not in lowercase_texts:
            texts[token] = text
            lowercase_texts.add(text.lower())
    if len(texts) < 3 * _NUM_NEIGHBORS:
        return []
    candidates = list(texts)
    # spread over the more frequent words, after those that are in every sentence
    ranks = np.linspace(len(candidates) // 20, min(len(candidates) // 3, 300), _NUM_WORDS)
    words = [candidates[rank] for rank in np.unique(ranks.astype(int))]
    vectors = F.normalize(table[torch.tensor(candidates, device=table.device)].float(), dim=-1)
    rows = []
    for word in words:
        cosines = vectors @ vectors[candidates.index(word)]
        cosines[candidates.index(word)] = -2
        best = cosines.topk(_NUM_NEIGHBORS)
        neighbors = [(texts[candidates[i]], round(v, 3)) for i, v in zip(best.indices.tolist(), best.values.tolist())]
        rows.append({"token": texts[word], "count": int(counts[word]), "neighbors": neighbors})
    return rows
