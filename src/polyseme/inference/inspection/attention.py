"""Attention weights of a model that reads a text: every layer and head, between tokens or between words."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.generation.config import GenerationConfig
from polyseme.generation.session import max_positions, pack_inputs
from polyseme.generation.text import TextGenerator
from polyseme.inference.packed_model import PackedModel
from polyseme.nn.attention.terms import AttentionTerms
from polyseme.nn.packing import Inputs
from polyseme.report.heatmap import Labels, heat_map
from polyseme.report.svg import standalone_svg
from polyseme.text.tokenizer import Tokenizer

MAX_HTML_TOKENS = 60  # of the heat map in a notebook


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The attention weights of one kind, `self`, `encoder`, `decoder` or `cross`, in all layers and heads.

    `weights` are float32 [layers, heads, queries, keys], and each row sums to one. `queries` and `keys` are tokens,
    with `_` for a space. `query_word_ids` has the index in `query_words` of each query's word; a special token
    counts as a word. The same holds for keys.
    """

    name: str
    queries: list[str]
    keys: list[str]
    weights: np.ndarray
    query_words: list[str]
    key_words: list[str]
    query_word_ids: list[int]
    key_word_ids: list[int]

    @property
    def num_layers(self) -> int:
        """Number of layers; a layer whose weights are shared with others counts by itself."""
        return self.weights.shape[0]

    @property
    def num_heads(self) -> int:
        """Number of heads of a layer."""
        return self.weights.shape[1]

    def merge_words(self) -> AttentionMap:
        """Merge tokens into words: attention to a word is the sum, attention from it the mean (Clark et al. 2019).

        >>> word_map = model.attention("the cat sat")["self"].merge_words()
        >>> word_map.queries
        ['[CLS]', 'the', 'cat', 'sat', '[SEP]']
        """
        query_sums = _membership(self.query_word_ids, len(self.query_words))
        weights = np.einsum(
            "lhij,qi,kj->lhqk",
            self.weights,
            query_sums / query_sums.sum(1, keepdims=True),
            _membership(self.key_word_ids, len(self.key_words)),
            optimize=True,
        )
        words = self.query_words, self.key_words
        word_ids = list(range(len(self.query_words))), list(range(len(self.key_words)))
        return AttentionMap(self.name, *words, weights.astype(np.float32), *words, *word_ids)

    def __repr__(self) -> str:
        return f"AttentionMap({self.name}: {_format_shape(self)})"

    def _repr_html_(self) -> str:
        """Show the mean of the heads of the last layer; of a long text, its first tokens."""
        queries, keys = self.queries[:MAX_HTML_TOKENS], self.keys[:MAX_HTML_TOKENS]
        title = f"{self.name}, layer {self.num_layers}, mean of {self.num_heads} heads"
        mean = self.weights[-1].mean(0)[: len(queries), : len(keys)]
        chart = standalone_svg(heat_map(mean, Labels(queries, keys, "query", "key"), cell_size=20))
        encoded = base64.b64encode(chart.encode()).decode()  # as an image, its style applies to nothing else
        image = f'<img alt="{title}" src="data:image/svg+xml;base64,{encoded}">'
        return f"<figure>{image}<figcaption>{title}</figcaption></figure>"


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention of a model that reads a text: one map, or those of an encoder-decoder in order of computation.

    A map is found by its name, as in `attention["self"]`.
    """

    maps: tuple[AttentionMap, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the maps: `self`, or some of `encoder`, `decoder` and `cross`."""
        return tuple(each.name for each in self.maps)

    def __getitem__(self, name: str) -> AttentionMap:
        if name not in self.names:
            raise ConfigError(f"there is no attention {name!r}; the maps are {', '.join(self.names)}")
        return self.maps[self.names.index(name)]

    def merge_words(self) -> Attention:
        """Merge tokens into words in every map; see `AttentionMap.merge_words`."""
        return Attention(tuple(each.merge_words() for each in self.maps))

    def __repr__(self) -> str:
        return f"Attention({'; '.join(f'{each.name}: {_format_shape(each)}' for each in self.maps)})"

    def _repr_html_(self) -> str:
        return "".join(each._repr_html_() for each in self.maps)


class LabeledTokens(NamedTuple):
    """Token ids of a sequence, what each is called, and the words that they belong to."""

    ids: list[int]
    tokens: list[str]
    word_ids: list[int]
    words: list[str]
    is_special: list[bool]

    @classmethod
    def from_ids(cls, tokenizer: Tokenizer, ids: Sequence[int]) -> LabeledTokens:
        """Label tokens that are words by themselves, such as special tokens."""
        tokens = tokenizer.display_tokens(ids)
        return cls(list(ids), tokens, list(range(len(tokens))), tokens, [i in tokenizer.all_special_ids for i in ids])

    @classmethod
    def from_text(cls, tokenizer: Tokenizer, text: str) -> LabeledTokens:
        """Encode a text without adding special tokens; words are what the pre-tokenizer splits."""
        ids, offsets = tokenizer.encode_with_offsets(text)
        tokens = tokenizer.display_tokens(ids)
        groups: dict[int, list[int]] = {}  # tokens of each word
        for i, word_id in enumerate(tokenizer.word_ids(text).tolist()):
            groups.setdefault(word_id, []).append(i)
        words, word_ids = [], [0] * len(ids)
        for number, members in enumerate(groups.values()):
            word = text[offsets[members[0]][0] : offsets[members[-1]][1]].strip()
            words.append(word or "".join(tokens[i] for i in members))
            for i in members:
                word_ids[i] = number
        return cls(ids, tokens, word_ids, words, [i in tokenizer.all_special_ids for i in ids])

    @classmethod
    def from_generated(cls, tokenizer: Tokenizer, ids: Sequence[int]) -> LabeledTokens:
        """Label generated tokens, with words if the text that they make is encoded in the same way."""
        labeled = cls.from_text(tokenizer, tokenizer.decode(ids, skip_special_tokens=False))
        return labeled if labeled.ids == list(ids) else cls.from_ids(tokenizer, ids)

    def join(self, other: LabeledTokens) -> LabeledTokens:
        """Append another sequence."""
        return LabeledTokens(
            [*self.ids, *other.ids],
            [*self.tokens, *other.tokens],
            [*self.word_ids, *(len(self.words) + word_id for word_id in other.word_ids)],
            [*self.words, *other.words],
            [*self.is_special, *other.is_special],
        )


class InspectedText(NamedTuple):
    """The inputs of a trunk for one text, and the labels of its tokens; those of the target if there is a decoder."""

    inputs: Inputs
    source: LabeledTokens
    target: LabeledTokens | None = None

    def labels(self, name: str) -> tuple[LabeledTokens, LabeledTokens]:
        """Return the labels of the queries and of the keys of a kind of attention."""
        if self.target is None or name == "encoder":
            return self.source, self.source
        return self.target, self.source if name == "cross" else self.target


@dataclass(frozen=True)
class AttentionInspector:
    """Reads texts and returns what attention computes; the generator of an encoder-decoder provides targets."""

    packed: PackedModel
    generator: TextGenerator | None = None

    def read(self, text: str, pair: str | None = None, target: str | Sequence[int] | None = None) -> InspectedText:
        """Encode a text as the model reads it; a target is a text, or token ids.

        The decoder reads its start token and the target, and predicts the token after each.
        """
        if self.generator is not None:
            if pair is not None:
                raise ConfigError("`pair` has no effect: an encoder-decoder reads one text as its source")
            return self._read_source_and_target(self.generator, text, target)
        if target is not None:
            raise ConfigError("`target` has no effect: the model has no decoder")
        ids, segments = self.packed.encode_sequence(text, pair)
        ((_, inputs),) = self.packed.batches([ids], [segments])
        tokenizer, parts = self.packed.tokenizer, {-1: text, -2: pair or ""}
        template, _ = tokenizer.build_inputs_with_special_tokens([-1], None if pair is None else [-2])
        sequence = LabeledTokens.from_ids(tokenizer, [])
        for slot in template:
            is_text = slot in parts
            part = (
                LabeledTokens.from_text(tokenizer, parts[slot])
                if is_text
                else LabeledTokens.from_ids(tokenizer, [slot])
            )
            sequence = sequence.join(part)
        return InspectedText(inputs, sequence)

    def _read_source_and_target(
        self, generator: TextGenerator, text: str, target: str | Sequence[int] | None
    ) -> InspectedText:
        tokenizer, target_tokenizer = generator.tokenizer, generator.target_tokenizer
        source = LabeledTokens.from_text(tokenizer, text)
        if not source.ids:
            raise DataError(f"the text has no tokens: {text!r}")
        source = source.join(LabeledTokens.from_ids(tokenizer, generator.source_suffix))
        self.packed.check_length(len(source.ids), text)
        start = LabeledTokens.from_ids(target_tokenizer, generator.start_ids)
        if target is None:
            (beam,) = generator.search([start.ids], [source.ids], GenerationConfig(max_new_tokens=0))
            target = beam.hypotheses[0].tokens
        if isinstance(target, str):
            read = start.join(LabeledTokens.from_text(target_tokenizer, target))
        else:
            read = start.join(LabeledTokens.from_generated(target_tokenizer, target))
        if len(read.ids) > (limit := max_positions(self.packed.model)):
            raise DataError(f"a target of {len(read.ids)} tokens is longer than the model reads ({limit})")
        return InspectedText(pack_inputs([read.ids], self.packed.model, [source.ids]), source, read)

    def terms(self, text: InspectedText) -> Iterator[tuple[str, AttentionTerms]]:
        """Yield the kind of each attention layer and what it computes, in order."""
        return self.packed.model.trunk.attention_terms(text.inputs)

    def attention(self, text: InspectedText) -> Attention:
        """Return the weights of all layers and heads."""
        weights: dict[str, list[np.ndarray]] = {}
        for name, terms in self.terms(text):
            weights.setdefault(name, []).append(_to_numpy(terms.weights))
        for name, layers in weights.items():
            if len(numbers := {len(layer) for layer in layers}) > 1:
                counts = f"from {min(numbers)} to {max(numbers)} heads in a layer"
                reason = "maps need the same number in all: prune heads with `uniform`, or with `pad`"
                raise UnsupportedError(f"the {name} attention of this pruned model has {counts}, and {reason}")
        order = [name for name in ("self", "encoder", "decoder", "cross") if name in weights]
        return Attention(tuple(_build_map(name, np.stack(weights[name]), *text.labels(name)) for name in order))


def _build_map(name: str, weights: np.ndarray, queries: LabeledTokens, keys: LabeledTokens) -> AttentionMap:
    words = queries.words, keys.words, queries.word_ids, keys.word_ids
    return AttentionMap(name, queries.tokens, keys.tokens, weights, *words)


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()


def _membership(word_ids: Sequence[int], num_words: int) -> np.ndarray:
    """Return a matrix [words, tokens] that is 1 where a token belongs to a word."""
    return (np.arange(num_words)[:, None] == np.asarray(word_ids)).astype(np.float64)


def _format_shape(attention_map: AttentionMap) -> str:
    layers, heads, queries, keys = attention_map.weights.shape
    return f"{layers} layers × {heads} heads, {queries} queries × {keys} keys"
