"""`polyseme.load(folder)`: a model with its tokenizer, ready to be asked.

model = polyseme.load("runs/demo/model")
model.fill("the [MASK] of a function")
model.embed(["a text", "another"])
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import ConfigError, DataError, UnsupportedError, suggest
from polyseme.generation.text import (
    GenerationConfig,
    TextGenerator,
    TranslatedText,
    generate_texts,
    stream_text,
    translate_texts,
)
from polyseme.inference.batching import PackedBatch, mean_pool, packed_batches, to_host_async
from polyseme.inference.candidates import CandidateBatch, format_prompt, join_prompt_answer, score_candidates
from polyseme.inference.cloze import MaskedSpan, candidate_spans, mask_span, score_masked_spans
from polyseme.inference.layers import mean_per_word, select_layers
from polyseme.inference.results import ChoiceResult, LastWordScore, MaskPrediction, TextScore
from polyseme.ngram.model import NgramLM, is_ngram
from polyseme.nn.attention.relative import QueryStream
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model
from polyseme.nn.packing import PackedLayout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.progress import progress
from polyseme.weights.folder import ModelFolder, load_model

if TYPE_CHECKING:
    from polyseme.tasks.base import TaskConfig
    from polyseme.tasks.extractive_qa import SpanAnswer

NORMALIZATIONS = ("none", "length", "unconditional")
Granularity = Literal["token", "word", "text"]


def load(
    folder: str | Path,
    device: str | None = None,
    precision: str = "float32",
    task: str = "",
    tasks: Sequence[type[TaskConfig]] = (),
) -> LanguageModel:
    """Open a model folder, written here or by `transformers`. On a GPU, `bf16` is several times as fast. Of a model
    that was fine-tuned for several tasks, `task` chooses one. `tasks` are classes of your own.

    A folder of n-grams opens as an `NgramLM`: it answers `score` and `generate`, and to every other question of a
    `LanguageModel` it says in one line that it cannot. So whoever asks need not know which of the two it is.
    """
    if precision not in ("float32", "bf16"):
        raise ConfigError(f"precision is {precision!r}: {suggest(precision, ['float32', 'bf16'])}")
    if is_ngram(Path(folder)):
        return cast(LanguageModel, NgramLM.open(folder))
    model_folder = load_model(folder)
    if task:
        from polyseme.inference.prediction import select_task

        model_folder = select_task(model_folder, task, tasks)
    model = LanguageModel(model_folder, device)
    model.tasks = tasks
    if precision == "bf16":
        if model.device.type != "cuda":
            raise ConfigError("bf16 needs a GPU: leave the precision at float32")
        model.model.to(torch.bfloat16)
    return model


class LanguageModel:
    """Every question one can ask a model. Texts are read packed, sorted by length, and answered in order."""

    tasks: Sequence[type[TaskConfig]] = ()  # of your own

    def __init__(self, folder: ModelFolder, device: str | None = None, max_batch_tokens: int = 0):
        self.path, self.folder, self.tokenizer = folder.path, folder, folder.tokenizer
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model: Model = folder.model.to(self.device).eval()
        self.max_batch_tokens = max_batch_tokens or (65536 if self.device.type == "cuda" else 2048)

    @property
    def max_len(self) -> int:
        return self.model.config.trunk.embeddings.max_len

    @property
    def bos_ids(self) -> list[int]:
        """What stands before a text that a causal model reads; GPT (2018) has no such mark: the first token is free."""
        special_ids = self.tokenizer.special_token_ids
        return [token_id for token_id in (special_ids.bos, special_ids.eos) if token_id is not None][:1]

    def encode(self, text: str, pair: str | None = None) -> dict[str, Any]:
        """Pieces, ids, segments and attention mask: the view that other tools use."""
        ids, segments = self._encode_sequence(text, pair)
        mask = [1] * len(ids)
        return {
            "tokens": self.tokenizer.convert_ids_to_tokens(ids),
            "input_ids": ids,
            "token_type_ids": segments,
            "attention_mask": mask,
        }

    @torch.inference_mode()
    def fill(self, text: str, top_k: int = 5) -> list[list[MaskPrediction]]:
        """The likeliest pieces for each mask in the text, best first."""
        self._require_head("masked", "fill in masks")
        mask_id = self.tokenizer.special_token_ids.mask
        ids, segments = self._encode_sequence(text)
        rows = [i for i, token in enumerate(ids) if token == mask_id]
        if not rows:
            raise DataError(f"there is no {self.tokenizer.mask_token} in {text!r}")
        batch = next(self._batches([np.array(ids)], [np.array(segments)]))
        probs = self._masked_log_probs(batch, torch.tensor(rows)).exp()
        best = probs.topk(min(top_k, probs.shape[-1]))
        return [
            [MaskPrediction(self.tokenizer.convert_ids_to_tokens([i])[0], p) for p, i in zip(values, index)]
            for values, index in zip(best.values.tolist(), best.indices.tolist())
        ]

    @torch.inference_mode()
    def next_sentence(self, first: str, second: str) -> float:
        """The probability that the second text follows the first."""
        self._require_head("pair", "judge whether one text follows another")
        ids, segments = self._encode_sequence(first, second)
        batch_and_hidden = self._encode_hidden(ids, segments)
        scores = self.model.predict("pair", batch_and_hidden[1], batch_and_hidden[0].layout)
        return float(scores.float().softmax(-1)[0, 0])

    @torch.inference_mode()
    def score(self, texts: Sequence[str]) -> list[TextScore]:
        """Log-probability of each text: of every token after those before it, or after all others if masked.

        Read backwards, of every token before those behind it; read both ways, the mean of the two.
        """
        heads = [head for head in ("next", "previous") if head in self.model.heads]
        if heads:
            self._require_head(heads[0], "score a text alone")
            scores_by_head = [self._score_causal(texts, head) for head in heads]
            return [
                TextScore(math.fsum(s.log_prob for s in text_scores) / len(text_scores), text_scores[0].num_tokens)
                for text_scores in zip(*scores_by_head)
            ]
        self._require_head("masked", "score a text")
        scores = []
        with progress("score", len(texts), "texts", show=len(texts) > 20) as bar:
            for text in texts:
                scores.append(self._score_masked(text))
                bar.advance(1)
        return scores

    def _score_causal(self, texts: Sequence[str], head: str) -> list[TextScore]:
        scores: list[TextScore | None] = [None] * len(texts)
        ids = [np.array([*self.bos_ids, *self._encode_sequence(text)[0]]) for text in texts]
        if head == "previous":
            eos_ids = [
                token_id
                for token_id in (self.tokenizer.special_token_ids.eos, self.tokenizer.special_token_ids.bos)
                if token_id is not None
            ]
            ids = [np.array([*self._encode_sequence(text)[0], *eos_ids[:1]]) for text in texts]
        for i, row in enumerate(ids):
            self._check_length(len(row) - 1, texts[i])
            if len(row) < 2:
                raise DataError(f"{texts[i]!r} is one token, and nothing stands before it to predict it from")
        # the last token has nothing left to predict, so it is not read; backwards, the first
        input_rows, target_rows = [row[:-1] for row in ids], [row[1:] for row in ids]
        if head == "previous":
            input_rows, target_rows = target_rows, input_rows
        for batch in self._batches(input_rows):
            hidden = self.model.trunk(Inputs(batch.tokens, batch.layout)).hidden
            targets = torch.from_numpy(np.concatenate([target_rows[i] for i in batch.index])).to(self.device)
            log_probs = torch.cat(
                [
                    self._log_probs(head, (batch, hidden), rows).gather(1, targets[rows][:, None])[:, 0]
                    for rows in torch.arange(len(targets), device=self.device).split(1024)
                ]
            )
            for i, text_log_probs in zip(batch.index, log_probs.split(list(batch.layout.lengths))):
                scores[i] = TextScore(float(text_log_probs.double().sum()), len(text_log_probs))
        return [score for score in scores if score is not None]

    def _score_masked(self, text: str) -> TextScore:
        ids, segments = (np.array(row) for row in self._encode_sequence(text))
        num_prefix = self.tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
        positions = range(num_prefix, num_prefix + len(ids) - self.tokenizer.num_special_tokens_to_add())
        span_scores = self._score_spans([MaskedSpan(ids, segments, range(i, i + 1)) for i in positions])
        return TextScore(math.fsum(score.log_prob for score, _ in span_scores), len(positions))

    @torch.inference_mode()
    def _score_spans(self, spans: Sequence[MaskedSpan]) -> list[tuple[TextScore, bool]]:
        return score_masked_spans(spans, self.tokenizer.special_token_ids.mask, self._batches, self._masked_log_probs)

    @property
    def is_masked_lm(self) -> bool:
        """Whether gaps in a text are what it can fill, and not what follows a text."""
        return "masked" in self.model.heads and "next" not in self.model.heads

    @torch.inference_mode()
    def last_words(self, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]:
        """The last word of each text after the rest of it, as LAMBADA asks (Paperno et al. 2016).

        A masked model has to fill a gap at the end, whose masks give away how many tokens the word has.
        """
        if self.is_masked_lm:
            spans = [
                mask_span(self.tokenizer, context.rstrip() + " ", word, "", self.max_len) for context, word in texts
            ]
            return [
                LastWordScore(*word_scores, span.num_truncated)
                for word_scores, span in zip(self._score_spans(spans), spans)
            ]
        self._require_head("next", "guess last words")
        ids, answer_starts, num_truncated = [], [], []
        for context, word in texts:
            candidates = self._encode_candidates(context.rstrip() + " ", [word], check_length=False)
            row, answer_start = candidates.sequences[0], candidates.answer_starts[0]
            excess = max(len(row) - 1 - self.max_len, 0)
            if answer_start - excess < 1 + len(self.bos_ids):
                raise DataError(f"{word!r} alone is longer than the model reads")
            prefix = row[: len(self.bos_ids)]
            ids.append(np.concatenate([prefix, row[len(prefix) + excess :]]) if excess else row)
            answer_starts.append(answer_start - excess)
            num_truncated.append(excess)
        word_scores: list[LastWordScore | None] = [None] * len(texts)
        for batch in self._batches([row[:-1] for row in ids]):
            hidden = self.model.trunk(Inputs(batch.tokens, batch.layout)).hidden
            starts = batch.layout.cu_seqlens.tolist()
            rows = [
                torch.arange(starts[k] + answer_starts[i] - 1, starts[k] + len(ids[i]) - 1)
                for k, i in enumerate(batch.index)
            ]
            sizes = [len(word_log_probs) for word_log_probs in rows]
            log_probs = self._log_probs("next", (batch, hidden), torch.cat(rows))
            targets = torch.from_numpy(np.concatenate([ids[i][answer_starts[i] :] for i in batch.index])).to(
                self.device
            )
            target_log_probs = log_probs.gather(1, targets[:, None])[:, 0].double().cpu().split(sizes)
            is_correct = (log_probs.argmax(-1) == targets).cpu().split(sizes)
            for i, word_log_probs, word_correct in zip(batch.index, target_log_probs, is_correct):
                word_scores[i] = LastWordScore(
                    TextScore(float(word_log_probs.sum()), len(word_log_probs)),
                    bool(word_correct.all()),
                    num_truncated[i],
                )
        return [last_word for last_word in word_scores if last_word is not None]

    def rank_choices(
        self,
        prompt: str,
        choices: Sequence[str],
        shots: Sequence[tuple[str, str]] = (),
        template: str = "{text} {answer}",
        normalization: str = "none",
        context: str = "Answer: ",
    ) -> ChoiceResult:
        """Which answer is likeliest after a prompt, and after the shots, texts with their answers, before it."""
        return self.rank_choices_batch([(prompt, choices)], shots, template, normalization, context)[0]

    def rank_choices_batch(
        self,
        questions: Sequence[tuple[str, Sequence[str]]],
        shots: Sequence[tuple[str, str]] = (),
        template: str = "{text} {answer}",
        normalization: str = "none",
        context: str = "Answer: ",
    ) -> list[ChoiceResult]:
        """`rank_choices` for many prompts with their choices.

        Compared are summed log-probabilities, or these by the number of tokens (`length`), or less what the answer has
        without its question, after the `context` alone (`unconditional`; Brown et al. 2020, §2.4). A masked model is
        asked for the tokens of each answer in the prompt's gap (its mask, `_`, `@placeholder`), else at its end.
        """
        supported = NORMALIZATIONS[: 2 if self.is_masked_lm else 3]
        if normalization not in supported:
            raise ConfigError(f"normalization is {normalization!r}; {suggest(normalization, supported)}")
        prompts = [(format_prompt(text, template, shots), choices) for text, choices in questions]
        if self.is_masked_lm:
            spans = [candidate_spans(self.tokenizer, *prompt, self.max_len) for prompt in prompts]
            pairs = iter(self._score_spans([span for group in spans for span in group]))
            choice_scores = [tuple(next(pairs)[0] for _ in group) for group in spans]
        else:
            self._require_head("next", "choose between answers")
            prompts += [(context, choices) for _, choices in questions] if normalization == "unconditional" else []
            candidates = [self._encode_candidates(*prompt) for prompt in prompts]
            choice_scores = [
                tuple(TextScore(*pair) for pair in pairs)
                for pairs in score_candidates(self.model, candidates, self.max_batch_tokens)
            ]
        results = []
        for i, scores in enumerate(choice_scores[: len(questions)]):
            normalized_scores = [s.log_prob for s in scores]
            if normalization == "length":
                normalized_scores = [s.log_prob / s.num_tokens for s in scores]
            elif normalization == "unconditional":
                normalized_scores = [
                    v - s.log_prob for v, s in zip(normalized_scores, choice_scores[len(questions) + i])
                ]
            results.append(ChoiceResult(int(np.argmax(normalized_scores)), tuple(normalized_scores), scores))
        return results

    def _encode_candidates(self, prompt: str, choices: Sequence[str], check_length: bool = True) -> CandidateBatch:
        """Each choice behind the prompt. A space between them is the answer's: in most vocabularies it is part of the
        answer's first token."""
        if isinstance(choices, str) or not choices:
            raise DataError(f"choices is {choices!r}: a list of answers is needed")
        sequences, answer_starts = [], []
        for choice in choices:
            text = join_prompt_answer(prompt, choice)
            ids, offsets = self.tokenizer.encode_with_offsets(text)
            answer_start = next((i for i, (_, end) in enumerate(offsets) if end > len(prompt.rstrip(" "))), len(ids))
            if answer_start == len(ids) or not choice.strip():
                raise DataError(f"there is nothing to read in the choice {choice!r}")
            if not answer_start and not self.bos_ids:
                raise DataError(f"{choice!r} follows nothing: without a mark that opens texts a prompt is needed")
            if check_length:
                self._check_length(len(self.bos_ids) + len(ids) - 1, text)
            sequences.append(np.array([*self.bos_ids, *ids]))
            answer_starts.append(len(self.bos_ids) + answer_start)
        return CandidateBatch(sequences, answer_starts)

    @property
    def is_seq2seq(self) -> bool:
        """Whether it writes a text for a source; others go on with a beginning."""
        return self._text_generator.is_seq2seq

    def generate(
        self, prompts: str | Sequence[str], generation_config: GenerationConfig | None = None, prefix: str = ""
    ) -> list[Any]:
        """What the model writes for a prompt, best or first drawn first; for several prompts a list of such lists.

        A prompt is gone on with, or, by a model that writes targets, read as the source. `generation_config` says how;
        a text begins with the `prefix`, which is not repeated.
        """
        generated = generate_texts(
            self._text_generator,
            [prompts] if isinstance(prompts, str) else prompts,
            generation_config or GenerationConfig(),
            prefix,
        )
        return generated[0] if isinstance(prompts, str) else generated

    def translate(
        self,
        texts: Sequence[str],
        generation_config: GenerationConfig | None = None,
        split: Callable[[str], list[str]] | None = None,
    ) -> list[TranslatedText]:
        """A translation of each text, by a beam of 5 unless told otherwise; an empty text has an empty one.

        A text that is too long is refused, or cut by `split` into parts that are translated each.
        """
        return translate_texts(
            self._text_generator, texts, generation_config or GenerationConfig(0, num_beams=5), split
        )

    def stream(self, prompt: str, generation_config: GenerationConfig | None = None, prefix: str = "") -> Iterator[str]:
        """The same of one prompt, piece by piece while it is written."""
        return stream_text(self._text_generator, prompt, generation_config or GenerationConfig(), prefix)

    @cached_property
    def _text_generator(self) -> TextGenerator:
        return TextGenerator.from_folder(self.folder)

    @torch.inference_mode()
    def embed(
        self,
        texts: Sequence[str],
        layers: str | int = "last",
        granularity: Granularity = "text",
        truncate: bool = False,
    ) -> np.ndarray | list[np.ndarray]:
        """Vectors: one a text (the mean over its tokens, special ones too), or one a word or token of each text.

        `layers` is one of LAYER_SELECTIONS or a depth (0 the embeddings). `all` keeps every layer on an axis of its
        own. Special tokens written in a text are plain characters here; those that the family adds have vectors only
        per token.
        """
        if granularity not in ("token", "word", "text"):
            raise ConfigError(f"granularity is {granularity!r}; {suggest(str(granularity), ('token', 'word', 'text'))}")
        layer_indices, combine_layers = select_layers(layers, self.model.config.trunk.num_layers)
        encoded = self.tokenizer.encode_corpus(list(texts))
        ends = np.cumsum(encoded.lengths)
        num_special = self.tokenizer.num_special_tokens_to_add()
        ids, segments, word_starts = [], [], []
        for text, start, end in zip(texts, ends - encoded.lengths, ends):
            if start == end:
                raise DataError(f"there is nothing to read in {text!r}")
            if truncate:
                end = min(end, start + self.max_len - num_special)
            self._check_length(end - start + num_special, text)
            input_ids, segment_ids = self.tokenizer.build_inputs_with_special_tokens(encoded.ids[start:end].tolist())
            ids.append(np.array(input_ids))
            segments.append(np.array(segment_ids))
            word_starts.append(np.flatnonzero(encoded.word_starts[start:end]))
        num_prefix = self.tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)

        def layer_states() -> Iterator[tuple[PackedBatch, Tensor]]:
            for batch in self._batches(ids, segments):
                trunk_output = self.model.trunk(
                    self.model.config.trunk.omit_unsupported(Inputs(batch.tokens, batch.layout, batch.segments)),
                    layers=layer_indices,
                )
                yield batch, combine_layers([trunk_output.layers[k] for k in layer_indices])

        if granularity == "text":
            vectors: np.ndarray | None = None
            for index, chunk in to_host_async(
                (batch.index, mean_pool(hidden, batch.layout)) for batch, hidden in layer_states()
            ):
                if vectors is None:
                    vectors = np.empty((len(ids), *chunk.shape[1:]), dtype=np.float32)
                vectors[index] = chunk
            return np.empty((0, self.model.config.trunk.dim), dtype=np.float32) if vectors is None else vectors
        rows: list[Any] = [None] * len(ids)
        for batch, hidden in layer_states():
            for i, chunk in zip(batch.index, hidden.split(list(batch.layout.lengths))):
                token_vectors = chunk.float().cpu().numpy()
                text_vectors = token_vectors[num_prefix : len(token_vectors) - (num_special - num_prefix)]
                rows[i] = token_vectors if granularity == "token" else mean_per_word(text_vectors, word_starts[i])
        return rows

    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """Labels of a fine-tuned model, for texts, pairs of texts or lists of words."""
        from polyseme.inference.prediction import predict_values

        return predict_values(self.folder, examples, self.tasks)

    def answer(self, context: str, question: str) -> SpanAnswer:
        """The stretch of the context that answers the question; its text is empty where the model finds none.

        The context may be of any length: it is read in windows, of which only the best answer is kept.
        """
        from polyseme.inference.prediction import answer_question

        return answer_question(self.folder, context, question, self.tasks)  # type: ignore[no-any-return]

    def _require_head(self, head: str, operation: str) -> None:
        if head not in self.model.heads:
            head_names = ", ".join(self.model.heads) or "no head"
            raise UnsupportedError(
                f"{self.path} cannot {operation}: it has {head_names}, and that needs the head {head!r}"
            )
        if head == "next" and isinstance(self.model.config.trunk, EncoderDecoderConfig):
            raise UnsupportedError(f"{self.path} cannot {operation}: it writes a target for a source")

    def _check_length(self, length: int, text: str) -> None:
        if length > self.max_len:
            excerpt = re.sub(r"\s+", " ", text[:40])
            raise DataError(f"a text of {length} tokens is longer than the model reads ({self.max_len}): {excerpt!r}…")

    def _encode_sequence(self, text: str, pair: str | None = None) -> tuple[list[int], list[int]]:
        first = self.tokenizer.encode(text)
        second = None if pair is None else self.tokenizer.encode(pair)
        if not first or second == []:
            raise DataError(f"there is nothing to read in {(text if not first else pair)!r}")
        ids, segments = self.tokenizer.build_inputs_with_special_tokens(first, second)
        self._check_length(len(ids), text)
        return ids, segments

    def _batches(
        self, ids: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None = None
    ) -> Iterator[PackedBatch]:
        """The sequences in bins of about `max_batch_tokens` tokens, ready for the trunk."""
        used_segments = segments if self.model.config.trunk.num_segments else None
        return packed_batches(ids, used_segments, self.max_batch_tokens, self.device)

    def _encode_hidden(self, ids: list[int], segments: list[int]) -> tuple[PackedBatch, Tensor]:
        batch = next(self._batches([np.array(ids)], [np.array(segments)]))
        inputs = self.model.config.trunk.omit_unsupported(Inputs(batch.tokens, batch.layout, batch.segments))
        return batch, self.model.trunk(inputs).hidden

    def _masked_log_probs(self, batch: PackedBatch, rows: Tensor) -> Tensor:
        """What masked tokens may be, [rows, vocabulary]; a query stream, where there is one, sees all but them."""
        rows = rows.to(self.device)
        trunk, queries, predicted_rows = self.model.trunk, None, rows
        if trunk.config.has_query_stream:
            order = torch.full_like(batch.tokens, -1).index_fill(0, rows, 0)
            counts = np.histogram(rows.cpu().numpy(), batch.layout.cu_seqlens.cpu().numpy())[0]
            queries = QueryStream(order, rows, PackedLayout.from_lengths(counts, device=self.device))
            predicted_rows = batch.layout.num_tokens + torch.arange(len(rows), device=self.device)
        inputs = Inputs(batch.tokens, batch.layout, batch.segments, query_stream=queries)
        hidden = trunk(self.model.config.trunk.omit_unsupported(inputs)).hidden
        return self._log_probs("masked", (batch, hidden), predicted_rows)

    def _log_probs(self, head: str, batch_and_hidden: tuple[PackedBatch, Tensor], rows: Tensor) -> Tensor:
        batch, hidden = batch_and_hidden
        return self.model.predict(head, hidden, batch.layout, rows.to(self.device)).float().log_softmax(-1)
