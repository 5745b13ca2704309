"""The requests of all verbs. Field names are those of the Python API."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from polyseme.errors import ConfigError
from polyseme.generation.config import GenerationConfig
from polyseme.io.limits import MAX_INTEGER, MIN_INTEGER
from polyseme.serve.api.schema import BoundedConfig, Rule

MAX_TEXTS = 256  # of a request
MAX_NEW_TOKENS = 4096  # of a generated text
MAX_ROWS = 64  # beams, or texts for one prompt
MAX_STOP = 4

ModelName = Annotated[str, Rule("Name of a loaded model, as in `/models`. Default: the first that was loaded.")]
Timeout = Annotated[
    float | None,
    Rule("Seconds after which the request fails with status 503. Default: that of the server.", None, 3600, 0),
]
Text = Annotated[str | None, Rule("One text. Use either `text` or `texts`.")]
TextList = Annotated[tuple[str, ...] | None, Rule("Several texts.", min_length=1, max_length=MAX_TEXTS)]
Truncate = Annotated[bool, Rule("Whether to cut a text that is longer than the model reads; otherwise it is an error.")]
EncodingFormat = Annotated[
    Literal["float", "base64"],
    Rule("Arrays as nested lists of numbers, or as base64 of little-endian float32, which is faster."),
]


@dataclass(frozen=True)
class ModelRequest(BoundedConfig):
    """What every request has; errors name its endpoint."""

    error_name: ClassVar[str] = "a request"

    def __init_subclass__(cls) -> None:
        endpoint = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Request")).lower()
        cls.error_name = f"a request to /v1/{endpoint}"

    model: ModelName = ""
    timeout: Timeout = None


@dataclass(frozen=True)
class TextRequest(ModelRequest):
    """A request about one text or several."""

    text: Text = None
    texts: TextList = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.text is None) == (self.texts is None):
            raise ConfigError("pass either `text` or `texts`" + (", not both" if self.text is not None else ""))

    @property
    def all_texts(self) -> list[str]:
        """The texts as a list."""
        return list(self.texts) if self.texts is not None else [self.text or ""]

    def spread(self, name: str, one: Any, many: Sequence[Any] | None) -> list[Any]:
        """Return the value of an option for each text: one for all of them, or a parallel list."""
        num_texts = len(self.all_texts)
        if one is not None and many is not None:
            raise ConfigError(f"pass either `{name}` or `{name}s`, not both")
        if many is None:
            return [one] * num_texts
        if len(many) != num_texts:
            raise ConfigError(f"`{name}s` has {len(many)} elements for {num_texts} texts: one per text is needed")
        return list(many)


@dataclass(frozen=True)
class EncodeRequest(TextRequest):
    """Encode texts as the model reads them, with special tokens."""


@dataclass(frozen=True)
class FillRequest(TextRequest):
    """Predict the masked tokens of texts."""

    top_k: Annotated[int, Rule("Number of candidates for each mask.", 1, 1000)] = 5


@dataclass(frozen=True)
class EmbedRequest(TextRequest):
    """Compute vectors of texts, or of their words or tokens."""

    layers: Annotated[
        str | int, Rule("`last`, `second_to_last`, `sum_last_4`, `concat_last_4`, `sum_all`, `all`, or a layer number.")
    ] = "last"
    granularity: Annotated[Literal["text", "word", "token"], Rule("What a vector stands for.")] = "text"
    truncate: Truncate = False
    encoding_format: EncodingFormat = "float"


@dataclass(frozen=True)
class ScoreRequest(TextRequest):
    """Compute the log-probability of texts."""

    pll_metric: Annotated[Literal["original", "within_word_l2r"] | None, Rule("How a masked model scores a text.")] = (
        None
    )


@dataclass(frozen=True)
class ClassifyRequest(TextRequest):
    """Predict the label, or the number, of texts or of pairs of texts."""

    pair: Annotated[str | None, Rule("The second text of a pair.")] = None
    pairs: Annotated[
        tuple[str, ...] | None, Rule("The second text of each pair.", min_length=1, max_length=MAX_TEXTS)
    ] = None
    truncate: Truncate = False


@dataclass(frozen=True)
class TagRequest(ModelRequest):
    """Predict a tag for every word."""

    text: Annotated[str | None, Rule("One text, which is split at spaces. Use one of `text`, `texts`, `words`.")] = None
    texts: TextList = None
    words: Annotated[
        tuple[tuple[str, ...], ...] | None, Rule("Texts as lists of words.", min_length=1, max_length=MAX_TEXTS)
    ] = None
    predicate: Annotated[
        int | None, Rule("Index of the predicate's word, for a model of semantic roles.", 0, 100_000)
    ] = None
    truncate: Truncate = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(each is not None for each in (self.text, self.texts, self.words)) != 1:
            raise ConfigError("pass one of `text`, `texts` and `words`")

    @property
    def all_texts(self) -> list[str]:
        """The texts as a list, words joined by spaces."""
        if self.words is not None:
            return [" ".join(words) for words in self.words]
        return list(self.texts) if self.texts is not None else [self.text or ""]

    @property
    def all_words(self) -> list[tuple[str, ...]]:
        """The words of each text."""
        return list(self.words) if self.words is not None else [tuple(text.split()) for text in self.all_texts]


@dataclass(frozen=True)
class AnswerRequest(TextRequest):
    """Find the answers to questions in texts."""

    question: Annotated[str | None, Rule("The question about the text, or about all texts.")] = None
    questions: Annotated[tuple[str, ...] | None, Rule("One question per text.", min_length=1, max_length=MAX_TEXTS)] = (
        None
    )


@dataclass(frozen=True)
class ChooseRequest(TextRequest):
    """Choose what follows a text, fills its gap, or fits it best."""

    choices: Annotated[
        tuple[str, ...] | None, Rule("The choices, for all texts.", min_length=2, max_length=MAX_TEXTS)
    ] = None
    choice_lists: Annotated[
        tuple[tuple[str, ...], ...] | None, Rule("The choices of each text.", min_length=1, max_length=MAX_TEXTS)
    ] = None
    normalization: Annotated[
        Literal["none", "length", "unconditional"], Rule("How a language model compares choices of different length.")
    ] = "none"
    context: Annotated[str, Rule("The context of `unconditional` normalization.")] = "Answer: "
    truncate: Truncate = False


@dataclass(frozen=True)
class RerankRequest(ModelRequest):
    """Order texts by how well they match a query."""

    query: Annotated[str, Rule("The query.")] = ""
    texts: Annotated[tuple[str, ...], Rule("The texts.", min_length=1, max_length=MAX_TEXTS)] = ()
    top_k: Annotated[int | None, Rule("Number of texts to return. Default: all.", 1, MAX_TEXTS)] = None
    truncate: Truncate = False


@dataclass(frozen=True)
class NeighborsRequest(TextRequest):
    """Find the words with the most similar vectors; a text is one word."""

    top_k: Annotated[int, Rule("Number of neighbors.", 1, 1000)] = 10


@dataclass(frozen=True)
class AttentionRequest(ModelRequest):
    """Return the attention weights of all layers and heads."""

    text: Annotated[str, Rule("The text.")] = ""
    pair: Annotated[str | None, Rule("The second text of a pair.")] = None
    target: Annotated[str | None, Rule("The target of an encoder-decoder. Default: what it generates.")] = None
    merge_words: Annotated[bool, Rule("Whether to merge the tokens of a word.")] = False
    encoding_format: EncodingFormat = "float"


@dataclass(frozen=True)
class PredictRequest(ModelRequest):
    """Predict examples of any task, written as in the Python API: a text, a list of words, an object, …"""

    examples: Annotated[tuple[Any, ...], Rule("The examples.", min_length=1, max_length=MAX_TEXTS)] = ()
    truncate: Truncate = False


@dataclass(frozen=True)
class NextSentenceRequest(TextRequest):
    """Predict whether a text follows another."""

    pair: Annotated[str | None, Rule("The text that may follow.")] = None
    pairs: Annotated[
        tuple[str, ...] | None, Rule("The text that may follow each text.", min_length=1, max_length=MAX_TEXTS)
    ] = None


@dataclass(frozen=True)
class DecodingRequest(TextRequest):
    """The options of decoding, which are those of `GenerationConfig`."""

    max_new_tokens: Annotated[
        int | None, Rule("Most tokens of a text. Default: 100 or what the model has room for.", 0, MAX_NEW_TOKENS)
    ] = None
    do_sample: Annotated[bool, Rule("Whether to sample; implied by the options of sampling.")] = False
    temperature: Annotated[float | None, Rule("Divides the scores before sampling.", 0, 100)] = None
    top_k: Annotated[int | None, Rule("Sample from this many most likely tokens; 0: all.", 0, 1_000_000)] = None
    top_p: Annotated[float | None, Rule("Nucleus sampling: cumulative probability.", None, 1, 0)] = None
    repetition_penalty: Annotated[float, Rule("Above 1, lowers the scores of tokens in the text.", None, 100, 0)] = 1.0
    seed: Annotated[int, Rule("Seed of sampling.", MIN_INTEGER, MAX_INTEGER)] = 0
    num_return_sequences: Annotated[int, Rule("Number of texts for each prompt.", 1, MAX_ROWS)] = 1
    num_beams: Annotated[int | None, Rule("Width of a beam search; 0: none.", 0, MAX_ROWS)] = None
    length_penalty: Annotated[
        float | None, Rule("Beam scores are divided by ((c + n) / (c + 1))^x for n tokens; this is x.", -100, 100)
    ] = None
    length_offset: Annotated[float | None, Rule("The constant c of the length penalty.", 0, 1000)] = None
    patience: Annotated[float, Rule("Beam search ends with `num_beams × patience` texts; 0: the best.", 0, 100)] = 0.0

    def generation_config(self, base: GenerationConfig | None = None) -> GenerationConfig:
        """Return the options; `max_new_tokens` is 0 if it is left to the model."""
        names = {field.name for field in dataclasses.fields(GenerationConfig)}
        options = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name in names and getattr(self, field.name) not in (None, field.default)
        }
        return GenerationConfig.from_options(base or GenerationConfig(max_new_tokens=0), options)


@dataclass(frozen=True)
class GenerateRequest(DecodingRequest):
    """Continue prompts, or generate a target for each text; with `stream` as server-sent events."""

    prefix: Annotated[str, Rule("What every generated text starts with; not repeated in the result.")] = ""
    stop: Annotated[tuple[str, ...], Rule("A text ends before the first of these strings.", max_length=MAX_STOP)] = ()
    num_top_tokens: Annotated[int, Rule("Number of most likely tokens to report at each step.", 0, 20)] = 0
    stream: Annotated[bool, Rule("Whether to send tokens as they are generated.")] = False
    truncate: Annotated[bool, Rule("Whether to drop the start of a prompt that is too long.")] = False


@dataclass(frozen=True)
class TranslateRequest(DecodingRequest):
    """Translate texts, by default by a beam search of width 4 with the length penalty ((5 + n) / 6)^0.6."""

    split_sentences: Annotated[bool, Rule("Whether to translate a text that is too long sentence by sentence.")] = False


@dataclass(frozen=True)
class EmbeddingsRequest(ModelRequest):
    """OpenAI's request for embeddings."""

    input: Annotated[str | tuple[str, ...], Rule("A text, or a list of texts.", min_length=1, max_length=None)] = ""
    encoding_format: EncodingFormat = "float"
    dimensions: Annotated[int | None, Rule("Must be the model's number of dimensions, if it is set.", 1)] = None
    user: Annotated[str | None, Rule("Ignored.")] = None
    truncate: Truncate = False


@dataclass(frozen=True)
class StreamOptions(BoundedConfig):
    """OpenAI's options of a streamed response."""

    error_name: ClassVar[str] = "an object"

    include_usage: bool = False
    include_obfuscation: bool = False


@dataclass(frozen=True)
class CompletionsRequest(ModelRequest):
    """OpenAI's request for completions of prompts."""

    prompt: Annotated[str | tuple[str, ...], Rule("A prompt, or a list of prompts.", min_length=1, max_length=None)] = (
        ""
    )
    max_tokens: Annotated[int | None, Rule("Most tokens of a completion. Default: 16.", 1, MAX_NEW_TOKENS)] = None
    temperature: Annotated[float | None, Rule("0 takes the most likely token. Default: 1.", 0, 2)] = None
    top_p: Annotated[float | None, Rule("Nucleus sampling: cumulative probability.", None, 1, 0)] = None
    n: Annotated[int | None, Rule("Number of completions of each prompt.", 1, MAX_ROWS)] = None
    seed: Annotated[int | None, Rule("Seed of sampling.", MIN_INTEGER, MAX_INTEGER)] = None
    stop: Annotated[
        str | tuple[str, ...] | None, Rule("Strings that end a completion; at most 4.", max_length=None)
    ] = None
    logprobs: Annotated[int | None, Rule("Number of most likely tokens to report at each step.", 0, 5)] = None
    stream: Annotated[bool | None, Rule("Whether to send chunks as they are generated.")] = None
    stream_options: StreamOptions | None = None
    echo: Annotated[bool | None, Rule("Whether to return the prompt before its completion.")] = None
    best_of: Annotated[int | None, Rule("Only `n` is supported.", 1, MAX_ROWS)] = None
    frequency_penalty: Annotated[float | None, Rule("Only 0 is supported.", 0, 0)] = None
    presence_penalty: Annotated[float | None, Rule("Only 0 is supported.", 0, 0)] = None
    suffix: Annotated[str | None, Rule("Not supported: leave it empty.", max_length=0)] = None
    user: Annotated[str | None, Rule("Ignored.")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.stop, tuple) and len(self.stop) > MAX_STOP:
            raise ConfigError(f"stop has {len(self.stop)} strings, at most {MAX_STOP} are allowed")
        if self.stream_options is not None and not self.stream:
            raise ConfigError("stream_options has no effect without stream")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ConfigError(f"best_of is {self.best_of}, which is only supported if it equals n")
        if self.echo and self.logprobs is not None:
            raise ConfigError("logprobs of the prompt are not supported: leave out echo or logprobs")
