"""Vectors of words in context, from every layer of any model that embeds text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyseme.errors import DataError
from polyseme.explain.supported import unsupported
from polyseme.inference.base import LanguageModel
from polyseme.inference.feature_extraction import ElmoModel, FeatureEncoder
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.word_vectors import WordVectors
from polyseme.nn.layers.char_cnn import CharCNN
from polyseme.tasks.readers.rows import WORD_PATTERN

MAX_CONTEXT_TOKENS = 512  # of a long text that are read around a word
_BATCH_TEXTS = 64
Span = tuple[int, int]  # the first character of a word and the one after its last


@dataclass(frozen=True)
class LayerVectors:
    """The vectors of words [words, dim] in each layer; layer 0 is the embeddings."""

    layers: list[int]
    vectors: list[np.ndarray]
    is_static: bool = False


def is_cased(model: LanguageModel) -> bool:
    """Whether a model distinguishes upper and lower case."""
    return isinstance(model, ElmoModel) or not model.tokenizer.lowercase


def embed_spans(
    model: LanguageModel, texts: Sequence[str], spans: Sequence[Sequence[Span]], figure: str = "word"
) -> LayerVectors:
    """Compute the vectors of words, text after text, in every layer; `spans` has the words of each text.

    The vector of a word is the mean over its pieces. Models of characters (Flair, ELMo) have theirs at the ends of the
    word, as in their papers. Of a text that is longer than the model reads, or than 512 tokens, a window around the
    word is read.
    """
    if "embed" not in model.capabilities:
        unsupported(model, figure)
    reader = _SpanReader(model)
    vectors = [[] for _ in reader.layers]  # type: list[list[np.ndarray]]
    for start in range(0, len(texts), _BATCH_TEXTS):
        for rows in reader.read(texts[start : start + _BATCH_TEXTS], spans[start : start + _BATCH_TEXTS]):
            for layer, row in zip(vectors, rows, strict=True):
                layer.append(row)
    return LayerVectors(reader.layers, [np.stack(rows) for rows in vectors], reader.is_static)


@dataclass(frozen=True, eq=False)
class _SpanReader:
    model: LanguageModel

    @cached_property
    def encoder(self) -> FeatureEncoder | None:
        """The encoder of a neural model; it has no tokenizer if it spells words."""
        if isinstance(self.model, ElmoModel):
            return self.model.encoder
        if not isinstance(self.model, NeuralLM):
            return None
        network = self.model.model
        reads_spelling = isinstance(getattr(network.trunk, "embeddings", None), CharCNN)
        return FeatureEncoder(self.model.path, network, None if reads_spelling else self.model.tokenizer)

    @property
    def is_static(self) -> bool:
        """Whether the vector of a word does not depend on its context."""
        return isinstance(self.model, WordVectors) or (self.encoder is not None and self.encoder.num_layers == 1)

    @cached_property
    def layers(self) -> list[int]:
        """The layers in which words have vectors: without the embeddings if these are of characters."""
        if self.encoder is None:
            return [0]
        return list(range(self.encoder.is_character_level, self.encoder.num_layers))

    def read(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> Iterator[list[np.ndarray]]:
        """Yield the vectors of each word, one per layer."""
        if self.encoder is not None and (self.encoder.tokenizer is None or self.encoder.is_character_level):
            yield from self._read_spelled(self.encoder, texts, spans)
        else:
            yield from self._read_pieces(texts, spans)

    def _read_spelled(
        self, encoder: FeatureEncoder, texts: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> Iterator[list[np.ndarray]]:
        """Read texts as words; a span with several words, such as a hyphenated one, has their mean."""
        matches = [list(WORD_PATTERN.finditer(text)) for text in texts]
        sentences = [tuple(match[0] for match in row) for row in matches]
        layers = [[{} for _ in texts] for _ in self.layers]  # type: list[list[dict[int, np.ndarray]]]
        for group in self._equal_dims(encoder):
            for chunk, vectors in encoder.extract(sentences, group):
                for word, row in enumerate(vectors, chunk.first_word):
                    for layer, vector in zip(group, row):
                        layers[self.layers.index(layer)][chunk.sentence][word] = vector
        for i, (text, row) in enumerate(zip(texts, matches)):
            offsets = np.array([match.span() for match in row]).reshape(-1, 2)
            for span in spans[i]:
                words = _covering(offsets, span, text)
                yield [np.mean([vectors[i][word] for word in words], axis=0) for vectors in layers]

    def _read_pieces(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> Iterator[list[np.ndarray]]:
        """Read texts as tokens, and average over the tokens of each word."""
        tokenizer = self.model.tokenizer
        num_prefix = tokenizer.build_inputs_with_special_tokens([-1])[0].index(-1)
        num_special = tokenizer.num_special_tokens_to_add()
        windows = [window for text, row in zip(texts, spans) for window in self._windows(text, row)]
        passages = [text for text, _ in windows]
        if not passages:
            return
        equal_dims = [[0]] if self.encoder is None else self._equal_dims(self.encoder)
        if len(equal_dims) == 1:
            states = [list(row.swapaxes(0, 1)) for row in self._embed(passages, "all")]
        else:
            states = list(map(list, zip(*(self._embed(passages, layer) for layer in self.layers))))
        for (text, row), layers in zip(windows, states):
            offsets = np.array(tokenizer.encode_with_offsets(text)[1]).reshape(-1, 2)
            num_tokens = len(layers[0]) - num_special
            if len(offsets) < num_tokens:
                raise DataError(f"a text contains the name of a special token of {self.model.path}: {text[:80]!r}")
            for span in row:
                pieces = num_prefix + _covering(offsets[:num_tokens], span, text)
                yield [layer[pieces].mean(0) for layer in layers]

    def _embed(self, texts: list[str], layers: str | int) -> list[np.ndarray]:
        vectors: list[np.ndarray] = self.model.embed(texts, layers=layers, granularity="token", truncate=True)
        return vectors

    def _equal_dims(self, encoder: FeatureEncoder) -> list[list[int]]:
        """Return the layers, or each by itself if their sizes differ."""
        dims = {encoder.layer_dims[layer] for layer in self.layers}
        return [self.layers] if len(dims) == 1 else [[layer] for layer in self.layers]

    def _windows(self, text: str, spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
        """Yield the text, or parts of a long one with words in their first three quarters, and the words in them."""
        assert isinstance(self.model, NeuralLM | WordVectors)
        room = min(self.model.max_len - self.model.tokenizer.num_special_tokens_to_add(), MAX_CONTEXT_TOKENS)
        if not spans:
            return
        offsets = np.array(self.model.tokenizer.encode_with_offsets(text)[1]).reshape(-1, 2)
        if len(offsets) <= room:
            yield text, list(spans)
            return
        remaining = list(spans)
        while remaining:
            first = int(_covering(offsets, remaining[0], text)[0])
            start = min(max(first - room // 2, 0), len(offsets) - room)
            is_last = start + room == len(offsets)
            begin, end = int(offsets[start, 0]), int(offsets[start + room - 1, 1])
            limit = end if is_last else int(offsets[start + 3 * room // 4, 0])
            inside = [span for span in remaining if span[1] <= limit] or remaining[:1]
            yield text[begin:end], [(left - begin, right - begin) for left, right in inside]
            remaining = remaining[len(inside) :]


def _covering(offsets: np.ndarray, span: Span, text: str) -> np.ndarray:
    """Return the tokens that cover a part of a word; at least one."""
    start, end = span
    tokens = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
    if not len(tokens):
        raise DataError(f"the model has no token for {text[start:end]!r} in {text[max(start - 40, 0) : end + 40]!r}")
    return tokens
