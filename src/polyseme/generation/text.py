"""Text generation: prompts to token ids, a search, and token ids to texts, whole or piece by piece."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.families import ALL_FAMILIES, text_start_id
from polyseme.generation.beam import BeamResult, beam_search
from polyseme.generation.config import GenerationConfig
from polyseme.generation.sample import GeneratedToken, generate_tokens, stream_tokens
from polyseme.generation.session import AutoregressiveModel, generation_head, is_seq2seq, max_positions
from polyseme.nn.model import Model
from polyseme.nn.packing import map_batches
from polyseme.report.notebook import NotebookResult
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import ModelFolder

MAX_CACHE_CELLS = {"cuda": 1 << 18, "cpu": 1 << 14}  # rows × columns of the buffers of one batch
Split = Callable[[str], list[str]]


@dataclass(frozen=True)
class GeneratedText(NotebookResult):
    """A generated text, its log-probability, and whether the model ended it."""

    text: str
    tokens: tuple[int, ...]
    score: float
    is_finished: bool


@dataclass(frozen=True)
class TranslatedText(NotebookResult):
    """A translation, its log-probability, and whether the model ended all of it."""

    text: str
    score: float
    is_finished: bool


@dataclass(frozen=True, eq=False)
class TextGenerator:
    """A model with its tokenizers and special tokens; `encode_prompt` adds the start token to a prompt.

    A sequence-to-sequence model generates a target after `start_ids` for a source that ends in `source_suffix`.
    """

    path: Path
    model: Model | AutoregressiveModel
    tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    encode_prompt: Callable[[str], list[int]]
    eos_token_ids: frozenset[int]
    suppress_tokens: frozenset[int]
    start_ids: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = ()
    is_seq2seq: bool = False

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Self:
        """The generator of a loaded folder; an error if its model cannot generate."""
        model, tokenizer, target_tokenizer = folder.model, folder.tokenizer, folder.target_tokenizer or folder.tokenizer
        if not generation_head(model):
            heads = ", ".join(model.heads) or "no head"
            problem = f"{model.config.family} with {heads} predicts no next token"
            raise UnsupportedError(f"{folder.path} cannot generate text: {problem}")
        special, source_special = target_tokenizer.special_token_ids, tokenizer.special_token_ids
        eos_ids = first_id(special.eos, special.sep)
        start_ids = first_id(text_start_id(model.config.family, special.text_boundaries))
        if is_seq2seq(model):
            start_ids = first_id(getattr(special, ALL_FAMILIES[model.config.family].decoder_start_token), *eos_ids)
        suppressed = target_tokenizer.all_special_ids - set(eos_ids) - set(target_tokenizer.sentinel_ids)
        ids = frozenset(eos_ids), frozenset(suppressed), start_ids, first_id(source_special.eos, source_special.sep)

        def encode_prompt(text: str) -> list[int]:
            return [*start_ids, *tokenizer.encode(text)]

        return cls(folder.path, model, tokenizer, target_tokenizer, encode_prompt, *ids, is_seq2seq(model))

    def encode_source(self, text: str) -> list[int]:
        """Encode a source with its end token."""
        return [*self.tokenizer.encode(text), *self.source_suffix]

    @property
    def max_source_len(self) -> int:
        """The longest source that the model reads, in tokens with the end token."""
        assert isinstance(self.model, Model)
        return self.model.config.trunk.embeddings.max_len

    def encode_inputs(self, prompts: Sequence[str], prefix: str) -> tuple[list[list[int]], list[list[int]] | None]:
        """Encode what a search starts from, and the sources of a sequence-to-sequence model."""
        if self.is_seq2seq:
            prefix_ids = self.target_tokenizer.encode(prefix) if prefix else []
            return [[*self.start_ids, *prefix_ids] for _ in prompts], [self.encode_source(prompt) for prompt in prompts]
        prompt_ids = [self.encode_prompt(prompt + prefix) for prompt in prompts]
        if not all(prompt_ids):
            raise DataError("the prompt is empty, and the model has no token that starts a text")
        return prompt_ids, None

    def search(
        self, prompt_ids: Sequence[list[int]], sources: Sequence[list[int]] | None, config: GenerationConfig
    ) -> list[BeamResult]:
        """Generate texts after each prompt, in batches of similar length.

        If `max_new_tokens` is 0, a target may have twice the tokens of its source and 20, if the model has room.
        """
        source_lengths = [len(ids) for ids in sources or [[]] * len(prompt_ids)]
        token_limits = self._token_limits(prompt_ids, source_lengths, config)
        is_on_gpu = isinstance(self.model, Model) and next(self.model.parameters()).is_cuda
        rows_per_prompt = config.num_beams or config.num_return_sequences
        sizes = [
            rows_per_prompt * (len(ids) + limit + size)
            for ids, limit, size in zip(prompt_ids, token_limits, source_lengths)
        ]

        def search_batch(index: np.ndarray) -> list[BeamResult]:
            batch_sources = None if sources is None else [sources[i] for i in index]
            limits = [token_limits[i] for i in index]
            return self._search_batch([prompt_ids[i] for i in index], batch_sources, config, limits)

        max_cells = MAX_CACHE_CELLS["cuda" if is_on_gpu else "cpu"]
        return map_batches(search_batch, sizes, max_cells, "generate", "texts", len(prompt_ids) > 50)

    def stream(
        self, prompt_ids: list[int], source: list[int] | None, config: GenerationConfig
    ) -> Iterator[list[GeneratedToken]]:
        """Yield the tokens after one prompt as they are generated, with the end token."""
        limits = self._token_limits([prompt_ids], [len(source or ())], config)
        sources, special = None if source is None else [source], (self.eos_token_ids, self.suppress_tokens)
        return stream_tokens(self.model, [prompt_ids], limits, config.sampling, sources, *special)

    def _token_limits(
        self, prompt_ids: Sequence[list[int]], source_lengths: Sequence[int], config: GenerationConfig
    ) -> list[int]:
        """Return the number of tokens that each prompt may get."""
        if config.max_new_tokens or not isinstance(self.model, Model):
            return [config.max_new_tokens] * len(source_lengths)
        room = max_positions(self.model) - max(map(len, prompt_ids), default=0)
        return [min(2 * size + 20, room) for size in source_lengths]

    def check_length_limit(self, config: GenerationConfig) -> None:
        """Raise `ConfigError` if nothing limits the length of a text."""
        if not config.max_new_tokens and not self.is_seq2seq:
            raise ConfigError("max_new_tokens is 0, and without a source nothing limits the length of a text")

    def _search_batch(
        self, prompt_ids: list[list[int]], sources: list[list[int]] | None, config: GenerationConfig, limits: list[int]
    ) -> list[BeamResult]:
        n = config.num_return_sequences
        if config.num_beams:
            beam_options = config.num_beams, config.length_penalty, n, sources, self.eos_token_ids, self.suppress_tokens
            patience, offset = config.patience, config.length_offset
            return beam_search(self.model, prompt_ids, limits, *beam_options, patience=patience, length_offset=offset)
        sources = None if sources is None else [ids for ids in sources for _ in range(n)]
        prompts, limits = [ids for ids in prompt_ids for _ in range(n)], [limit for limit in limits for _ in range(n)]
        options = {"suppress_tokens": self.suppress_tokens, "sample_indices": list(range(n)) * len(prompt_ids)}
        hypotheses = generate_tokens(
            self.model, prompts, limits, config.sampling, sources, self.eos_token_ids, **options
        )
        return [BeamResult(hypotheses[i : i + n], []) for i in range(0, len(hypotheses), n)]

    def decode(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        """Decode generated tokens as they read after their prompt."""
        return decode_continuation(self.target_tokenizer, [] if self.is_seq2seq else prompt_ids, token_ids)


def first_id(*ids: int | None) -> tuple[int, ...]:
    """Return the first id that is not None, if any."""
    return tuple(token_id for token_id in ids if token_id is not None)[:1]


def generate_texts(
    generator: TextGenerator, prompts: Sequence[str], config: GenerationConfig, prefix: str = ""
) -> list[list[GeneratedText]]:
    """Generate texts for each prompt, which is continued or read as a source; each text starts with `prefix`."""
    generator.check_length_limit(config)
    prompt_ids, sources = generator.encode_inputs(prompts, prefix)
    results = generator.search(prompt_ids, sources, config)
    return [
        [GeneratedText(generator.decode(ids, h.tokens), h.tokens, h.score, h.is_finished) for h in beam.hypotheses]
        for ids, beam in zip(prompt_ids, results)
    ]


def translate_texts(
    generator: TextGenerator, texts: Sequence[str], config: GenerationConfig, split: Split | None = None
) -> list[TranslatedText]:
    """Translate each text. An empty text has an empty translation; one that is too long is an error, or is split.

    `split` cuts a text into parts, whose translations are joined with spaces.
    """
    if not generator.is_seq2seq:
        raise UnsupportedError(f"{generator.path} cannot translate: it continues a text, and has no source")
    check_single_result(config, "a text has one translation")
    parts = [_split_source(generator, text, number, split) for number, text in enumerate(texts, 1)]
    prompt_ids, sources = generator.encode_inputs([part for each in parts for part in each], "")
    beams = iter(generator.search(prompt_ids, sources, config))
    translations = []
    for each in parts:
        hypotheses = [next(beams).hypotheses[0] for _ in each]
        text = " ".join(generator.decode([], h.tokens).strip() for h in hypotheses)
        is_finished = all(h.is_finished for h in hypotheses)
        translations.append(TranslatedText(text, sum(h.score for h in hypotheses), is_finished))
    return translations


def check_single_result(config: GenerationConfig, reason: str) -> None:
    """Raise `ConfigError` if several texts are requested where one is returned."""
    if config.num_return_sequences > 1:
        raise ConfigError(f"num_return_sequences is {config.num_return_sequences}, which has no effect: {reason}")


def _split_source(generator: TextGenerator, text: str, number: int, split: Split | None) -> list[str]:
    """Return a text, or its parts if it is longer than the model reads; none if it is empty."""
    limit = generator.max_source_len

    def longest(parts: list[str]) -> int:
        return max((len(generator.encode_source(part)) for part in parts), default=0)

    parts = [text.strip()] if text.strip() else []
    if (length := longest(parts)) <= limit:
        return parts
    location, remedy = "", "split it into sentences"
    if split is not None and not callable(split):
        raise ConfigError(f"split is {split!r}, expected a function that returns the parts of a text")
    if split is not None:
        parts = [part.strip() for part in split(text) if part.strip()]
        if (length := longest(parts)) <= limit:
            return parts
        location, remedy = " in a sentence", "shorten it"
    problem = f"text {number} has {length:,} tokens with its end token{location}"
    raise DataError(f"{problem}, and the model reads {limit}: {remedy}")


def stream_text(generator: TextGenerator, prompt: str, config: GenerationConfig, prefix: str = "") -> Iterator[str]:
    """Yield the text after one prompt piece by piece; an incomplete character is held back."""
    if config.num_beams or config.num_return_sequences > 1:
        raise ConfigError("a text can be streamed without num_beams, and with num_return_sequences 1")
    generator.check_length_limit(config)
    prompt_ids, sources = generator.encode_inputs([prompt], prefix)
    decoder = IncrementalDecoder(generator, prompt_ids[0])
    for ((_, token, _),) in generator.stream(prompt_ids[0], None if sources is None else sources[0], config):
        if token in generator.eos_token_ids:
            break
        if piece := decoder.push(token):
            yield piece
    if piece := decoder.finish():
        yield piece


class IncrementalDecoder:
    """The text of one sequence that grows by tokens; an incomplete character is held back."""

    def __init__(self, generator: TextGenerator, prompt_ids: Sequence[int]):
        self.generator, self.prompt_ids = generator, prompt_ids
        self.tokens: list[int] = []
        self.text = ""

    def push(self, token: int) -> str:
        """Add a token; return what it adds to the text, which may be empty."""
        self.tokens.append(token)
        return self._advance(holds_back=True)

    def finish(self) -> str:
        """Return what was held back."""
        return self._advance(holds_back=False)

    def _advance(self, holds_back: bool) -> str:
        text = self.generator.decode(self.prompt_ids, self.tokens)
        if not text.startswith(self.text) or (holds_back and text.endswith("\ufffd")):
            return ""
        piece, self.text = text[len(self.text) :], text
        return piece


def decode_continuation(tokenizer: Tokenizer, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """Decode tokens as they read after others: with the space between them, if there is one."""
    context_ids = list(prompt_ids)[-8:]
    context_text, full_text = tokenizer.decode(context_ids), tokenizer.decode([*context_ids, *token_ids])
    return full_text[len(context_text) :] if full_text.startswith(context_text) else tokenizer.decode(token_ids)
