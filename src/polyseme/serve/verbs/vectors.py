"""Verbs over vectors: embed, rerank, neighbors, and the attention between tokens."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from polyseme.errors import DataError
from polyseme.inference.base import Granularity
from polyseme.inference.embedding import EncodedSequences, encode_texts
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.word_vectors import WordVectors
from polyseme.nn.layer_selection import LayerSelection
from polyseme.serve.api import requests, responses
from polyseme.serve.api.arrays import encode_array, write_arrays
from polyseme.serve.api.schema import encode_json, to_plain
from polyseme.serve.registry import ServedModel
from polyseme.serve.verbs.plan import Plan, Results, check_lengths, count_checked, count_usage, plan_examples
from polyseme.tasks.readers.rows import split_words


def plan_embed(served: ServedModel, request: requests.EmbedRequest) -> Plan:
    """Compute vectors."""
    texts, granularity = request.all_texts, request.granularity
    plan = plan_vectors(served, texts, request.layers, granularity, request.truncate)

    def respond(results: Results) -> bytes:
        units = None
        if granularity != "text":
            units = [unit_names(served, text, granularity, request.truncate) for text in texts]
        return write_embed_response(served.name, results, units, plan.num_tokens, request.encoding_format)

    return replace(plan, respond=respond)


def write_embed_response(
    model: str, arrays: Results, units: Sequence[Sequence[str]] | None, num_tokens: int, encoding_format: str
) -> bytes:
    """Return an `EmbedResponse` in JSON; its parts are put together as text, which takes much less time."""
    rows = write_arrays(arrays, encoding_format)
    written_shapes = {shape: encode_json(shape) for shape in {array.shape for array in arrays}}
    shapes = [written_shapes[array.shape] for array in arrays]
    if units is None:
        results = [b'{"vectors":%b,"shape":%b}' % row for row in zip(rows, shapes)]
    else:
        results = [b'{"vectors":%b,"shape":%b,"units":%b}' % row for row in zip(rows, shapes, map(encode_json, units))]
    usage = encode_json(to_plain(responses.Usage(num_tokens)))
    return b'{"model":%b,"results":[%b],"usage":%b}' % (encode_json(model), b",".join(results), usage)


def plan_vectors(
    served: ServedModel, texts: Sequence[str], layers: str | int, granularity: Granularity, truncate: bool
) -> Plan:
    """Compute vectors; the response is the vectors themselves.

    A network's texts are encoded here, once, and not in the worker's thread.
    """
    model = served.model
    if isinstance(model, NeuralLM):
        LayerSelection.parse(layers).indices(model.model.trunk.config.num_layers)  # raises if there is none
        num_special = model.tokenizer.num_special_tokens_to_add()
        sequences = encode_texts(model.packed_model, texts, granularity, truncate)
        num_tokens = len(sequences.ids) - num_special * len(texts)

        def embed_sequences(inputs: EncodedSequences) -> Results:
            rows: Any = model.embed_sequences(inputs, layers, granularity)
            return rows

        key = "embed", layers, granularity
        return Plan(key, sequences, num_tokens, embed_sequences, return_results, True, EncodedSequences.concat)
    counts = count_checked(served, texts, truncate)

    def embed_texts(inputs: Results) -> Results:
        vectors: Results = model.embed(list(inputs), layers, granularity, truncate)
        return vectors

    return Plan(("embed", layers, granularity, truncate), texts, sum(counts), embed_texts, return_results)


def return_results(results: Results) -> Results:
    """Return the results of a plan as they are."""
    return results


def unit_names(served: ServedModel, text: str, granularity: str, truncate: bool) -> list[str]:
    """Return the words or tokens of a text that have vectors."""
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
    plan = plan_vectors(served, [query, *texts], "last", "text", request.truncate)

    def respond_vectors(vectors: Results) -> responses.RerankResponse:
        matrix = np.asarray(vectors, dtype=np.float64)
        matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
        return _order(served, request, responses.Usage(plan.num_tokens), (matrix[1:] @ matrix[0]).tolist())

    return replace(plan, respond=respond_vectors)


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
