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

from polyseme.errors import UserError, nearest
from polyseme.generation.text import Search, Translated, Writer, generate, streamed, translate
from polyseme.inference.batching import Packed, fetched, in_bins, means
from polyseme.inference.candidates import Answers, answer_scores, joined, written
from polyseme.inference.cloze import Gap, choice_gaps, gap_of, gap_scores
from polyseme.inference.results import Choice, Guess, LastWord, Score
from polyseme.ngram.model import NgramModel, is_ngram
from polyseme.nn.attention.relative import Queries
from polyseme.nn.model import Model
from polyseme.nn.packing import Layout
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderSpec
from polyseme.progress import progress
from polyseme.weights.folder import ModelFolder, load_model

if TYPE_CHECKING:
    from polyseme.tasks.spans import SpanAnswer

NORMALISE = ("none", "length", "unconditional")
LAYERS = ("embeddings", "last", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "all")
Per = Literal["token", "word", "text"]


def load(folder: str | Path, device: str | None = None, precision: str = "float32", task: str = "") -> LanguageModel:
    """Open a model folder, written here or by `transformers`. On a GPU, `bf16` is several times as fast. Of a model
    that was fine-tuned for several tasks, `task` says which it is to answer.

    A folder of n-grams opens as an `NgramModel`: it answers `score` and `generate`, and to every other question of a
    `LanguageModel` it says in one line that it cannot. So whoever asks need not know which of the two it is.
    """
    if precision not in ("float32", "bf16"):
        raise UserError(f"precision is {precision!r}: {nearest(precision, ['float32', 'bf16'])}")
    if is_ngram(Path(folder)):
        return cast(LanguageModel, NgramModel.open(folder))
    opened = load_model(folder)
    if task:
        from polyseme.finetuning.multitask import one_task

        opened = one_task(opened, task)
    model = LanguageModel(opened, device)
    if precision == "bf16":
        if model.device.type != "cuda":
            raise UserError("bf16 needs a GPU: leave the precision at float32")
        model.model.to(torch.bfloat16)
    return model


class LanguageModel:
    """Every question one can ask a model. Texts are read packed, sorted by length, and answered in order."""

    def __init__(self, folder: ModelFolder, device: str | None = None, bin_tokens: int = 0):
        self.path, self.folder, self.tokenizer = folder.path, folder, folder.tokenizer
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model: Model = folder.model.to(self.device).eval()
        self.bin_tokens = bin_tokens or (65536 if self.device.type == "cuda" else 2048)

    @property
    def max_len(self) -> int:
        return self.model.spec.trunk.embeddings.max_len

    @property
    def opening(self) -> list[int]:
        """What stands before a text that a causal model reads; GPT (2018) has no such mark: the first token is free."""
        marks = self.tokenizer.specials
        return [mark for mark in (marks.bos, marks.eos) if mark is not None][:1]

    def encode(self, text: str, pair: str | None = None) -> dict[str, Any]:
        """Pieces, ids, segments and attention mask: the view that other tools use."""
        ids, segments = self._sequence(text, pair)
        mask = [1] * len(ids)
        return {
            "pieces": self.tokenizer.pieces(ids),
            "ids": ids,
            "segments": segments,
            "attention_mask": mask,
        }

    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> list[list[Guess]]:
        """The likeliest pieces for each mask in the text, best first."""
        self._need("masked", "fill in masks")
        mask = self.tokenizer.specials.mask
        ids, segments = self._sequence(text)
        rows = [i for i, token in enumerate(ids) if token == mask]
        if not rows:
            raise UserError(f"there is no {self.tokenizer.mask_token} in {text!r}")
        packed = next(self._packed([np.array(ids)], [np.array(segments)]))
        chances = self._blind(packed, torch.tensor(rows)).exp()
        best = chances.topk(min(top, chances.shape[-1]))
        return [
            [Guess(self.tokenizer.pieces([i])[0], p) for p, i in zip(values, index)]
            for values, index in zip(best.values.tolist(), best.indices.tolist())
        ]

    @torch.inference_mode()
    def next_sentence(self, first: str, second: str) -> float:
        """The probability that the second text follows the first."""
        self._need("pair", "judge whether one text follows another")
        ids, segments = self._sequence(first, second)
        packed = self._read(ids, segments)
        scores = self.model.predict("pair", packed[1], packed[0].layout)
        return float(scores.float().softmax(-1)[0, 0])

    @torch.inference_mode()
    def score(self, texts: Sequence[str]) -> list[Score]:
        """Log-probability of each text: of every token after those before it, or after all others if masked.

        Read backwards, of every token before those behind it; read both ways, the mean of the two.
        """
        heads = [head for head in ("next", "previous") if head in self.model.heads]
        if heads:
            self._need(heads[0], "score a text alone")
            ways = [self._score_causal(texts, head) for head in heads]
            return [
                Score(math.fsum(s.log_probability for s in both) / len(both), both[0].tokens) for both in zip(*ways)
            ]
        self._need("masked", "score a text")
        found = []
        with progress("score", len(texts), "texts", show=len(texts) > 20) as bar:
            for text in texts:
                found.append(self._score_masked(text))
                bar.advance(1)
        return found

    def _score_causal(self, texts: Sequence[str], head: str) -> list[Score]:
        found: list[Score | None] = [None] * len(texts)
        ids = [np.array([*self.opening, *self._sequence(text)[0]]) for text in texts]
        if head == "previous":
            marks = [mark for mark in (self.tokenizer.specials.eos, self.tokenizer.specials.bos) if mark is not None]
            ids = [np.array([*self._sequence(text)[0], *marks[:1]]) for text in texts]
        for i, row in enumerate(ids):
            self._check_length(len(row) - 1, texts[i])
            if len(row) < 2:
                raise UserError(f"{texts[i]!r} is one token, and nothing stands before it to predict it from")
        # the last token has nothing left to predict, so it is not read; backwards, the first
        read, asked = [row[:-1] for row in ids], [row[1:] for row in ids]
        if head == "previous":
            read, asked = asked, read
        for packed in self._packed(read):
            last = self.model.trunk(packed.tokens, packed.layout).last
            targets = torch.from_numpy(np.concatenate([asked[i] for i in packed.index])).to(self.device)
            chances = torch.cat(
                [
                    self._log_probabilities(head, (packed, last), rows).gather(1, targets[rows][:, None])[:, 0]
                    for rows in torch.arange(len(targets), device=self.device).split(1024)
                ]
            )
            for i, part in zip(packed.index, chances.split(list(packed.layout.lengths))):
                found[i] = Score(float(part.double().sum()), len(part))
        return [score for score in found if score is not None]

    def _score_masked(self, text: str) -> Score:
        ids, segments = (np.array(row) for row in self._sequence(text))
        lead = self.tokenizer.wrap([-1])[0].index(-1)
        places = range(lead, lead + len(ids) - self.tokenizer.num_added())
        found = self._gap_scores([Gap(ids, segments, range(i, i + 1)) for i in places])
        return Score(math.fsum(score.log_probability for score, _ in found), len(places))

    @torch.inference_mode()
    def _gap_scores(self, gaps: Sequence[Gap]) -> list[tuple[Score, bool]]:
        return gap_scores(gaps, self.tokenizer.specials.mask, self._packed, self._blind)

    @property
    def masked(self) -> bool:
        """Whether gaps in a text are what it can fill, and not what follows a text."""
        return "masked" in self.model.heads and "next" not in self.model.heads

    @torch.inference_mode()
    def last_words(self, texts: Sequence[tuple[str, str]]) -> list[LastWord]:
        """The last word of each text after the rest of it, as LAMBADA asks (Paperno et al. 2016).

        A masked model has to fill a gap at the end, whose masks give away how many tokens the word has.
        """
        if self.masked:
            gaps = [gap_of(self.tokenizer, context.rstrip() + " ", word, "", self.max_len) for context, word in texts]
            return [LastWord(*found, gap.cut) for found, gap in zip(self._gap_scores(gaps), gaps)]
        self._need("next", "guess last words")
        ids, begins, cuts = [], [], []
        for context, word in texts:
            answers = self._answers(context.rstrip() + " ", [word], check=False)
            row, begin = answers.sequences[0], answers.begins[0]
            cut = max(len(row) - 1 - self.max_len, 0)
            if begin - cut < 1 + len(self.opening):
                raise UserError(f"{word!r} alone is longer than the model reads")
            opening = row[: len(self.opening)]
            ids.append(np.concatenate([opening, row[len(opening) + cut :]]) if cut else row)
            begins.append(begin - cut)
            cuts.append(cut)
        found: list[LastWord | None] = [None] * len(texts)
        for packed in self._packed([row[:-1] for row in ids]):
            last = self.model.trunk(packed.tokens, packed.layout).last
            starts = packed.layout.starts.tolist()
            rows = [
                torch.arange(starts[k] + begins[i] - 1, starts[k] + len(ids[i]) - 1) for k, i in enumerate(packed.index)
            ]
            sizes = [len(part) for part in rows]
            chances = self._log_probabilities("next", (packed, last), torch.cat(rows))
            truth = torch.from_numpy(np.concatenate([ids[i][begins[i] :] for i in packed.index])).to(self.device)
            worth = chances.gather(1, truth[:, None])[:, 0].double().cpu().split(sizes)
            right = (chances.argmax(-1) == truth).cpu().split(sizes)
            for i, part, best in zip(packed.index, worth, right):
                found[i] = LastWord(Score(float(part.sum()), len(part)), bool(best.all()), cuts[i])
        return [one for one in found if one is not None]

    def choose(
        self,
        prompt: str,
        choices: Sequence[str],
        shots: Sequence[tuple[str, str]] = (),
        template: str = "{text} {answer}",
        normalise: str = "none",
        context: str = "Answer: ",
    ) -> Choice:
        """Which answer is likeliest after a prompt, and after the shots, texts with their answers, before it."""
        return self.choose_each([(prompt, choices)], shots, template, normalise, context)[0]

    def choose_each(
        self,
        questions: Sequence[tuple[str, Sequence[str]]],
        shots: Sequence[tuple[str, str]] = (),
        template: str = "{text} {answer}",
        normalise: str = "none",
        context: str = "Answer: ",
    ) -> list[Choice]:
        """`choose` for many prompts with their choices.

        Compared are summed log-probabilities, or these by the number of tokens (`length`), or less what the answer has
        without its question, after the `context` alone (`unconditional`; Brown et al. 2020, §2.4). A masked model is
        asked for the tokens of each answer in the prompt's gap (its mask, `_`, `@placeholder`), else at its end.
        """
        known = NORMALISE[: 2 if self.masked else 3]
        if normalise not in known:
            raise UserError(f"normalise is {normalise!r}; {nearest(normalise, known)}")
        prompts = [(written(text, template, shots), choices) for text, choices in questions]
        if self.masked:
            gaps = [choice_gaps(self.tokenizer, *prompt, self.max_len) for prompt in prompts]
            each = iter(self._gap_scores([gap for group in gaps for gap in group]))
            sums = [tuple(next(each)[0] for _ in group) for group in gaps]
        else:
            self._need("next", "choose between answers")
            prompts += [(context, choices) for _, choices in questions] if normalise == "unconditional" else []
            asked = [self._answers(*prompt) for prompt in prompts]
            sums = [tuple(Score(*pair) for pair in each) for each in answer_scores(self.model, asked, self.bin_tokens)]
        found = []
        for i, scores in enumerate(sums[: len(questions)]):
            values = [s.log_probability for s in scores]
            if normalise == "length":
                values = [s.log_probability / s.tokens for s in scores]
            elif normalise == "unconditional":
                values = [v - s.log_probability for v, s in zip(values, sums[len(questions) + i])]
            found.append(Choice(int(np.argmax(values)), tuple(values), scores))
        return found

    def _answers(self, prompt: str, choices: Sequence[str], check: bool = True) -> Answers:
        """Each choice behind the prompt. A space between them is the answer's: in most vocabularies it is part of the
        answer's first token."""
        if isinstance(choices, str) or not choices:
            raise UserError(f"choices is {choices!r}: a list of answers is needed")
        sequences, begins = [], []
        for choice in choices:
            text = joined(prompt, choice)
            ids, offsets = self.tokenizer.encode_with_offsets(text)
            begin = next((i for i, (_, end) in enumerate(offsets) if end > len(prompt.rstrip(" "))), len(ids))
            if begin == len(ids) or not choice.strip():
                raise UserError(f"there is nothing to read in the choice {choice!r}")
            if not begin and not self.opening:
                raise UserError(f"{choice!r} follows nothing: without a mark that opens texts a prompt is needed")
            if check:
                self._check_length(len(self.opening) + len(ids) - 1, text)
            sequences.append(np.array([*self.opening, *ids]))
            begins.append(len(self.opening) + begin)
        return Answers(sequences, begins)

    @property
    def sourced(self) -> bool:
        """Whether it writes a text for a source; others go on with a beginning."""
        return self._writer.sourced

    def generate(self, prompts: str | Sequence[str], search: Search | None = None, prefix: str = "") -> list[Any]:
        """What the model writes for a prompt, best or first drawn first; for several prompts a list of such lists.

        A prompt is gone on with, or, by a model that writes targets, read as the source. `search` says how; a text
        begins with the `prefix`, which is not repeated.
        """
        found = generate(self._writer, [prompts] if isinstance(prompts, str) else prompts, search or Search(), prefix)
        return found[0] if isinstance(prompts, str) else found

    def translate(
        self, texts: Sequence[str], search: Search | None = None, split: Callable[[str], list[str]] | None = None
    ) -> list[Translated]:
        """A translation of each text, by a beam of 5 unless told otherwise; an empty text has an empty one.

        A text that is too long is refused, or cut by `split` into parts that are translated each.
        """
        return translate(self._writer, texts, search or Search(0, beams=5), split)

    def stream(self, prompt: str, search: Search | None = None, prefix: str = "") -> Iterator[str]:
        """The same of one prompt, piece by piece while it is written."""
        return streamed(self._writer, prompt, search or Search(), prefix)

    @cached_property
    def _writer(self) -> Writer:
        return Writer.of(self.folder)

    @torch.inference_mode()
    def embed(
        self, texts: Sequence[str], layers: str | int = "last", per: Per = "text", truncate: bool = False
    ) -> np.ndarray | list[np.ndarray]:
        """Vectors: one a text (the mean over its tokens, special ones too), or one a word or token of each text.

        `layers` is one of LAYERS or a depth (0 the embeddings). `all` keeps every layer on an axis of its own. Special
        tokens written in a text are plain characters here; those that the family adds have vectors only per token.
        """
        if per not in ("token", "word", "text"):
            raise UserError(f"per is {per!r}; {nearest(str(per), ('token', 'word', 'text'))}")
        keep, combine = self._layer_choice(layers)
        run = self.tokenizer.encode_run(list(texts))
        ends = np.cumsum(run.lengths)
        added = self.tokenizer.num_added()
        ids, segments, words = [], [], []
        for text, begin, end in zip(texts, ends - run.lengths, ends):
            if begin == end:
                raise UserError(f"there is nothing to read in {text!r}")
            if truncate:
                end = min(end, begin + self.max_len - added)
            self._check_length(end - begin + added, text)
            wrapped, parts = self.tokenizer.wrap(run.ids[begin:end].tolist())
            ids.append(np.array(wrapped))
            segments.append(np.array(parts))
            words.append(np.flatnonzero(run.words[begin:end]))
        lead = self.tokenizer.wrap([-1])[0].index(-1)

        def states() -> Iterator[tuple[Packed, Tensor]]:
            for each in self._packed(ids, segments):
                reading = self.model.trunk(each.tokens, each.layout, each.segments, keep=keep)
                yield each, combine([reading.layers[k] for k in keep])

        if per == "text":
            vectors: np.ndarray | None = None
            for index, part in fetched((each.index, means(found, each.layout)) for each, found in states()):
                if vectors is None:
                    vectors = np.empty((len(ids), *part.shape[1:]), dtype=np.float32)
                vectors[index] = part
            return np.empty((0, self.model.spec.trunk.dim), dtype=np.float32) if vectors is None else vectors
        rows: list[Any] = [None] * len(ids)
        for each, found in states():
            for i, part in zip(each.index, found.split(list(each.layout.lengths))):
                numbers = part.float().cpu().numpy()
                inner = numbers[lead : len(numbers) - (added - lead)]
                rows[i] = numbers if per == "token" else _word_means(inner, words[i])
        return rows

    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """Labels of a fine-tuned model, for texts, pairs of texts or lists of words."""
        from polyseme.evaluation.predict import as_examples, predict

        return predict(self.folder, as_examples(examples, self.model, self.folder.notes))

    def answer(self, context: str, question: str) -> SpanAnswer:
        """The stretch of the context that answers the question; its text is empty where the model finds none.

        The context may be of any length: it is read in windows, of which only the best answer is kept.
        """
        from polyseme.evaluation.predict import as_examples, predict

        if "text" not in self.folder.notes or self.folder.notes.get("task") != "span":
            self._need("span", "find answers in a text")
        (found,) = predict(self.folder, as_examples([(context, question)], self.model, self.folder.notes))
        assert found.span is not None
        return found.span

    def _need(self, head: str, what: str) -> None:
        if head not in self.model.heads:
            has = ", ".join(self.model.heads) or "no head"
            raise UserError(f"{self.path} cannot {what}: it has {has}, and that needs the head {head!r}")
        if head == "next" and isinstance(self.model.spec.trunk, EncoderDecoderSpec):
            raise UserError(f"{self.path} cannot {what}: it writes a target for a source")

    def _check_length(self, length: int, text: str) -> None:
        if length > self.max_len:
            shown = re.sub(r"\s+", " ", text[:40])
            raise UserError(f"a text of {length} tokens is longer than the model reads ({self.max_len}): {shown!r}…")

    def _sequence(self, text: str, pair: str | None = None) -> tuple[list[int], list[int]]:
        first = self.tokenizer.encode(text)
        second = None if pair is None else self.tokenizer.encode(pair)
        if not first or second == []:
            raise UserError(f"there is nothing to read in {(text if not first else pair)!r}")
        ids, segments = self.tokenizer.wrap(first, second)
        self._check_length(len(ids), text)
        return ids, segments

    def _packed(self, ids: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None = None) -> Iterator[Packed]:
        """The sequences in bins of about `bin_tokens` tokens, ready for the trunk."""
        told = segments if self.model.spec.trunk.num_segments else None
        return in_bins(ids, told, self.bin_tokens, self.device)

    def _read(self, ids: list[int], segments: list[int]) -> tuple[Packed, Tensor]:
        packed = next(self._packed([np.array(ids)], [np.array(segments)]))
        return packed, self.model.trunk(packed.tokens, packed.layout, packed.segments).last

    def _blind(self, packed: Packed, rows: Tensor) -> Tensor:
        """What masked tokens may be, [rows, vocabulary]; a query stream, where there is one, sees all but them."""
        rows = rows.to(self.device)
        trunk, queries, asked = self.model.trunk, None, rows
        if trunk.spec.stream:
            order = torch.full_like(packed.tokens, -1).index_fill(0, rows, 0)
            counts = np.histogram(rows.cpu().numpy(), packed.layout.starts.cpu().numpy())[0]
            queries = Queries(order, rows, Layout.of(counts, device=self.device))
            asked = packed.layout.total + torch.arange(len(rows), device=self.device)
        last = trunk(packed.tokens, packed.layout, packed.segments, queries=queries).last
        return self._log_probabilities("masked", (packed, last), asked)

    def _log_probabilities(self, head: str, read: tuple[Packed, Tensor], rows: Tensor) -> Tensor:
        packed, last = read
        return self.model.predict(head, last, packed.layout, rows.to(self.device)).float().log_softmax(-1)

    def _layer_choice(self, layers: str | int) -> tuple[list[int], Any]:
        depth = self.model.spec.trunk.num_layers
        every, text = list(range(depth + 1)), str(layers)
        inner = every[1:] or every  # of a table of word vectors there is nothing above it
        last4 = inner[-4:]

        def alike(states: list[Tensor]) -> list[Tensor]:
            sizes = [state.shape[-1] for state in states]
            if len(set(sizes)) > 1:
                raise UserError(f"layers is {text!r}, but their sizes are {sizes}: choose one, or concat-last-4")
            return states

        def total(states: list[Tensor]) -> Tensor:
            return torch.stack(alike(states)).sum(0)

        def stack(states: list[Tensor]) -> Tensor:
            return torch.stack(alike(states), dim=1)

        named: dict[str, tuple[list[int], Any]] = {
            "embeddings": ([0], total),
            "last": ([depth], total),
            "second-to-last": ([max(depth - 1, 0)], total),
            "sum-last-4": (last4, total),
            "concat-last-4": (last4, lambda states: torch.cat(states, dim=-1)),
            "sum-all": (inner, total),
            "all": (every, stack),
        }
        if text in named:
            return named[text]
        if text.isdigit() and int(text) <= depth:
            return [int(text)], total
        raise UserError(f"layers is {text!r}; expected {', '.join(LAYERS)} or a number from 0 to {depth}")


def _word_means(vectors: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """The mean over each word's pieces."""
    sizes = np.diff(np.append(begins, len(vectors)))
    return np.add.reduceat(vectors, begins, axis=0) / sizes.reshape(-1, *[1] * (vectors.ndim - 1))
