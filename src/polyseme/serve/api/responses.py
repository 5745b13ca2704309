"""The responses of all verbs. Results have the fields of the Python API's result types."""

from dataclasses import dataclass
from typing import Any

from polyseme.inference.results import MaskPrediction


@dataclass(frozen=True)
class Usage:
    """What a request cost: the tokens that were read, without special ones, and those that were generated."""

    num_tokens: int
    num_generated_tokens: int = 0


@dataclass(frozen=True)
class EncodedResult:
    """A text as the model reads it."""

    tokens: list[str]
    input_ids: list[int]
    token_type_ids: list[int]
    attention_mask: list[int]


@dataclass(frozen=True)
class EncodeResponse:
    """One result per text."""

    model: str
    results: list[EncodedResult]
    usage: Usage


@dataclass(frozen=True)
class FillResponse:
    """For each text, for each mask, the candidates, most likely first."""

    model: str
    results: list[list[list[MaskPrediction]]]
    usage: Usage


@dataclass(frozen=True)
class EmbedResult:
    """The vectors of a text: nested lists or base64, of this shape. `units` are its words or tokens."""

    vectors: list[Any] | str
    shape: list[int]
    units: list[str] | None = None


@dataclass(frozen=True)
class EmbedResponse:
    """One result per text."""

    model: str
    results: list[EmbedResult]
    usage: Usage


@dataclass(frozen=True)
class ScoreResult:
    """The log-probability of a text."""

    log_prob: float
    num_tokens: int
    num_characters: int
    perplexity: float | None
    bits_per_character: float


@dataclass(frozen=True)
class ScoreResponse:
    """One result per text."""

    model: str
    results: list[ScoreResult]
    usage: Usage


@dataclass(frozen=True)
class ClassifyResult:
    """A label with the probability of each, or a number, or the similarity of a pair."""

    label: str | None = None
    probabilities: dict[str, float] | None = None
    number: float | None = None
    similarity: float | None = None


@dataclass(frozen=True)
class ClassifyResponse:
    """One result per text."""

    model: str
    results: list[ClassifyResult]
    usage: Usage


@dataclass(frozen=True)
class TagSpan:
    """A run of words with one label: an entity, or a single word; characters of the text from `start` to `end`."""

    label: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class TagResult:
    """The words of a text, where each is in it, its tag and the probability; and spans that are not outside."""

    words: list[str]
    offsets: list[tuple[int, int]]
    tags: list[str]
    probabilities: list[float | None]
    spans: list[TagSpan]


@dataclass(frozen=True)
class TagResponse:
    """One result per text."""

    model: str
    results: list[TagResult]
    usage: Usage


@dataclass(frozen=True)
class AnswerResult:
    """The characters of the text from `start` to `end` that answer the question; an empty text is no answer."""

    text: str
    start: int
    end: int
    probability: float
    null_score_diff: float


@dataclass(frozen=True)
class AnswerResponse:
    """One result per text."""

    model: str
    results: list[AnswerResult]
    usage: Usage


@dataclass(frozen=True)
class ChooseResult:
    """The best choice and the score of each: a probability of a task model, or a normalized log-probability."""

    best_index: int
    best: str
    scores: list[float]
    log_probs: list[ScoreResult] | None = None


@dataclass(frozen=True)
class ChooseResponse:
    """One result per text."""

    model: str
    results: list[ChooseResult]
    usage: Usage


@dataclass(frozen=True)
class RerankResult:
    """A text, its position in the request, and its score."""

    index: int
    score: float
    text: str


@dataclass(frozen=True)
class RerankResponse:
    """The texts, best first."""

    model: str
    results: list[RerankResult]
    usage: Usage


@dataclass(frozen=True)
class Neighbor:
    """A word and its cosine similarity."""

    word: str
    similarity: float


@dataclass(frozen=True)
class NeighborsResponse:
    """For each word its neighbors, the most similar first."""

    model: str
    results: list[list[Neighbor]]
    usage: Usage


@dataclass(frozen=True)
class AttentionMapResult:
    """Weights [layers, heads, queries, keys] as nested lists or base64, and the tokens or words of both sides."""

    name: str
    queries: list[str]
    keys: list[str]
    shape: list[int]
    weights: list[Any] | str
    query_words: list[str]
    key_words: list[str]
    query_word_ids: list[int]
    key_word_ids: list[int]


@dataclass(frozen=True)
class AttentionResponse:
    """The maps of the model: `self`, or those of an encoder-decoder."""

    model: str
    results: list[AttentionMapResult]
    usage: Usage


@dataclass(frozen=True)
class PredictResponse:
    """One result per example, with the fields of the task's prediction."""

    model: str
    results: list[dict[str, Any]]
    usage: Usage


@dataclass(frozen=True)
class NextSentenceResponse:
    """For each pair, the probability that the second text follows."""

    model: str
    results: list[float]
    usage: Usage


@dataclass(frozen=True)
class TokenLogProb:
    """A token and its log-probability."""

    token: str
    log_prob: float


@dataclass(frozen=True)
class TokenEvent:
    """One generated token: an event `token` of a stream. `text` is what it adds, which may be empty."""

    index: int  # of the text: prompt × num_return_sequences + sample
    text: str
    token: str
    token_id: int
    log_prob: float
    top_tokens: list[TokenLogProb] | None = None


@dataclass(frozen=True)
class GeneratedResult:
    """A generated text, its tokens, and its log-probability. `finish_reason` is eos, stop, or length."""

    text: str
    tokens: list[int]
    score: float
    is_finished: bool
    finish_reason: str
    token_events: list[TokenEvent] | None = None


@dataclass(frozen=True)
class GenerateResponse:
    """For each prompt the generated texts; also the data of the last event, `done`, of a stream."""

    model: str
    results: list[list[GeneratedResult]]
    usage: Usage


@dataclass(frozen=True)
class TranslatedResult:
    """A translation and its log-probability."""

    text: str
    score: float
    is_finished: bool


@dataclass(frozen=True)
class TranslateResponse:
    """One result per text."""

    model: str
    results: list[TranslatedResult]
    usage: Usage


@dataclass(frozen=True)
class ModelInfo:
    """A loaded model: the verbs that it supports, and an example request for each."""

    name: str
    kind: str
    description: str
    verbs: list[str]
    engine: str
    max_tokens: int | None
    dim: int | None
    mask_token: str | None
    task: str | None
    labels: list[str] | None
    examples: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ModelsResponse:
    """All loaded models; the first is the default."""

    models: list[ModelInfo]


@dataclass(frozen=True)
class OpenAIUsage:
    """OpenAI's count of tokens."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int | None = None


@dataclass(frozen=True)
class Embedding:
    """A vector in OpenAI's format."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


@dataclass(frozen=True)
class EmbeddingsResponse:
    """OpenAI's response with embeddings."""

    data: list[Embedding]
    model: str
    usage: OpenAIUsage
    object: str = "list"


@dataclass(frozen=True)
class CompletionLogProbs:
    """OpenAI's log-probabilities of a completion."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


@dataclass(frozen=True)
class CompletionChoice:
    """A completion, or a part of it in a stream."""

    text: str
    index: int
    finish_reason: str | None = None
    logprobs: CompletionLogProbs | None = None


@dataclass(frozen=True)
class CompletionsResponse:
    """OpenAI's response with completions; also a chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: OpenAIUsage | None = None
    object: str = "text_completion"


@dataclass(frozen=True)
class OpenAIModel:
    """A model in OpenAI's format."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "polyseme"


@dataclass(frozen=True)
class OpenAIModelsResponse:
    """OpenAI's list of models."""

    data: list[OpenAIModel]
    object: str = "list"
