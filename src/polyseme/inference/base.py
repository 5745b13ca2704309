"""`LanguageModel`: the interface of every loaded model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from polyseme.errors import UnsupportedError
from polyseme.generation.config import GenerationConfig
from polyseme.generation.text import GeneratedText, TranslatedText
from polyseme.inference.results import ChoiceResult, EncodedText, LastWordScore, MaskPrediction, TextScore

if TYPE_CHECKING:
    from polyseme.text.tokenizer import Tokenizer

Granularity = Literal["token", "word", "text"]
Text = TypeVar("Text")
Result = TypeVar("Result")

OPERATIONS = {
    "encode": "encode texts",
    "fill": "fill masks",
    "next_sentence": "predict whether one text follows another",
    "score": "score texts",
    "score_last_words": "predict last words",
    "rank_choices": "rank choices",
    "generate": "generate text",
    "translate": "translate",
    "embed": "embed texts",
    "predict": "predict labels",
    "answer": "answer questions about a text",
}


class LanguageModel(ABC):
    """A loaded model with its tokenizer: what `polyseme.load` returns, whatever wrote the folder.

    `capabilities` lists the operations that a model supports; the others raise `UnsupportedError`. Every operation
    takes one text and returns one result, or a list of texts and returns a list in the same order. No call changes the
    model, so threads may share it.
    """

    def __init__(self, path: Path):
        self.path = path

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the model was trained with."""

    @property
    @abstractmethod
    def capabilities(self) -> tuple[str, ...]:
        """The names of the operations that this model supports."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What the model is, such as `a bert model with the heads masked, pair`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}: {self.description})"

    def _repr_html_(self) -> str:
        from polyseme.report.html import html_table

        return html_table([type(self).__name__, ""], [("path", self.path), ("model", self.description),
                                                      ("supports", ", ".join(self.capabilities))])  # fmt: skip

    def encode(self, text: str, pair: str | None = None) -> EncodedText:
        """Encode a text, or a pair of texts, as the model reads it, with special tokens.

        >>> model.encode("the cat").tokens
        ['[CLS]', 'the', 'cat', '[SEP]']
        >>> model.encode("the cat", "the dog").token_type_ids
        [0, 0, 0, 0, 1, 1, 1]
        """
        self._require("encode")
        return self._encode(text, pair)

    @overload
    def fill(self, texts: str, top_k: int = 5) -> list[list[MaskPrediction]]: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, texts: Sequence[str], top_k: int = 5) -> list[list[list[MaskPrediction]]]: ...
    def fill(self, texts: str | Sequence[str], top_k: int = 5) -> list[Any]:
        """Predict the masked tokens of a text: for each mask the `top_k` most likely tokens, most likely first.

        >>> (mask,) = model.fill("the [MASK] sat", top_k=2)
        >>> [type(prediction.token).__name__ for prediction in mask]
        ['str', 'str']
        """
        self._require("fill")
        return _map_texts(lambda each: [self._fill(text, top_k) for text in each], texts)

    def next_sentence(self, first: str, second: str) -> float:
        """Return the probability that the second text follows the first (BERT's next-sentence prediction).

        >>> 0 < model.next_sentence("the cat sat", "the dog ran") < 1
        True
        """
        self._require("next_sentence")
        return self._next_sentence(first, second)

    @overload
    def score(self, texts: str) -> TextScore: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Sequence[str]) -> list[TextScore]: ...
    def score(self, texts: str | Sequence[str]) -> Any:
        """Compute the log-probability of each text.

        A causal model predicts every token from those before it, a masked model from all others (pseudo-log-likelihood,
        Salazar et al. 2020). The score of a bidirectional language model is the mean of its two directions.

        >>> model.score("the cat sat").num_tokens
        3
        """
        self._require("score")
        return _map_texts(self._score, texts)

    @overload
    def score_last_words(self, texts: tuple[str, str]) -> LastWordScore: ...
    @overload
    def score_last_words(self, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]: ...
    def score_last_words(self, texts: Any) -> Any:
        """Score the last word of each text given its context: pairs of context and word (LAMBADA, Paperno et al. 2016).

        A masked model fills one mask per token of the word, so it is told the number of tokens.

        >>> model.score_last_words([("the cat sees the", "dog")])[0].score.num_tokens
        1
        """
        self._require("score_last_words")
        return _map_texts(self._score_last_words, texts, single=tuple)

    def rank_choices(
        self,
        prompts: str | Sequence[str],
        choices: Sequence[Any],
        *,
        shots: Sequence[tuple[str, str]] = (),
        template: str = "{text} {answer}",
        normalization: str = "none",
        context: str = "Answer: ",
    ) -> Any:
        """Rank the choices that may follow each prompt by their log-probability: a `ChoiceResult` per prompt.

        One prompt takes a list of choices, a list of prompts a list of such lists. `shots` are texts with their
        answers, written before each prompt with the `template`. `normalization` compares the summed log-probabilities
        ("none"), their mean per token ("length"), or their difference from the log-probability of the answer after
        `context` alone ("unconditional"; Brown et al. 2020, §2.4). A masked model fills the gap of the prompt (its mask
        token, `_`, or `@placeholder`), or a gap at its end.

        >>> len(gpt.rank_choices("the cat", ["sat", "ran"]).normalized_scores)
        2
        >>> [result.best_index in (0, 1) for result in gpt.rank_choices(["the cat"], [["sat", "ran"]])]
        [True]
        """
        self._require("rank_choices")
        if isinstance(prompts, str):
            return self._rank_choices([(prompts, choices)], shots, template, normalization, context)[0]
        questions = list(zip(prompts, choices, strict=True))
        return self._rank_choices(questions, shots, template, normalization, context)

    @overload
    def generate(
        self, prompts: str, config: GenerationConfig | None = None, *, prefix: str = "", **options: Any
    ) -> list[GeneratedText]: ...
    @overload
    def generate(
        self, prompts: Sequence[str], config: GenerationConfig | None = None, *, prefix: str = "", **options: Any
    ) -> list[list[GeneratedText]]: ...
    def generate(
        self, prompts: str | Sequence[str], config: GenerationConfig | None = None, *, prefix: str = "", **options: Any
    ) -> list[Any]:
        """Continue each prompt; a sequence-to-sequence model reads it as the source and generates a target.

        Options are the fields of `GenerationConfig`: `max_new_tokens`, `temperature`, `top_k`, `top_p`, `num_beams`, …
        Every generated text starts with `prefix`, which is not repeated in the result. A prompt gives a list of
        `num_return_sequences` texts, best or first sampled first.

        >>> (text,) = gpt.generate("the cat", max_new_tokens=5, temperature=0.8, seed=1)
        >>> len(text.tokens) <= 5
        True
        >>> len(gpt.generate(["the cat", "the dog"], max_new_tokens=3, num_beams=2))
        2
        """
        self._require("generate")
        config = GenerationConfig.from_options(config, options)
        return _map_texts(lambda each: self._generate(each, config, prefix), prompts)

    def stream(
        self, prompt: str, config: GenerationConfig | None = None, *, prefix: str = "", **options: Any
    ) -> Iterator[str]:
        """Generate one text as `generate` does, and yield it piece by piece.

        >>> "".join(gpt.stream("the cat", max_new_tokens=5)) == gpt.generate("the cat", max_new_tokens=5)[0].text
        True
        """
        self._require("generate")
        return self._stream(prompt, GenerationConfig.from_options(config, options), prefix)

    @property
    def is_seq2seq(self) -> bool:
        """Whether the model generates a target for a source rather than a continuation."""
        return False

    @overload
    def translate(
        self, texts: str, config: GenerationConfig | None = None, *,
        split: Callable[[str], list[str]] | None = None, **options: Any,
    ) -> TranslatedText: ...  # fmt: skip
    @overload
    def translate(
        self, texts: Sequence[str], config: GenerationConfig | None = None, *,
        split: Callable[[str], list[str]] | None = None, **options: Any,
    ) -> list[TranslatedText]: ...  # fmt: skip
    def translate(
        self,
        texts: str | Sequence[str],
        config: GenerationConfig | None = None,
        *,
        split: Callable[[str], list[str]] | None = None,
        **options: Any,
    ) -> Any:
        """Translate each text, by beam search of width 5 by default; an empty text has an empty translation.

        A text that is longer than the model reads is an error unless `split` cuts it into parts, such as sentences.
        """
        self._require("translate")
        config = GenerationConfig.from_options(config or GenerationConfig(0, num_beams=5), options)
        return _map_texts(lambda each: self._translate(each, config, split), texts)

    def embed(
        self,
        texts: str | Sequence[str],
        layers: str | int = "last",
        granularity: Granularity = "text",
        truncate: bool = False,
    ) -> Any:
        """Compute vectors: one per text (the mean over its tokens), or one per word or token of each text.

        One text gives an array, [dim] or [tokens, dim]; a list gives an array [texts, dim] or a list of arrays.
        `layers` is a `LayerSelection`: a name such as `last` or `sum_last_4`, or a layer number (0: the embeddings);
        `all` keeps every layer on its own axis. Special tokens written in a text are plain characters here.

        >>> model.embed(["the cat", "the dog"]).shape == (2, model.embed("the cat").shape[0])
        True
        >>> len(model.embed("the cat", layers="sum_all", granularity="word"))
        2
        """
        self._require("embed")
        if isinstance(texts, str):
            return self._embed([texts], layers, granularity, truncate)[0]
        return self._embed(list(texts), layers, granularity, truncate)

    def predict(self, examples: Any) -> Any:
        """Predict the label of each example with a fine-tuned model.

        A list gives a list of predictions; anything else is one example: a text, a tuple of two texts or of words,
        depending on the task.

        >>> task_model = polyseme.load("task/model")
        >>> task_model.predict("the cat sat").label in ("cat", "dog")
        True
        >>> len(task_model.predict(["the cat sat", "the dog ran"]))
        2
        """
        self._require("predict")
        return _map_texts(self._predict, examples, single=(str, tuple, dict))

    def answer(self, context: str, question: str) -> Any:
        """Return the span of the context that answers the question; its text is empty if there is no answer.

        The context may have any length: it is read in overlapping windows.
        """
        self._require("answer")
        return self._answer(context, question)

    def _require(self, operation: str) -> None:
        if operation not in self.capabilities:
            supported = ", ".join(self.capabilities) or "none of the operations of a language model"
            raise UnsupportedError(
                f"{self.path} cannot {OPERATIONS[operation]}: it is {self.description}, which supports {supported}"
            )

    # Each model implements the operations that its `capabilities` name.
    def _encode(self, text: str, pair: str | None) -> EncodedText:
        raise NotImplementedError

    def _fill(self, text: str, top_k: int) -> list[list[MaskPrediction]]:
        raise NotImplementedError

    def _next_sentence(self, first: str, second: str) -> float:
        raise NotImplementedError

    def _score(self, texts: Sequence[str]) -> list[TextScore]:
        raise NotImplementedError

    def _score_last_words(self, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]:
        raise NotImplementedError

    def _rank_choices(
        self,
        questions: Sequence[tuple[str, Sequence[str]]],
        shots: Sequence[tuple[str, str]],
        template: str,
        normalization: str,
        context: str,
    ) -> list[ChoiceResult]:
        raise NotImplementedError

    def _generate(self, prompts: Sequence[str], config: GenerationConfig, prefix: str) -> list[list[GeneratedText]]:
        raise NotImplementedError

    def _stream(self, prompt: str, config: GenerationConfig, prefix: str) -> Iterator[str]:
        raise NotImplementedError

    def _translate(
        self, texts: Sequence[str], config: GenerationConfig, split: Callable[[str], list[str]] | None
    ) -> list[TranslatedText]:
        raise NotImplementedError

    def _embed(
        self, texts: Sequence[str], layers: str | int, granularity: Granularity, truncate: bool
    ) -> np.ndarray | list[np.ndarray]:
        raise NotImplementedError

    def _predict(self, examples: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def _answer(self, context: str, question: str) -> Any:
        raise NotImplementedError


def _map_texts(function: Callable[[list[Any]], list[Any]], texts: Any, single: type | tuple[type, ...] = str) -> Any:
    """Apply a function of a list to one text or to a list of texts: one gives one result, a list gives a list."""
    return function([texts])[0] if isinstance(texts, single) else function(list(texts))
