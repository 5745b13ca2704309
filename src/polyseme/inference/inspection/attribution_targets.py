"""What is attributed: the score of a token that a language model predicts, or of the answer of a task model."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, DataError, UnsupportedError, suggest
from polyseme.families import FAMILIES
from polyseme.generation.text import TextGenerator
from polyseme.inference.inspection.attribution import ZERO_ID, AttributionInput, AttributionRequest, Variant
from polyseme.inference.packed_model import PackedModel
from polyseme.inference.prediction import predict_encoded
from polyseme.nn.model import Model
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.tasks.base import TaskConfig
from polyseme.tasks.encoded import AnswerCells, EncodedExample
from polyseme.text.tokenizer import Tokenizer

BASELINES = ("mask", "pad", "unk", "eos", "zero")
MAX_BATCH_TOKENS = {"cuda": 16384, "cpu": 2048}


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """Token ids of one or several texts, the words of them, and the word of each token."""

    ids: list[int]
    words: list[str]
    word_ids: list[int]

    @classmethod
    def from_text(cls, tokenizer: Tokenizer, text: str) -> "TokenizedText":
        """Split a text into the words of the pre-tokenizer, or at spaces where tokens are characters."""
        ids, offsets = tokenizer.encode_with_offsets(text)
        groups = tokenizer.word_ids(text).tolist()
        if tokenizer.kind == "characters":
            groups = [len(text[:start].split()) - (start > 0 and not text[start - 1].isspace()) for start, _ in offsets]
        borders = [i for i in range(len(ids)) if not i or groups[i] != groups[i - 1]]
        spans = [(offsets[i][0], offsets[j - 1][1]) for i, j in zip(borders, [*borders[1:], len(ids)])]
        words = [
            text[start:end].strip() or token for (start, end), token in zip(spans, _tokens_at(tokenizer, ids, borders))
        ]
        word_ids = (np.cumsum(np.isin(np.arange(len(ids)), borders)) - 1).tolist()
        return cls(ids, words, word_ids)

    @classmethod
    def from_words(cls, tokenizer: Tokenizer, words: Sequence[str]) -> "TokenizedText":
        """Encode words, as a tagger reads them."""
        ids, word_ids = tokenizer.encode_words(words)
        return cls(ids, list(words), word_ids)


def _tokens_at(tokenizer: Tokenizer, ids: Sequence[int], index: Iterable[int]) -> list[str]:
    return tokenizer.convert_ids_to_tokens([ids[i] for i in index])


def pretrained_mask_id(model: Model, tokenizer: Tokenizer) -> int | None:
    """Return the id of the mask token if models of this family learn what it means."""
    heads = FAMILIES[model.config.family].pretraining_heads(model.config.trunk)
    return tokenizer.special_token_ids.mask if "masked" in heads else None


def choose_baseline(model: Model, tokenizer: Tokenizer, name: str | None) -> tuple[int, str]:
    """Return the id and the name of the token that stands for nothing, by default the first one that there is."""
    if name is not None and name not in BASELINES:
        raise ConfigError(f"`baseline` is {name!r}; {suggest(name, BASELINES)}")
    special = tokenizer.special_token_ids
    ids = {
        "mask": pretrained_mask_id(model, tokenizer),
        "pad": special.pad,
        "unk": special.unk,
        "eos": special.eos,
        "zero": ZERO_ID,
    }
    token_id = ids[name] if name else next(i for i in ids.values() if i is not None)
    if token_id is None:
        valid = ", ".join(each for each, i in ids.items() if i is not None)
        raise ConfigError(f"`baseline` is {name!r}, and the tokenizer has no such token; valid: {valid}")
    return token_id, "zero" if token_id == ZERO_ID else tokenizer.convert_ids_to_tokens([token_id])[0]


# ------------------------------------------------------------------------------------------------ language models


@dataclass(frozen=True, eq=False)
class LanguageModelTarget:
    """Builds the input of a language model whose prediction of one token is attributed."""

    packed: PackedModel
    generator: TextGenerator | None  # of a sequence-to-sequence model
    path: Any

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the text."""
        return self.packed.tokenizer

    def build(self, request: AttributionRequest) -> AttributionInput:
        """Return the input: a text whose mask is filled, a text that is continued, or a source."""
        texts = [text for text in (request.text, request.pair) if text is not None]
        parts = [TokenizedText.from_text(self.tokenizer, text) for text in texts]
        if empty := [text for text, part in zip(texts, parts) if not part.ids]:
            raise DataError(f"the text has no tokens: {empty[0]!r}")
        heads, mask_id = self.packed.model.heads, self.tokenizer.special_token_ids.mask
        if "masked" in heads and (any(mask_id in part.ids for part in parts) or "next" not in heads):
            return self._masked(request, texts, parts)
        if request.pair is not None:
            raise UnsupportedError(f"{self.path} continues one text: `pair` has no effect")
        return self._source(request, parts[0]) if self.generator is not None else self._next(request, parts[0])

    def _masked(self, request: AttributionRequest, texts: list[str], parts: list[TokenizedText]) -> AttributionInput:
        tokenizer, mask_id = self.tokenizer, self.tokenizer.special_token_ids.mask
        ids, segments, word_ids = add_special_tokens(tokenizer, parts)
        masks = np.flatnonzero(ids == mask_id)
        if not len(masks):
            raise DataError(f"there is no {tokenizer.mask_token} in {request.text!r}: put one where the token is")
        label, number = _split_number(request.label, len(masks))
        position = masks[number - 1]
        before, after = _split_at_mask(texts, tokenizer.mask_token or "", number)

        def find_token(name: str) -> int:
            return find_single_token(tokenizer, name, [(before, after)])

        def log_probs(variants: Sequence[Variant]) -> Tensor:
            rows = [int(np.searchsorted(variant.positions, position)) for variant in variants]
            return self._read(variants, "masked", rows, segments)

        return self._finish(request, label, parts, (ids, word_ids, ids != mask_id), find_token, log_probs)

    def _next(self, request: AttributionRequest, part: TokenizedText) -> AttributionInput:
        bos_ids = self.packed.bos_ids
        ids = np.array([*bos_ids, *part.ids])
        word_ids = np.array([*[-1] * len(bos_ids), *part.word_ids])

        def find_token(name: str) -> int:
            contexts = [(request.text.rstrip(" ") + " ", ""), (request.text, "")]
            return find_single_token(self.tokenizer, name, contexts)

        def log_probs(variants: Sequence[Variant]) -> Tensor:
            return self._read(variants, "next", [len(variant.ids) - 1 for variant in variants])

        is_plain = np.ones(len(ids), dtype=bool)
        return self._finish(request, request.label, [part], (ids, word_ids, is_plain), find_token, log_probs)

    def _source(self, request: AttributionRequest, part: TokenizedText) -> AttributionInput:
        """Read the text as a source; the first target token is predicted, or the first one after its sentinel."""
        generator, packed = self.generator, self.packed
        assert generator is not None
        ids = np.array([*part.ids, *generator.source_suffix])
        word_ids = np.array([*part.word_ids, *[-1] * len(generator.source_suffix)])
        is_sentinel = np.isin(ids, packed.tokenizer.sentinel_ids)
        prompt = [*generator.start_ids, *ids[is_sentinel][:1].tolist()]

        def find_token(name: str) -> int:
            return find_single_token(generator.target_tokenizer, name, [("", "")])

        def log_probs(variants: Sequence[Variant]) -> Tensor:
            layout = PackedLayout.from_lengths([len(prompt)] * len(variants), device=packed.device)
            source = EncoderInput(*self._pack(variants))
            tokens = torch.tensor(prompt * len(variants), device=packed.device)
            return torch.cat([*packed.log_probs("next", Inputs(tokens, layout, source=source), layout.last_indices)])

        return self._finish(request, request.label, [part], (ids, word_ids, ~is_sentinel), find_token, log_probs)

    def _pack(self, variants: Sequence[Variant]) -> tuple[Tensor, PackedLayout]:
        tokens = torch.from_numpy(np.concatenate([variant.ids for variant in variants])).to(self.packed.device)
        return tokens, PackedLayout.from_lengths([len(v.ids) for v in variants], device=self.packed.device)

    def _read(
        self, variants: Sequence[Variant], head: str, rows: list[int], segments: np.ndarray | None = None
    ) -> Tensor:
        """Return the log-probabilities of a head at one row of each variant, [variants, vocabulary]."""
        tokens, layout = self._pack(variants)
        segment_ids = None
        if segments is not None and self.packed.model.config.trunk.num_segments:
            packed_segments = np.concatenate([segments[variant.positions] for variant in variants])
            segment_ids = torch.from_numpy(packed_segments).to(self.packed.device)
        row_index = layout.first_indices + torch.tensor(rows, device=self.packed.device)
        return torch.cat([*self.packed.log_probs(head, Inputs(tokens, layout, segment_ids), row_index)])

    def _finish(
        self,
        request: AttributionRequest,
        label: str | None,
        parts: Sequence[TokenizedText],
        arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
        find_token: Callable[[str], int],
        log_probs: Callable[[Sequence[Variant]], Tensor],
    ) -> AttributionInput:
        """Resolve the label and the contrast, and put the input together."""
        (ids, word_ids, is_plain), packed = arrays, self.packed
        packed.check_length(len(ids), request.text)
        if label is None:
            with torch.no_grad():
                token_id = int(log_probs([Variant(ids, np.arange(len(ids)))])[0].argmax())
        else:
            token_id = find_token(label)
        contrast_id = None if request.contrast is None else find_token(request.contrast)
        names = (self.generator.target_tokenizer if self.generator else packed.tokenizer).convert_ids_to_tokens

        def score_batch(variants: Sequence[Variant]) -> Tensor:
            rows = log_probs(variants).double()
            return rows[:, token_id] if contrast_id is None else rows[:, token_id] - rows[:, contrast_id]

        trunk: Any = packed.model.trunk
        return AttributionInput(
            ids,
            tuple(packed.tokenizer.convert_ids_to_tokens(ids.tolist())),
            tuple(word for part in parts for word in part.words),
            word_ids,
            (word_ids >= 0) & is_plain,
            np.zeros(len(ids), dtype=bool),
            label or names([token_id])[0],
            request.contrast,
            pretrained_mask_id(packed.model, packed.tokenizer),
            *choose_baseline(packed.model, packed.tokenizer, request.baseline),
            score_batch,
            getattr(trunk, "encoder", trunk).embeddings,
            packed.max_batch_tokens,
            pair_start=len(parts[0].words) if len(parts) > 1 else None,
        )


def add_special_tokens(
    tokenizer: Tokenizer, parts: Sequence[TokenizedText]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids of one or two texts with special tokens, their segments, and the word of each token or −1."""
    ids: list[int] = []
    word_ids: list[int] = []
    markers: list[list[int]] = []
    for part in parts:
        markers.append(list(range(-1 - len(ids), -1 - len(ids) - len(part.ids), -1)))
        num_words = max(word_ids, default=-1) + 1
        ids += part.ids
        word_ids += [num_words + word for word in part.word_ids]
    template, segments = (np.array(row) for row in tokenizer.build_inputs_with_special_tokens(*markers))
    index, is_text = -1 - template, template < 0
    index = np.where(is_text, index, 0)
    return np.where(is_text, np.array(ids)[index], template), segments, np.where(is_text, np.array(word_ids)[index], -1)


def find_single_token(tokenizer: Tokenizer, label: str, contexts: Sequence[tuple[str, str]]) -> int:
    """Return the id of a label that is one token between the texts of a context, or an entry of the vocabulary."""
    unk_id = tokenizer.special_token_ids.unk
    pieces: list[int] = []
    for before, after in contexts:
        ids, offsets = tokenizer.encode_with_offsets(before + label + after)
        end = len(before) + len(label)
        inside = [i for i, (a, b) in zip(ids, offsets) if b > len(before) and a < end and b > a]
        pieces = pieces or inside
        if len(inside) == 1 and inside[0] != unk_id:
            return inside[0]
    exact = tokenizer.backend.token_to_id(label)
    if exact is not None and exact != unk_id:
        return int(exact)
    if unk_id in pieces or not pieces:
        close = suggest(label, [word for word in tokenizer.vocabulary if word[:1] == label[:1] and word])
        hint = close if close.startswith("did") else "choose a word that it has"
        raise DataError(f"the token {label!r} is not in the vocabulary of the model; {hint}")
    shown = ", ".join(tokenizer.convert_ids_to_tokens(pieces))
    raise DataError(f"{label!r} is {len(pieces)} tokens of the model ({shown}), and one is predicted: choose another")


def _split_number(label: str | None, num_masks: int) -> tuple[str | None, int]:
    """Split `TOKEN@2` into the token and the number of its mask, 1 if there is none."""
    token, separator, number = (label or "").rpartition("@")
    if not separator or not number.isdigit() or not token:
        return label, 1
    if not 1 <= int(number) <= num_masks:
        raise DataError(f"{label!r} asks for mask {number}, and the text has {num_masks}")
    return token, int(number)


def _split_at_mask(texts: Sequence[str], mask_token: str, number: int) -> tuple[str, str]:
    """Return what stands before and after a mask in its text."""
    for text in texts:
        parts = text.split(mask_token)
        if number < len(parts):
            return mask_token.join(parts[:number]), mask_token.join(parts[number:])
        number -= len(parts) - 1
    return "", ""


# ---------------------------------------------------------------------------------------------------- task models


@dataclass(frozen=True, eq=False)
class TaskTarget:
    """Builds the input of a task model whose answer is attributed; a model over frozen features has no tokenizer."""

    model: Model
    task: TaskConfig
    encode: Callable[[Sequence[Any]], Iterable[EncodedExample]]
    tokenizer: Tokenizer | None
    path: Any

    def build(self, request: AttributionRequest) -> AttributionInput:
        """Return the input of the task's example."""
        task, pair = self.task, request.pair
        (example,) = task.read([request.text if pair is None else (request.text, pair)], needs_labels=False)
        windows = list(self.encode([example]))
        if len(windows) != 1 or windows[0].is_truncated:
            raise DataError(f"the text is longer than the model reads at once: {request.text[:40]!r}…")
        encoded = windows[0]
        if encoded.lengths:
            raise UnsupportedError(f"{self.path} reads several sequences per example, which have no attribution")
        (prediction,) = predict_encoded(self.model, task, [example], [encoded])
        answer = task.locate_answer(request.label, example, encoded, prediction)
        cells = [answer]
        if request.contrast is not None:
            cells.append(task.locate_contrast(request.contrast, answer, example, encoded, prediction))
        tokens, words, word_ids, pair_start = self._align(example, encoded)
        is_required = np.isin(np.arange(len(tokens)), [p for each in cells for p in each.positions])
        device = next(self.model.parameters()).device

        def score_batch(variants: Sequence[Variant]) -> Tensor:
            first, *others = self._score(encoded, variants, cells)
            return first - others[0] if others else first

        trunk: Any = self.model.trunk
        if self.tokenizer is None:
            if request.baseline not in (None, "zero"):
                raise ConfigError(f"`baseline` is {request.baseline!r}; over frozen features there is only 'zero'")
            mask_id, baseline, input_layer = None, (ZERO_ID, "zero"), trunk.features
        else:
            mask_id = pretrained_mask_id(self.model, self.tokenizer)
            baseline = choose_baseline(self.model, self.tokenizer, request.baseline)
            input_layer = getattr(trunk, "encoder", trunk).embeddings
        return AttributionInput(
            encoded.ids,
            tokens,
            words,
            word_ids,
            word_ids >= 0,
            is_required,
            answer.name,
            None if request.contrast is None else cells[1].name,
            mask_id,
            *baseline,
            score_batch,
            input_layer,
            MAX_BATCH_TOKENS["cuda" if device.type == "cuda" else "cpu"],
            answer.kind == "number",
            pair_start,
        )

    def _score(
        self, encoded: EncodedExample, variants: Sequence[Variant], answers: Sequence[AnswerCells]
    ) -> list[Tensor]:
        """Return the scores of each answer, [variants]."""
        examples = [encoded.select_tokens(variant.ids, variant.positions) for variant in variants]
        logits = self.task.codec.answer_logits(self.model, examples)
        rows = list(zip(logits, examples, (variant.positions for variant in variants)))
        return [torch.stack([answer.score(*row) for row in rows]) for answer in answers]

    def _align(
        self, example: Any, encoded: EncodedExample
    ) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray, int | None]:
        """Return the tokens of an encoded example, the words of its texts, and the word of each token or −1.

        The last value is the first word of the second text, if there is one.
        """
        parts: list[Any] = list(self.task.input_texts(example))
        word_ids = np.full(len(encoded.ids), -1)
        if self.tokenizer is None:
            (parts,) = map(list, self.task.word_sequences(example))
            word_ids, words = np.arange(len(encoded.ids)), tuple(word for part in parts for word in part)
            return words, words, word_ids, len(parts[0]) if len(parts) > 1 else None
        all_words: list[str] = []
        starts = []
        for part in parts:
            build = TokenizedText.from_text if isinstance(part, str) else TokenizedText.from_words
            tokenized = build(self.tokenizer, part)
            first = _find_run(encoded.ids, tokenized.ids, word_ids >= 0)
            word_ids[first : first + len(tokenized.ids)] = len(all_words) + np.array(tokenized.word_ids)
            starts.append(len(all_words))
            all_words += tokenized.words
        tokens = tuple(self.tokenizer.convert_ids_to_tokens(encoded.ids.tolist()))
        return tokens, tuple(all_words), word_ids, starts[1] if len(starts) > 1 else None


def _find_run(ids: np.ndarray, part: Sequence[int], is_taken: np.ndarray) -> int:
    """Return where a run of token ids begins."""
    for start in range(len(ids) - len(part) + 1):
        run = slice(start, start + len(part))
        if not is_taken[run].any() and ids[run].tolist() == list(part):
            return start
    raise DataError(
        "the tokens of the text are not those that the model reads: it is too long, or has unusual characters"
    )
