"""Texts that a model writes: prompts to ids, a search, ids to texts; and text that comes piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyseme.config import Config
from polyseme.errors import ConfigError, DataError, UnsupportedError
from polyseme.families import FAMILIES
from polyseme.generation.beam import BeamResult, beam_search
from polyseme.generation.sample import GREEDY, Hypothesis, SamplingConfig, generate_tokens, stream_tokens
from polyseme.generation.session import AutoregressiveModel, generation_head, is_seq2seq
from polyseme.nn.model import Model
from polyseme.nn.packing import token_budget_batches
from polyseme.nn.trunks.encoder_decoder import EncoderDecoderConfig
from polyseme.progress import progress
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import ModelFolder

MAX_CACHE_CELLS = {"cuda": 1 << 18, "cpu": 1 << 14}  # rows × columns of the buffers of one batch


@dataclass(frozen=True)
class GeneratedText:
    """A text that a model wrote: its log-probability, and whether the model ended it."""

    text: str
    tokens: tuple[int, ...]
    score: float
    is_finished: bool


@dataclass(frozen=True)
class TranslatedText:
    """A translation: its log-probability, and whether the model ended all of it."""

    text: str
    score: float
    is_finished: bool


@dataclass(frozen=True)
class GenerationConfig(Config):
    """How texts are looked for: drawn one token after another, or by a beam if it has a width."""

    max_new_tokens: int = 100  # tokens; 0 goes by the length of the source
    sampling: SamplingConfig = GREEDY
    num_samples: int = 1  # texts drawn for each prompt
    num_beams: int = 0
    length_penalty: float = 1.0
    num_return_sequences: int = 1
    patience: float = 0.0  # 0 stops a beam when nothing better can come

    def __post_init__(self) -> None:
        self.check_range(1, math.inf, "num_samples", "num_return_sequences")
        self.check_range(0, math.inf, "max_new_tokens", "num_beams")
        if self.num_beams and (self.sampling != GREEDY or self.num_samples > 1):
            raise ConfigError("a beam search draws nothing: give a width, or how to sample")


@dataclass(frozen=True, eq=False)
class TextGenerator:
    """A model with its tokenizers and marks; `encode_prompt` turns a prompt into ids, with the mark that opens it.

    One that is `is_seq2seq` writes a target, behind its `start_ids`, for a source, which ends in `source_suffix`.
    """

    path: Path
    model: Model | AutoregressiveModel
    tokenizer: Tokenizer
    target_tokenizer: Tokenizer  # of what it writes
    encode_prompt: Callable[[str], list[int]]
    eos_token_ids: frozenset[int]
    suppress_tokens: frozenset[int]
    start_ids: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = ()
    is_seq2seq: bool = False

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> TextGenerator:
        """Told apart by what it reads: a beginning, or a source."""
        model, tokenizer = folder.model, folder.tokenizer
        if not generation_head(model):
            head_names = ", ".join(model.heads) or "no head"
            raise UnsupportedError(
                f"{folder.path} cannot write: {model.config.family} with {head_names} predicts no next token"
            )
        seq2seq, target_tokenizer = is_seq2seq(model), folder.target_tokenizer or tokenizer
        target_special_ids, source_special_ids = target_tokenizer.special_token_ids, tokenizer.special_token_ids
        eos_token_id = target_special_ids.sep if target_special_ids.eos is None else target_special_ids.eos
        eos_token_ids = frozenset(() if eos_token_id is None else (eos_token_id,))
        first_id = (
            getattr(target_special_ids, FAMILIES[model.config.family].decoder_start_token)
            if seq2seq
            else target_special_ids.bos
        )
        start_ids = tuple(token_id for token_id in (first_id, eos_token_id) if token_id is not None)[:1]
        source_suffix = tuple(
            token_id for token_id in (source_special_ids.eos, source_special_ids.sep) if token_id is not None
        )[:1]
        suppress_tokens = target_tokenizer.all_special_ids - eos_token_ids - set(target_tokenizer.sentinel_ids)

        def encode_prompt(text: str) -> list[int]:
            return [*start_ids, *tokenizer.encode(text)]

        return cls(
            folder.path,
            model,
            tokenizer,
            target_tokenizer,
            encode_prompt,
            eos_token_ids,
            frozenset(suppress_tokens),
            start_ids,
            source_suffix,
            seq2seq,
        )

    def encode_source(self, text: str) -> list[int]:
        """A source and its end mark."""
        return [*self.tokenizer.encode(text), *self.source_suffix]

    @property
    def max_lengths(self) -> tuple[int, int]:
        """How many tokens a source and a target may have, marks counted."""
        assert isinstance(self.model, Model)
        trunk = self.model.config.trunk
        decoder = trunk.decoder if isinstance(trunk, EncoderDecoderConfig) else None
        return trunk.embeddings.max_len, (decoder or trunk).embeddings.max_len

    def encode_inputs(self, prompts: Sequence[str], prefix: str) -> tuple[list[list[int]], list[list[int]] | None]:
        """What the searches are given: beginnings, and sources where the model reads those."""
        if self.is_seq2seq:
            prefix_ids = self.target_tokenizer.encode(prefix) if prefix else []
            return [[*self.start_ids, *prefix_ids] for _ in prompts], [self.encode_source(prompt) for prompt in prompts]
        prompt_ids = [self.encode_prompt(prompt + prefix) for prompt in prompts]
        if any(not ids for ids in prompt_ids):
            raise DataError("an empty prompt: this model has no mark that opens texts, so it needs a beginning")
        return prompt_ids, None

    def search(
        self, prompt_ids: Sequence[list[int]], sources: Sequence[list[int]] | None, config: GenerationConfig
    ) -> list[BeamResult]:
        """The texts behind each beginning; those of like length are searched together.

        With `token_limit` 0, a target may have twice the tokens of its source and 20, if there is room for them.
        """
        source_lengths = [len(ids) for ids in sources or [[]] * len(prompt_ids)]
        token_limits = [config.max_new_tokens] * len(source_lengths)
        if not config.max_new_tokens:
            max_target_tokens = self.max_lengths[1] - max(map(len, prompt_ids), default=0)
            token_limits = [min(2 * size + 20, max_target_tokens) for size in source_lengths]
        total_lengths = [
            len(ids) + token_limit + size for ids, token_limit, size in zip(prompt_ids, token_limits, source_lengths)
        ]
        rows_per_prompt = config.num_beams or config.num_samples
        on_gpu = isinstance(self.model, Model) and next(self.model.parameters()).is_cuda
        max_cells = MAX_CACHE_CELLS["cuda" if on_gpu else "cpu"]
        results: list[BeamResult | None] = [None] * len(prompt_ids)
        with progress("write", len(prompt_ids), "texts", show=len(prompt_ids) > 50) as bar:
            for index in token_budget_batches([size * rows_per_prompt for size in total_lengths], max_cells):
                batch_inputs = [prompt_ids[i] for i in index], None if sources is None else [sources[i] for i in index]
                for i, beam_result in zip(
                    index, self._search_batch(*batch_inputs, config, [token_limits[i] for i in index])
                ):
                    results[i] = beam_result
                bar.advance(len(index))
        return [beam_result for beam_result in results if beam_result is not None]

    def _search_batch(
        self,
        prompt_ids: list[list[int]],
        sources: list[list[int]] | None,
        config: GenerationConfig,
        token_limits: list[int],
    ) -> list[BeamResult]:
        model, num_samples = self.model, config.num_samples
        if config.num_beams:
            beam_settings = config.num_beams, config.length_penalty, config.num_return_sequences
            return beam_search(
                model,
                prompt_ids,
                token_limits,
                *beam_settings,
                sources,
                self.eos_token_ids,
                self.suppress_tokens,
                patience=config.patience,
            )
        repeated_prompts = [ids for ids in prompt_ids for _ in range(num_samples)]
        repeated_sources = None if sources is None else [ids for ids in sources for _ in range(num_samples)]
        sample_indices = list(range(num_samples)) * len(prompt_ids)
        token_limits = [token_limit for token_limit in token_limits for _ in range(num_samples)]
        hypotheses = generate_tokens(
            model,
            repeated_prompts,
            token_limits,
            config.sampling,
            repeated_sources,
            self.eos_token_ids,
            self.suppress_tokens,
            sample_indices,
        )
        return [BeamResult(hypotheses[i * num_samples : (i + 1) * num_samples], []) for i in range(len(prompt_ids))]

    def decode(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        """What was written, as it reads behind its beginning."""
        return decode_continuation(self.target_tokenizer, [] if self.is_seq2seq else prompt_ids, token_ids)

    def to_generated_text(self, prompt_ids: Sequence[int], hypothesis: Hypothesis) -> GeneratedText:
        return GeneratedText(
            self.decode(prompt_ids, hypothesis.tokens), hypothesis.tokens, hypothesis.score, hypothesis.is_finished
        )


def generate_texts(
    generator: TextGenerator, prompts: Sequence[str], config: GenerationConfig, prefix: str = ""
) -> list[list[GeneratedText]]:
    """What the model writes for each prompt: behind it, or for it as a source. A `prefix` is how each text begins."""
    if not config.max_new_tokens and not generator.is_seq2seq:
        raise ConfigError("max_new_tokens is 0, and without a source nothing says how long a text may get")
    prompt_ids, sources = generator.encode_inputs(prompts, prefix)
    results = generator.search(prompt_ids, sources, config)
    return [
        [generator.to_generated_text(ids, hypothesis) for hypothesis in beam_result.hypotheses]
        for ids, beam_result in zip(prompt_ids, results)
    ]


def translate_texts(
    generator: TextGenerator,
    texts: Sequence[str],
    config: GenerationConfig,
    split: Callable[[str], list[str]] | None = None,
) -> list[TranslatedText]:
    """A translation of each text. An empty text has an empty one; one that is too long is refused, or split.

    `split` cuts a text into parts, whose translations are joined with spaces.
    """
    if not generator.is_seq2seq:
        raise UnsupportedError(
            f"{generator.path} cannot translate: it goes on with a text, and does not write one for it"
        )
    limit = generator.max_lengths[0]
    text_parts: list[list[str]] = []
    for text_number, text in enumerate(texts, 1):
        segments = [text.strip()] if text.strip() else []
        for attempt in range(2):
            segment_lengths = [len(generator.encode_source(segment)) for segment in segments]
            if max(segment_lengths, default=0) <= limit:
                break
            if split is None or attempt:
                location, remedy = ("", "split it into sentences") if not attempt else (" in a sentence", "shorten it")
                length_text = f"{max(segment_lengths):,} tokens with its end mark{location}"
                raise DataError(f"text {text_number} has {length_text}, and the model reads {limit}: {remedy}")
            segments = [segment.strip() for segment in split(text) if segment.strip()]
        text_parts.append(segments)
    flat_segments = [segment for segments in text_parts for segment in segments]
    prompt_ids, sources = generator.encode_inputs(flat_segments, "")
    beam_results = iter(generator.search(prompt_ids, sources, config))
    translations = []
    for segments in text_parts:
        hypotheses = [next(beam_results).hypotheses[0] for _ in segments]
        text = " ".join(generator.decode([], hypothesis.tokens).strip() for hypothesis in hypotheses)
        translations.append(
            TranslatedText(
                text,
                sum(hypothesis.score for hypothesis in hypotheses),
                all(hypothesis.is_finished for hypothesis in hypotheses),
            )
        )
    return translations


def stream_text(generator: TextGenerator, prompt: str, config: GenerationConfig, prefix: str = "") -> Iterator[str]:
    """The text behind one prompt, piece by piece; a character that is not whole yet is held back."""
    if config.num_beams or config.num_samples > 1:
        raise ConfigError("a beam, or several copies, cannot be shown while it is written")
    prompt_ids, sources = generator.encode_inputs([prompt], prefix)
    steps = stream_tokens(
        generator.model,
        prompt_ids,
        config.max_new_tokens,
        config.sampling,
        sources,
        generator.eos_token_ids,
        generator.suppress_tokens,
    )
    tokens: list[int] = []
    emitted = ""
    for ((_, token, _),) in steps:
        if token in generator.eos_token_ids:
            break
        tokens.append(token)
        text = generator.decode(prompt_ids[0], tokens)
        if text.startswith(emitted) and not text.endswith("\ufffd") and text != emitted:
            yield text[len(emitted) :]
            emitted = text
    text = generator.decode(prompt_ids[0], tokens)
    if text.startswith(emitted) and text != emitted:
        yield text[len(emitted) :]


def decode_continuation(tokenizer: Tokenizer, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
    """The text of tokens as it stands behind others: with the space before it, if there is one."""
    context_ids = list(prompt_ids)[-8:]
    context_text, full_text = tokenizer.decode(context_ids), tokenizer.decode([*context_ids, *token_ids])
    return full_text[len(context_text) :] if full_text.startswith(context_text) else tokenizer.decode(token_ids)
