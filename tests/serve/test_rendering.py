"""Responses with vectors are put together as text: they have to be those that a JSON encoder writes."""

import json

import numpy as np
import pytest

from polyseme.serve.api import responses
from polyseme.serve.api.arrays import encode_array
from polyseme.serve.api.schema import to_plain
from polyseme.serve.openai_format import write_embeddings_response
from polyseme.serve.verbs.vectors import write_embed_response


def dumps(response):
    return json.dumps(to_plain(response), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def make_arrays(*shape):
    arrays = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    arrays.flat[:4] = 0.0, -0.0, 1e-30, 3.4e38
    return arrays


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
@pytest.mark.parametrize("shape", [(3, 6), (1, 7), (2, 8), (2, 3, 4)], ids=str)  # 4 · 7 and 4 · 8 bytes need padding
def test_vectors_of_texts(shape, encoding_format):
    arrays, name = make_arrays(*shape), 'modèle "ä"'
    encoded = [encode_array(array, encoding_format) for array in arrays]
    data = [responses.Embedding(i, vectors) for i, (vectors, _) in enumerate(encoded)]
    expected = responses.EmbeddingsResponse(data, name, responses.OpenAIUsage(9, 9))
    assert write_embeddings_response(name, arrays, 9, encoding_format) == dumps(expected)
    results = [responses.EmbedResult(*each) for each in encoded]
    expected = responses.EmbedResponse(name, results, responses.Usage(9))
    assert write_embed_response(name, arrays, None, 9, encoding_format) == dumps(expected)


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_vectors_of_words(encoding_format):
    arrays = [make_arrays(2, 5), make_arrays(3, 5)[::2], make_arrays(5, 2).T.astype(np.float64)]
    units = [["a", '"'], ["日本", "\n"], ["", "z"]]
    results = [
        responses.EmbedResult(*encode_array(array, encoding_format), names) for array, names in zip(arrays, units)
    ]
    expected = responses.EmbedResponse("m", results, responses.Usage(6))
    assert write_embed_response("m", arrays, units, 6, encoding_format) == dumps(expected)


def test_infinite_numbers_are_no_json():
    vectors = np.array([[1.0, np.nan]], np.float32)
    with pytest.raises(ValueError, match="JSON"):
        write_embeddings_response("m", vectors, 1, "float")
    assert b'"AACAPwAAwH8="' in write_embeddings_response("m", vectors, 1, "base64")
