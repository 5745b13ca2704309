"""`LanguageModel`: the interface of every loaded model."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, overload

from polyseme.errors import DataError, UnsupportedError, convert_out_of_memory
from polyseme.generation.config import TRANSLATION, GenerationConfig
from polyseme.generation.text import GeneratedText, Split, TextGenerator, generate_texts, stream_text, translate_texts
from polyseme.inference.inspection.attention import Attention
from polyseme.inference.inspection.attribution import AttributionRequest
from polyseme.inference.results import EncodedText, LastWordScore, MaskPrediction, TextScore, check_answers
from polyseme.inference.scoring import format_prompt
from polyseme.text.arguments import check_count, check_list, check_text, check_texts
from polyseme.text.tokenizer import Tokenizer

Granularity = Literal["token", "word", "text"]
Texts = str | Sequence[str]
Options = GenerationConfig | None

OPERATIONS = {
    "encode": "encode texts",
    "fill": "fill masks",
    "next_sentence": "predict whether one text follows another",
    "score": "score texts",
    "score_last_words": "predict last words",
    "rank_choices": "rank choices",
    "generate": "generate text",
    "translate": "translate",
    "caption": "describe images",
    "answer_image": "answer questions about images",
    "embed": "embed texts",
    "attention": "show attention",
    "predict": "predict labels",
    "answer": "answer questions about a text",
    "attribute": "attribute a prediction to the words of a text",
}


class LanguageModel(ABC):
    """A loaded model with its tokenizer: what `polyseme.load` returns, whatever wrote the folder.

    `capabilities` lists the operations that a model supports; the others raise `UnsupportedError`. Every operation
    takes one text and returns one result, or a list of texts and returns a list in the same order. No call changes the
    model, so threads may share it.

    A subclass implements `score` as `_score`, which takes a list of texts and all options, and so on; `_encode`,
    `_next_sentence` and `_attention` take the texts of one result. `generate`, `stream` and `translate` use
    `_text_generator`.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.name = self.path.absolute().name  # also of the folder `.`

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
        from polyseme.report.style import scoped_table

        rows = [("path", self.path), ("model", self.description), ("supports", ", ".join(self.capabilities))]
        return scoped_table(html_table([type(self).__name__, ""], rows))

    def save(self, out: str | Path, dtype: str = "float32") -> Path:
        """Write a neural model to a new folder, with its weights in `float32`, `bf16` or `int8`, and return its path.

        `transformers` opens the first two. `int8` takes a quarter of the space: matrices have one scale per row, and
        the weights are float32 again when they are loaded.

        >>> polyseme.load(model.save("copy", dtype="bf16")).capabilities == model.capabilities
        True
        """
        raise UnsupportedError(f"{self.path} is {self.description}, and only neural models are saved: copy the folder")

    @overload
    def encode(self, text: str, pair: str | None = None) -> EncodedText: ...  # type: ignore[overload-overlap]
    @overload
    def encode(self, text: Sequence[str], pair: Sequence[str] | None = None) -> list[EncodedText]: ...
    def encode(self, text: Any, pair: Any = None) -> Any:
        """Encode a text, or a pair of texts, as the model reads it, with special tokens.

        >>> model.encode("the cat").tokens
        ['[CLS]', 'the', 'cat', '[SEP]']
        >>> model.encode("the cat", "the dog").token_type_ids
        [0, 0, 0, 0, 1, 1, 1]
        """
        return _map_parallel(self._implementation("encode"), text, pair)

    @overload
    def fill(self, texts: str, top_k: int = 5) -> list[list[MaskPrediction]]: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, texts: Sequence[str], top_k: int = 5) -> list[list[list[MaskPrediction]]]: ...
    def fill(self, texts: Texts, top_k: int = 5) -> list[Any]:
        """Predict the masked tokens of a text: for each mask the `top_k` most likely tokens, most likely first.

        >>> (mask,) = model.fill("the [MASK] sat", top_k=2)
        >>> [type(prediction.token).__name__ for prediction in mask]
        ['str', 'str']
        """
        return _map(partial(self._implementation("fill"), top_k=check_count(top_k, "top_k")), texts)

    @overload
    def next_sentence(self, first: str, second: str) -> float: ...  # type: ignore[overload-overlap]
    @overload
    def next_sentence(self, first: Sequence[str], second: Sequence[str]) -> list[float]: ...
    def next_sentence(self, first: Any, second: Any) -> Any:
        """Return the probability that the second text follows the first (BERT's next-sentence prediction).

        >>> 0 < model.next_sentence("the cat sat", "the dog ran") < 1
        True
        """
        return _map_parallel(self._implementation("next_sentence"), first, second)

    @overload
    def score(self, texts: str, pll_metric: str | None = None, spans: Any = None) -> TextScore: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Sequence[str], pll_metric: str | None = None, spans: Any = None) -> list[TextScore]: ...
    def score(self, texts: Texts, pll_metric: str | None = None, spans: Any = None) -> Any:
        """Compute the log-probability of each text.

        A causal model predicts every token from those before it, a masked model from all others (pseudo-log-likelihood,
        Salazar et al. 2020), T5 a token in the place of a sentinel. The score of a bidirectional language model is the
        mean of its two directions. In all models, the tokens of the text are counted: a start token is read and not
        predicted, and the end of the text is not predicted. `pll_metric`, for a masked model, is `original`, or
        `within_word_l2r` to mask the later tokens of a word too (Kauf and Ivanova 2023). A hybrid model (GPT-BERT) is
        scored as a causal one, or as a masked one with a `pll_metric`. `spans` has the first and the last character
        (exclusive) of the part of each text that is scored, with the rest as context; start at the space before a
        word, which belongs to its first token in many tokenizers.

        >>> model.score("the cat sat").num_tokens
        3
        """
        if spans is not None:
            spans = _check_spans(*([texts], [spans]) if isinstance(texts, str) else (check_texts(texts), spans))
        return _map(partial(self._implementation("score"), pll_metric=pll_metric, spans=spans), texts)

    @property
    def has_pll_metric(self) -> bool:
        """Whether the score of a text is a pseudo-log-likelihood."""
        return False

    @property
    def supports_pll_metric(self) -> bool:
        """Whether the score of a text is a pseudo-log-likelihood, or can be one on request."""
        return self.has_pll_metric

    def _reject_pll_metric(self, pll_metric: str | None) -> None:
        if pll_metric is not None:
            raise UnsupportedError(f"pll_metric is for masked models, and {self.path} is {self.description}")

    @overload
    def score_last_words(self, texts: tuple[str, str]) -> LastWordScore: ...
    @overload
    def score_last_words(self, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]: ...
    def score_last_words(self, texts: Any) -> Any:
        """Score the last word of each text given its context: pairs of context and word (LAMBADA, Paperno et al. 2016).

        A masked model fills one mask per token of the word, so it knows the number of tokens.

        >>> model.score_last_words([("the cat sees the", "dog")])[0].score.num_tokens
        1
        """
        score = self._implementation("score_last_words")
        pairs = [texts] if isinstance(texts, tuple) else check_list(texts, "pair of context and word")
        _check_pairs(pairs, "pairs of a context and its last word")
        return score(pairs)[0] if isinstance(texts, tuple) else score(pairs)

    def rank_choices(
        self,
        prompts: Texts,
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
        rank = self._implementation("rank_choices")
        template, context = check_text(template, "template"), check_text(context, "context")
        shots = check_list(shots, "shot")
        _check_pairs(shots, "shots that are pairs of a text and its answer")
        if isinstance(prompts, str):
            choices = check_texts(choices, "choice")
            return rank([(format_prompt(prompts, template, shots), choices)], normalization, context)[0]
        formatted = [format_prompt(prompt, template, shots) for prompt in check_texts(prompts)]
        choice_lists = [check_texts(each, "choice") for each in check_list(choices, "list of choice")]
        _check_parallel(formatted, choice_lists)
        return rank(list(zip(formatted, choice_lists, strict=True)), normalization, context)

    @overload
    def generate(
        self, prompts: str, config: Options = None, *, prefix: str = "", **options: Any
    ) -> list[GeneratedText]: ...
    @overload
    def generate(
        self, prompts: Sequence[str], config: Options = None, *, prefix: str = "", **options: Any
    ) -> list[list[GeneratedText]]: ...
    def generate(self, prompts: Texts, config: Options = None, *, prefix: str = "", **options: Any) -> list[Any]:
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
        config, prefix = GenerationConfig.from_options(config, options), check_text(prefix, "prefix")
        return _map(self._guard(lambda each: generate_texts(self._text_generator, each, config, prefix)), prompts)

    def stream(self, prompt: str, config: Options = None, *, prefix: str = "", **options: Any) -> Iterator[str]:
        """Generate one text as `generate` does, and yield it piece by piece.

        >>> "".join(gpt.stream("the cat", max_new_tokens=5)) == gpt.generate("the cat", max_new_tokens=5)[0].text
        True
        """
        self._require("generate")
        prompt, prefix = check_text(prompt, "prompt"), check_text(prefix, "prefix")
        return stream_text(self._text_generator, prompt, GenerationConfig.from_options(config, options), prefix)

    @property
    def is_seq2seq(self) -> bool:
        """Whether the model generates a target for a source rather than a continuation."""
        return False

    def translate(self, texts: Texts, config: Options = None, *, split: Split | None = None, **options: Any) -> Any:
        """Translate each text to a `TranslatedText`.

        By default as in Vaswani et al. (2017): a beam of 4 and the length penalty ((5 + n) / 6)^0.6. An empty text has
        an empty translation. A text that is longer than the model reads is an error unless `split` cuts it into parts,
        such as sentences.
        """
        self._require("translate")
        config = GenerationConfig.from_options(config or TRANSLATION, options)
        return _map(self._guard(lambda each: translate_texts(self._text_generator, each, config, split)), texts)

    def caption(
        self, images: Any, config: Options = None, *, features: str | Path | None = None, **options: Any
    ) -> Any:
        """Describe an image, or each of a list of images: an `ImageCaption` with where the model looked for each word.

        An image is a file or an array of RGB bytes. `features` is an `.npz` file with the regions of the files, for a
        model that was trained on such features. Options are those of `generate`; the default is greedy decoding.
        """
        write = self._implementation("caption")
        config = GenerationConfig.from_options(config or GenerationConfig(0), options)
        is_single = not isinstance(images, list | tuple)
        path = None if features is None else Path(features)
        captions = write([images] if is_single else images, config, path)
        return captions[0] if is_single else captions

    def answer_image(self, image: str | Path, question: str) -> Any:
        """Answer a question about an image file: a `Classification` with the probability of each answer."""
        self._require("answer_image")
        (prediction,) = self._guard(self._predict)([(str(image), check_text(question, "question"))])  # type: ignore[attr-defined]
        return prediction

    def embed(
        self, texts: Texts, layers: str | int = "last", granularity: Granularity = "text", truncate: bool = False
    ) -> Any:
        """Compute vectors: one per text (pooled over its tokens), or one per word or token of each text.

        The vector of a text is the mean over its tokens, or what the folder's sentence-transformers files say.

        One text gives an array, [dim] or [tokens, dim]; a list gives an array [texts, dim] or a list of arrays.
        `layers` is a `LayerSelection`: a name such as `last` or `sum_last_4`, or a layer number (0: the embeddings);
        `all` keeps every layer on its own axis. Special tokens written in a text are plain characters here.

        >>> model.embed(["the cat", "the dog"]).shape == (2, model.embed("the cat").shape[0])
        True
        >>> len(model.embed("the cat", layers="sum_all", granularity="word"))
        2
        """
        embed = self._implementation("embed")
        return _map(partial(embed, layers=layers, granularity=granularity, truncate=truncate), texts)

    @property
    def max_text_tokens(self) -> int:
        """The number of tokens, without special ones, that the vector of a text can depend on; the rest is cut."""
        self._require("embed")
        return sys.maxsize

    @overload
    def attention(self, text: str, pair: str | None = None, target: str | None = None) -> Attention: ...  # type: ignore[overload-overlap]
    @overload
    def attention(
        self, text: Sequence[str], pair: Sequence[str] | None = None, target: Sequence[str] | None = None
    ) -> list[Attention]: ...
    def attention(self, text: Any, pair: Any = None, target: Any = None) -> Any:
        """Return the attention weights of every layer and head when the model reads a text, or a pair of texts.

        An encoder-decoder reads `target` too, by default what it generates greedily. `merge_words` of the result merges
        subword tokens into words.

        >>> attention = model.attention("the cat sat")
        >>> attention["self"].queries
        ['[CLS]', 'the', 'cat', 'sat', '[SEP]']
        >>> attention["self"].weights.shape  # layers, heads, queries, keys
        (2, 2, 5, 5)
        """
        return _map_parallel(self._implementation("attention"), text, pair, target)

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
        implementation = self._implementation("predict")
        if isinstance(examples, str | tuple | dict):
            return implementation([examples])[0]
        return implementation(check_list(examples, "example"))

    def answer(self, context: Texts, question: Texts) -> Any:
        """Return the span of the context that answers the question; its text is empty if there is no answer.

        The context may have any length: it is read in overlapping windows.
        """
        self._require("answer")
        if isinstance(context, str):
            return self.predict((context, check_text(question, "question")))
        contexts, questions = check_texts(context), check_texts(question, "question")
        _check_parallel(contexts, questions)
        return self.predict(list(zip(contexts, questions)))

    def attribute(
        self,
        text: Texts,
        label: Texts | None = None,
        *,
        pair: Texts | None = None,
        contrast: Texts | None = None,
        method: str = "integrated_gradients",
        baseline: str | None = None,
    ) -> Any:
        """Attribute a prediction to the tokens and words of a text: an `Attribution`.

        `label` is what the model predicts: a class; `TAG@WORD`, or a word, whose predicted tag it is then; the answer
        to the question `pair`; the token in the place of the mask (`TOKEN@2` for the second one); or the token that
        follows a text or starts a target. By default it is the most likely one. Its log-probability is attributed, or
        with a `contrast` the difference of two (Yin and Neubig 2022), or the number that a regression predicts. For a
        list of texts, a string is the label of all of them, and a list has one label for each.

        `method` is `integrated_gradients` (Sundararajan et al. 2017), with as many steps as completeness to 1 % needs,
        `gradient_x_input`, `erasure` (mask each word) or `leave_one_out` (remove it). `baseline` is what a token is
        replaced by to stand for nothing: its `mask`, `pad`, `unk` or `eos` token, or `zero`, the zero vector; by
        default the first of these that the model has.

        >>> attribution = model.attribute("the [MASK] sat", "cat", contrast="dog")
        >>> attribution.words
        ('the', '[MASK]', 'sat')
        >>> attribution.completeness_error < 0.01
        True
        """
        attribute = self._implementation("attribute")
        texts = [text] if isinstance(text, str) else check_texts(text)
        options = {"label": label, "pair": pair, "contrast": contrast}
        labels, pairs, contrasts = (_per_text(value, name, text, len(texts)) for name, value in options.items())
        columns = (texts, labels, pairs, contrasts, [baseline] * len(texts))
        requests = [AttributionRequest(*row) for row in zip(*columns)]
        attributions = attribute(requests, method)
        return attributions[0] if isinstance(text, str) else attributions

    @property
    def _text_generator(self) -> TextGenerator:
        raise NotImplementedError

    def _implementation(self, operation: str) -> Callable[..., Any]:
        """Return the method that implements an operation, with a check of its answers, or raise `UnsupportedError`."""
        self._require(operation)
        return self._guard(getattr(self, f"_{operation}"))

    def _guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a check of its answers, and an error that says what to lower if memory runs out."""

        @convert_out_of_memory(self._memory_advice)
        def guarded(*args: Any, **options: Any) -> Any:
            return check_answers(function(*args, **options), self.path)

        return guarded

    def _memory_advice(self) -> str:
        return "pass fewer or shorter texts at once"

    def _require(self, operation: str) -> None:
        if operation not in self.capabilities:
            supported = ", ".join(self.capabilities) or "none of the operations of a language model"
            problem = f"{self.path} cannot {OPERATIONS[operation]}"
            raise UnsupportedError(f"{problem}: it is {self.description}, which supports {supported}")


def _map(function: Callable[[list[str]], Any], texts: Any) -> Any:
    """Apply a function of a list to a list of texts, or to one text, which gives one result."""
    return function([texts])[0] if isinstance(texts, str) else function(check_texts(texts))


def _check_spans(texts: Sequence[str], spans: Any) -> list[tuple[int, int]]:
    """Return the spans, one for each text, or raise `DataError` for one that is not a part of its text."""
    if not isinstance(spans, list | tuple) or len(spans) != len(texts):
        raise DataError(f"`spans` is {str(spans)[:60]}, expected a pair (start, end) for each of {len(texts)} texts")
    for text, span in zip(texts, spans):
        is_pair = isinstance(span, list | tuple) and len(span) == 2 and all(map(_is_index, span))
        if not is_pair or not 0 <= span[0] < span[1] <= len(text):
            raise DataError(
                f"the span {span!r} is not a part (start, end) of a text of {len(text)} characters: {text!r}"
            )
    return [(int(start), int(end)) for start, end in spans]


def _is_index(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_pairs(pairs: Sequence[Any], noun: str) -> None:
    is_pair = (isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)
    if not all(is_pair) or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise DataError(f"expected {noun}, two texts each")


def _map_parallel(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply a function of several texts to the rows of parallel lists, or to one row; all but the first may be None."""
    if isinstance(first, str):
        return function(first, *(None if other is None else check_text(other) for other in others))
    texts = check_texts(first)
    columns = [[None] * len(texts) if other is None else check_texts(other) for other in others]
    for column in columns:
        _check_parallel(texts, column)
    return [function(*row) for row in zip(texts, *columns)]


def _per_text(value: Any, name: str, text: Any, num_texts: int) -> list[Any]:
    """Return an option for each text: one value for all, or one of a list for each of a list of texts."""
    if value is None or isinstance(value, str) or isinstance(text, str):
        return [None if value is None else check_text(value, name)] * num_texts
    values = check_texts(value, name)
    _check_parallel(range(num_texts), values)
    return values


def _check_parallel(first: Sequence[Any], second: Sequence[Any]) -> None:
    if len(first) != len(second):
        raise DataError(f"two lists of different lengths, {len(first)} and {len(second)}: they must be parallel")
