"""What each verb computes: inputs for the model's worker, and a response from the results.

Verbs with the same key, also of different requests, are computed at once. No result depends on the rest of its batch.
"""

import math
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from polyseme.errors import ConfigError, DataError
from polyseme.inference.feature_model import FeatureModel
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.prediction import predict
from polyseme.inference.results import ChoiceResult, TextScore
from polyseme.inference.word_vectors import WordVectors
from polyseme.nn.layer_selection import LayerSelection
from polyseme.serve.api import requests, responses
from polyseme.serve.api.arrays import encode_array
from polyseme.serve.api.errors import RequestError
from polyseme.serve.api.schema import to_plain
from polyseme.serve.registry import ServedModel
from polyseme.tasks.readers.rows import split_words

Results = Sequence[Any]


@dataclass(frozen=True, eq=False)
class Plan:
    """How a request is computed: by `run`, on inputs that may be combined with those of other plans of the same key."""

    key: Hashable
    inputs: Sequence[Any]
    num_tokens: int
    run: Callable[[Results], Results]
    respond: Callable[[Results], Any]


def plan_encode(served: ServedModel, request: requests.EncodeRequest) -> Plan:
    """Encode texts as the model reads them."""

    def respond(results: Results) -> responses.EncodeResponse:
        encoded = [responses.EncodedResult(**vars(each)) for each in results]
        return responses.EncodeResponse(served.name, encoded, usage)

    usage = count_usage(served, request.all_texts)
    return Plan("encode", request.all_texts, usage.num_tokens, served.model.encode, respond)


def plan_fill(served: ServedModel, request: requests.FillRequest) -> Plan:
    """Predict masked tokens; a text without a mask, or one that is too long, is an error."""
    texts, usage = request.all_texts, count_usage(served, request.all_texts)
    mask = served.model.tokenizer.mask_token
    for text in texts:
        if mask is None or mask not in text:
            raise DataError(f"there is no {mask} in {text[:40]!r}")
    check_lengths(served, texts)

    def respond(results: Results) -> responses.FillResponse:
        return responses.FillResponse(served.name, list(results), usage)

    run = partial(served.model.fill, top_k=request.top_k)
    return Plan(("fill", request.top_k), texts, usage.num_tokens, run, respond)


def plan_embed(served: ServedModel, request: requests.EmbedRequest) -> Plan:
    """Compute vectors."""
    texts = request.all_texts
    encoded, counts, options, run = prepare_embed(served, texts, request.layers, request.granularity, request.truncate)

    def respond(results: Results) -> responses.EmbedResponse:
        units = [unit_names(served, text, request.granularity, request.truncate) for text in texts]
        arrays = [encode_array(vectors, request.encoding_format) for vectors in results]
        rows = [responses.EmbedResult(data, shape, names) for (data, shape), names in zip(arrays, units)]
        return responses.EmbedResponse(served.name, rows, responses.Usage(sum(counts)))

    return Plan(("embed", *options), encoded, sum(counts), run, respond)


def prepare_embed(
    served: ServedModel, texts: Sequence[str], layers: str | int, granularity: Any, truncate: bool
) -> tuple[Results, list[int], tuple[Any, ...], Callable[[Results], Results]]:
    """Return the inputs of an embedding, their numbers of tokens, its options, and the function that computes it.

    A network's texts are encoded here, once, and not in the worker's thread.
    """
    model = served.model
    if isinstance(model, NeuralLM):
        LayerSelection.parse(layers).indices(model.model.trunk.config.num_layers)  # raises if there is none
        num_special = model.tokenizer.num_special_tokens_to_add()
        sequences = model.encode_for_embed(texts, granularity, truncate)
        counts = [len(each.ids) - num_special for each in sequences]

        def embed_sequences(inputs: Results) -> Results:
            return model.embed_sequences(inputs, layers, granularity)

        return sequences, counts, (layers, granularity), embed_sequences
    counts = count_checked(served, texts, truncate)

    def embed_texts(inputs: Results) -> Results:
        vectors: Results = model.embed(list(inputs), layers, granularity, truncate)
        return vectors

    return texts, counts, (layers, granularity, truncate), embed_texts


def unit_names(served: ServedModel, text: str, granularity: str, truncate: bool) -> list[str] | None:
    """Return the words or tokens of a text that have vectors."""
    if granularity == "text":
        return None
    tokenizer = served.tokenizer
    if tokenizer is None:
        return list(split_words(text))
    encoded = tokenizer.encode_corpus([text])
    ids, limit = encoded.ids.tolist(), served.max_tokens
    ids = ids[:limit] if truncate and limit else ids
    if granularity == "token":
        return tokenizer.display_tokens(tokenizer.build_inputs_with_special_tokens(ids)[0])
    starts = np.flatnonzero(encoded.word_starts[: len(ids)]).tolist()
    return [tokenizer.decode(ids[start:end]).strip() for start, end in zip(starts, [*starts[1:], len(ids)])]


def plan_score(served: ServedModel, request: requests.ScoreRequest) -> Plan:
    """Compute log-probabilities; a masked model reads one copy of a text per token."""
    texts = request.all_texts
    counts = count_checked(served, texts)
    is_masked = served.model.has_pll_metric or request.pll_metric is not None
    num_tokens = sum(n * n for n in counts) if is_masked else sum(counts)

    def respond(results: Results) -> responses.ScoreResponse:
        return responses.ScoreResponse(
            served.name, [score_result(each) for each in results], responses.Usage(sum(counts))
        )

    def run(inputs: Results) -> Results:
        return served.model.score(list(inputs), request.pll_metric)

    return Plan(("score", request.pll_metric), texts, num_tokens, run, respond)


def score_result(score: TextScore) -> responses.ScoreResult:
    """Convert a score; a perplexity that is too large for a number is left out."""
    exponent = -score.log_prob / max(score.num_tokens, 1)
    perplexity = math.exp(exponent) if exponent < 700 else None
    bits = score.bits_per_character
    return responses.ScoreResult(score.log_prob, score.num_tokens, score.num_characters, perplexity, bits)


def plan_classify(served: ServedModel, request: requests.ClassifyRequest) -> Plan:
    """Predict labels or numbers."""
    pairs = request.spread("pair", request.pair, request.pairs)
    examples = [text if pair is None else (text, pair) for text, pair in zip(request.all_texts, pairs)]
    fields = responses.ClassifyResult.__dataclass_fields__

    def respond(results: Results) -> responses.ClassifyResponse:
        rows = [responses.ClassifyResult(**{k: v for k, v in vars(each).items() if k in fields}) for each in results]
        return responses.ClassifyResponse(served.name, rows, usage)

    usage = count_usage(served, [*request.all_texts, *(pair for pair in pairs if pair is not None)])
    return plan_examples(served, examples, usage.num_tokens, request.truncate, respond)


def plan_tag(served: ServedModel, request: requests.TagRequest) -> Plan:
    """Predict tags of words."""
    texts, words = request.all_texts, request.all_words
    for text_words in words:
        if not text_words or not all(word.strip() for word in text_words):
            raise DataError("a text has no words, or an empty one")
    if request.predicate is not None:
        shortest = min(map(len, words))
        if request.predicate >= shortest:
            raise DataError(f"predicate is {request.predicate}, and a text has {shortest} words")
    examples: list[Any] = [each if request.predicate is None else (each, request.predicate) for each in words]

    def respond(results: Results) -> responses.TagResponse:
        rows = [tag_result(*each) for each in zip(texts, words, results)]
        return responses.TagResponse(served.name, rows, usage)

    usage = count_usage(served, texts)
    return plan_examples(served, examples, usage.num_tokens, request.truncate, respond)


def tag_result(text: str, words: Sequence[str], prediction: Any) -> responses.TagResult:
    """Return tags with their place in the text; words of one entity (B-X, I-X, …) are one span."""
    offsets, place = [], 0
    for word in words:
        start = text.index(word, place)
        place = start + len(word)
        offsets.append((start, place))
    spans: list[responses.TagSpan] = []
    previous = ""
    for (start, end), tag in zip(offsets, prediction.tags):
        prefix, dash, label = tag.partition("-")
        has_scheme = bool(dash) and prefix in ("B", "I", "E", "S", "L", "U", "M")
        label = label if has_scheme else tag
        if tag in ("O", "_"):
            previous = ""
            continue
        if has_scheme and prefix in ("I", "E", "L", "M") and previous == label:
            start = spans.pop().start
        spans.append(responses.TagSpan(label, start, end, text[start:end]))
        previous = label if has_scheme else ""
    tags, probabilities = list(prediction.tags), list(prediction.probabilities)
    return responses.TagResult(list(words), offsets, tags, probabilities, spans)


def plan_answer(served: ServedModel, request: requests.AnswerRequest) -> Plan:
    """Find answers to questions."""
    questions = request.spread("question", request.question, request.questions)
    if None in questions:
        raise ConfigError("`question` is missing")
    examples = list(zip(request.all_texts, questions))

    def respond(results: Results) -> responses.AnswerResponse:
        fields = responses.AnswerResult.__dataclass_fields__
        rows = [responses.AnswerResult(**{name: getattr(each, name) for name in fields}) for each in results]
        return responses.AnswerResponse(served.name, rows, usage)

    usage = count_usage(served, [*request.all_texts, *questions])
    return plan_examples(served, examples, usage.num_tokens, False, respond)


def plan_choose(served: ServedModel, request: requests.ChooseRequest) -> Plan:
    """Choose with a task model, or by the log-probabilities of a language model."""
    choice_lists = request.spread("choice_list", request.choices, request.choice_lists)
    if None in choice_lists or not all(len(choices) > 1 for choices in choice_lists):
        raise ConfigError("each text needs at least two `choices`")
    usage = count_usage(served, [*request.all_texts, *(choice for each in choice_lists for choice in each)])
    questions = list(zip(request.all_texts, choice_lists))
    if served.task is not None and served.task.verb == "choose":

        def respond_task(results: Results) -> responses.ChooseResponse:
            rows = []
            for prediction, choices in zip(results, choice_lists):
                best, scores = int(prediction.label), list(prediction.probabilities.values())
                rows.append(responses.ChooseResult(best, choices[best], scores))
            return responses.ChooseResponse(served.name, rows, usage)

        return plan_examples(served, questions, usage.num_tokens, request.truncate, respond_task)

    def respond(results: Results) -> responses.ChooseResponse:
        rows = [choose_result(each, choices) for each, choices in zip(results, choice_lists)]
        return responses.ChooseResponse(served.name, rows, usage)

    options = request.normalization, request.context

    def run(inputs: Results) -> Results:
        texts, choices = zip(*inputs)
        ranked: Results = served.model.rank_choices(
            list(texts), list(choices), normalization=options[0], context=options[1]
        )
        return ranked

    return Plan(("choose", *options), questions, usage.num_tokens, run, respond)


def choose_result(ranked: ChoiceResult, choices: Sequence[str]) -> responses.ChooseResult:
    """Convert the ranking of a language model."""
    scores = [score_result(score) for score in ranked.scores]
    return responses.ChooseResult(ranked.best_index, choices[ranked.best_index], list(ranked.normalized_scores), scores)


def plan_rerank(served: ServedModel, request: requests.RerankRequest) -> Plan:
    """Order texts by the score of a model for pairs, or else by the cosine of their vectors with the query's."""
    texts, query = list(request.texts), request.query
    if served.scores_pairs:
        usage = count_usage(served, [*texts, *[query] * len(texts)])
        examples = [(query, text) for text in texts]
        respond = partial(_order, served, request, usage)
        return plan_examples(
            served, examples, usage.num_tokens, request.truncate, lambda rows: respond(_pair_scores(served, rows))
        )
    encoded, counts, options, run = prepare_embed(served, [query, *texts], "last", "text", request.truncate)

    def respond_vectors(vectors: Results) -> responses.RerankResponse:
        matrix = np.asarray(vectors, dtype=np.float64)
        matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
        return _order(served, request, responses.Usage(sum(counts)), (matrix[1:] @ matrix[0]).tolist())

    return Plan(("embed", *options), encoded, sum(counts), run, respond_vectors)


def _pair_scores(served: ServedModel, results: Results) -> list[float]:
    """Return the number that a model predicts, or the probability of the label that means a match."""
    if hasattr(results[0], "number"):
        return [each.number for each in results]
    label = getattr(served.task, "f1_label", "") or next(iter(results[0].probabilities))
    return [each.probabilities[label] for each in results]


def _order(
    served: ServedModel, request: requests.RerankRequest, usage: responses.Usage, scores: Sequence[float]
) -> responses.RerankResponse:
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: request.top_k]
    rows = [responses.RerankResult(i, scores[i], request.texts[i]) for i in order]
    return responses.RerankResponse(served.name, rows, usage)


def plan_neighbors(served: ServedModel, request: requests.NeighborsRequest) -> Plan:
    """Find the neighbors of words in a table of word vectors."""
    assert isinstance(served.model, WordVectors)
    find, words = served.model.neighbors, request.all_texts

    def run(inputs: Results) -> Results:
        return [find(word, request.top_k) for word in inputs]

    def respond(results: Results) -> responses.NeighborsResponse:
        rows = [[responses.Neighbor(word, similarity) for word, similarity in each] for each in results]
        return responses.NeighborsResponse(served.name, rows, responses.Usage(len(words)))

    return Plan(("neighbors", request.top_k), words, len(words), run, respond)


def plan_attention(served: ServedModel, request: requests.AttentionRequest) -> Plan:
    """Return attention weights."""
    texts = [each for each in (request.text, request.pair, request.target) if each is not None]
    usage = count_usage(served, texts)
    if not request.text.strip():
        raise DataError("the text has no tokens")
    check_lengths(served, texts)

    def run(inputs: Results) -> Results:
        return [served.model.attention(*each) for each in inputs]

    def respond(results: Results) -> responses.AttentionResponse:
        attention = results[0].merge_words() if request.merge_words else results[0]
        rows = []
        for each in attention.maps:
            weights, shape = encode_array(each.weights, request.encoding_format)
            words = each.query_words, each.key_words, each.query_word_ids, each.key_word_ids
            rows.append(responses.AttentionMapResult(each.name, each.queries, each.keys, shape, weights, *words))
        return responses.AttentionResponse(served.name, rows, usage)

    inputs = [(request.text, request.pair, request.target)]
    return Plan(("attention", id(request)), inputs, usage.num_tokens, run, respond)


def plan_predict(served: ServedModel, request: requests.PredictRequest) -> Plan:
    """Predict examples of any task."""
    examples = [tuple(each) if isinstance(each, list) else each for each in request.examples]
    num_tokens = sum(len(str(each).split()) for each in examples)

    def respond(results: Results) -> responses.PredictResponse:
        rows = [plain_prediction(each) for each in results]
        return responses.PredictResponse(served.name, rows, responses.Usage(num_tokens))

    return plan_examples(served, examples, num_tokens, request.truncate, respond)


def plain_prediction(prediction: Any) -> dict[str, Any]:
    """Return the fields of a prediction as plain values, without arrays, and the name of its type."""
    fields = {name: value for name, value in vars(prediction).items() if not isinstance(value, np.ndarray)}
    plain: dict[str, Any] = to_plain(fields)
    return {"type": type(prediction).__name__, **plain}


def plan_next_sentence(served: ServedModel, request: requests.NextSentenceRequest) -> Plan:
    """Predict whether one text follows another."""
    pairs = request.spread("pair", request.pair, request.pairs)
    if None in pairs:
        raise ConfigError("`pair` is missing")
    usage = count_usage(served, [*request.all_texts, *pairs])

    def run(inputs: Results) -> Results:
        first, second = zip(*inputs)
        return served.model.next_sentence(list(first), list(second))

    def respond(results: Results) -> responses.NextSentenceResponse:
        return responses.NextSentenceResponse(served.name, list(results), usage)

    inputs = list(zip(request.all_texts, pairs))
    return Plan("next_sentence", inputs, usage.num_tokens, run, respond)


def plan_translate(served: ServedModel, request: requests.TranslateRequest) -> Plan:
    """Translate by beam search, or as the options say."""
    from polyseme.corpus.clean.sentences import split_sentences
    from polyseme.generation.config import GenerationConfig

    texts, usage = request.all_texts, count_usage(served, request.all_texts)
    num_beams = 5 if request.num_beams is None and not request.do_sample else 0
    config = request.generation_config(GenerationConfig(max_new_tokens=0, num_beams=num_beams))
    split = (lambda text: split_sentences(text, "")) if request.split_sentences else None

    def run(inputs: Results) -> Results:
        translated: Results = served.model.translate(list(inputs), config, split=split)
        return translated

    def respond(results: Results) -> responses.TranslateResponse:
        rows = [responses.TranslatedResult(each.text, each.score, each.is_finished) for each in results]
        num_tokens = sum(served.count_tokens([each.text for each in results]))
        return responses.TranslateResponse(served.name, rows, responses.Usage(usage.num_tokens, num_tokens))

    key = ("translate", request.split_sentences, config)
    return Plan(key, texts, usage.num_tokens * max(config.num_beams, 1), run, respond)


def plan_examples(
    served: ServedModel,
    examples: Sequence[Any],
    num_tokens: int,
    truncate: bool,
    respond: Callable[[Results], Any],
) -> Plan:
    """Predict examples of the model's task."""
    model, task = served.model, served.task
    assert task is not None

    def run(inputs: Results) -> Results:
        rows = task.read(inputs, needs_labels=False)
        if isinstance(model, FeatureModel):
            return model.predict_examples(rows)
        assert isinstance(model, NeuralLM)
        return predict(model.folder, rows, task, truncate=truncate)

    task.read(examples, needs_labels=False)  # malformed examples are rejected before they wait
    return Plan(("predict", truncate), examples, num_tokens, run, respond)


# ------------------------------------------------------------------------------------------------------ lengths


def count_usage(served: ServedModel, texts: Sequence[str]) -> responses.Usage:
    """Count the tokens of texts."""
    return responses.Usage(sum(served.count_tokens(texts)))


def check_lengths(served: ServedModel, texts: Sequence[str]) -> None:
    """Raise if a text is longer than the model reads."""
    count_checked(served, texts)


def count_checked(served: ServedModel, texts: Sequence[str], truncate: bool | None = None) -> list[int]:
    """Return the number of tokens of each text; raise if one has none, or more than the model reads.

    `truncate` is None if a text cannot be cut.
    """
    limit = served.max_tokens or sys.maxsize
    counts = served.count_tokens(texts)
    for number, (text, count) in enumerate(zip(texts, counts), 1):
        where = f"text {number} of {len(texts)}" if len(texts) > 1 else "the text"
        if not count:
            raise DataError(f"{where} has no tokens: {text[:40]!r}")
        if count > limit and not truncate:
            advice = "shorten it" if truncate is None else "shorten it, or set truncate"
            raise RequestError("too_long", f"{where} has {count:,} tokens, and the model reads {limit:,}: {advice}")
    return [min(count, limit) for count in counts]


PLANS: dict[str, tuple[type[requests.ModelRequest], type, Callable[[ServedModel, Any], Plan]]] = {
    "fill": (requests.FillRequest, responses.FillResponse, plan_fill),
    "embed": (requests.EmbedRequest, responses.EmbedResponse, plan_embed),
    "score": (requests.ScoreRequest, responses.ScoreResponse, plan_score),
    "classify": (requests.ClassifyRequest, responses.ClassifyResponse, plan_classify),
    "tag": (requests.TagRequest, responses.TagResponse, plan_tag),
    "answer": (requests.AnswerRequest, responses.AnswerResponse, plan_answer),
    "choose": (requests.ChooseRequest, responses.ChooseResponse, plan_choose),
    "rerank": (requests.RerankRequest, responses.RerankResponse, plan_rerank),
    "translate": (requests.TranslateRequest, responses.TranslateResponse, plan_translate),
    "neighbors": (requests.NeighborsRequest, responses.NeighborsResponse, plan_neighbors),
    "predict": (requests.PredictRequest, responses.PredictResponse, plan_predict),
    "attention": (requests.AttentionRequest, responses.AttentionResponse, plan_attention),
    "encode": (requests.EncodeRequest, responses.EncodeResponse, plan_encode),
    "next_sentence": (requests.NextSentenceRequest, responses.NextSentenceResponse, plan_next_sentence),
}
