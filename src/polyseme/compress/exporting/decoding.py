"""Greedy generation with exported graphs, and the check that it equals that of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.compress.exporting.decoder_graph import CacheTensor, EncoderModel, StepModel
from polyseme.compress.exporting.evaluation import graph_network
from polyseme.compress.exporting.graph import GraphModule, GraphOutput
from polyseme.compress.exporting.verification import GraphRunner, relative_difference
from polyseme.compress.result import SAMPLE_TEXTS
from polyseme.errors import ConfigError, ModelError, UnsupportedError
from polyseme.generation.sample import generate_tokens
from polyseme.generation.session import generation_head, pack_inputs
from polyseme.generation.text import TextGenerator
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.trunks.recurrent import RecurrentTrunkConfig
from polyseme.nn.trunks.transformer import TransformerConfig

ENCODER, DECODER, MODEL = "encoder_model", "decoder_model", "model"
NUM_CHECKED_TOKENS, NUM_TIMED_TOKENS = 12, 8


def pad_ids(sequences: Sequence[Sequence[int] | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids [B, L] padded with 0, and the mask."""
    lengths = np.array([len(ids) for ids in sequences])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate([np.asarray(each, np.int64) for each in sequences])
    return ids, mask.astype(np.int64)


def generates_text(network: NeuralLM, head: str, cache: bool, supports_cache: bool = True) -> bool:
    """Return whether the graphs of a model generate text: with `cache`, or if it has an encoder and a decoder.

    Raise if they cannot.
    """
    name, where = generation_head(network.model), f"{network.path} ({network.model.config.family})"
    if network.is_seq2seq and name and head in ("", name):
        if not supports_cache:
            raise UnsupportedError(f"the decoder of {where} is exported to onnx only; `head` 'vectors' is the encoder")
        return True
    if not cache:
        return False
    if not name or head not in ("", name):
        reason = f"head {head!r} does not generate text" if head else f"{network.path} is {network.description}"
        raise ConfigError(f"`cache` is for a model that continues texts, but {reason}")
    trunk = network.model.config.trunk
    if trunk.has_query_stream or not isinstance(trunk, TransformerConfig | RecurrentTrunkConfig):
        raise UnsupportedError(f"the memory of {where} cannot be exported: export it without `cache`")
    return True


class GraphDecoder:
    """A batch of texts that exported graphs continue: the memory after the tokens that were read."""

    def __init__(
        self, modules: Mapping[str, Any], runners: Mapping[str, GraphRunner], sources: Sequence[Any], size: int
    ):
        self.step = modules[DECODER if DECODER in modules else MODEL]
        self.run = runners[DECODER if DECODER in modules else MODEL]
        self.past_mask = np.zeros((size, 0), np.int64)
        sizes = {"batch": size, "past": 0}
        self.memory = {each.input: _empty(each, sizes) for each in self.step.cache}
        self.source_mask = None
        if sources:
            ids, self.source_mask = pad_ids(sources)
            values = runners[ENCODER]({"input_ids": ids, "attention_mask": self.source_mask})
            outputs = dict(zip(modules[ENCODER].output_names, values))
            tensors = (*self.step.cache, *self.step.source_cache)
            self.memory |= {each.input: outputs[each.output] for each in tensors if each.output in outputs}

    def read(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Read the next tokens [B, L] of each text; return the logits after each."""
        feeds = {"input_ids": ids}
        if self.source_mask is not None:
            feeds["encoder_attention_mask"] = self.source_mask
        else:
            self.past_mask = mask if self.step.is_recurrent else np.concatenate([self.past_mask, mask], axis=1)
            feeds["attention_mask"] = self.past_mask
        logits, *memory = self.run(feeds | self.memory)
        self.memory |= {each.input: values for each, values in zip(self.step.cache, memory, strict=True)}
        return logits

    def generate(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, eos_ids: Sequence[int], suppressed: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Return the most likely tokens after each prompt, up to its end token."""
        ids, mask = pad_ids(prompts)
        logits = self.read(ids, mask)[np.arange(len(ids)), mask.sum(1) - 1]
        texts: list[list[int]] = [[] for _ in prompts]
        active = np.ones(len(prompts), bool)
        for step in range(num_tokens):
            logits[:, list(suppressed)] = -np.inf
            tokens = logits.argmax(1)
            active &= ~np.isin(tokens, list(eos_ids))
            for row in np.flatnonzero(active):
                texts[row].append(int(tokens[row]))
            if not active.any() or step + 1 == num_tokens:
                break
            logits = self.read(tokens[:, None], np.ones((len(tokens), 1), np.int64))[:, 0]
        return [tuple(tokens) for tokens in texts]


def _empty(tensor: CacheTensor, sizes: Mapping[str, int]) -> np.ndarray:
    return np.zeros([sizes[size] if isinstance(size, str) else size for size in tensor.shape], np.float32)


class DecodingGraphs:
    """The graphs that generate text: a language model with a cache, or an encoder and a decoder."""

    def __init__(self, network: NeuralLM):
        self.network, self.generator, step = network, TextGenerator.from_folder(network.folder), StepModel(network)
        self.modules: dict[str, GraphModule] = {MODEL: step}
        if network.is_seq2seq:
            self.modules = {ENCODER: EncoderModel(network), DECODER: step}
        self.step, self.max_len = step, network.max_len
        self.time_measure = f"ms for {NUM_TIMED_TOKENS} tokens"

    def describe(self) -> dict[str, Any]:
        """Return what a program has to know to generate text."""
        generator = self.generator
        return {
            "graphs": {n: {"inputs": m.input_names, "outputs": m.output_names} for n, m in self.modules.items()},
            "start_ids": list(generator.start_ids),
            "eos_ids": sorted(generator.eos_token_ids),
            "suppressed_ids": sorted(generator.suppress_tokens),
            "source_suffix_ids": list(generator.source_suffix),
            "cache": [asdict(each) for each in self.step.cache],
            "source_cache": [asdict(each) for each in self.step.source_cache],
        }

    def write_heads(self, folder: Path, graph_format: Any) -> None:
        """Write nothing: a graph that generates text runs without Polyseme."""

    @torch.inference_mode()
    def measure_difference(self, runners: Mapping[str, GraphRunner], shapes: Sequence[tuple[int, int]]) -> float:
        """Return the largest difference of logits, where a graph reads each batch in two chunks.

        Raise `ModelError` if greedy generation differs.
        """
        network, rng = self.network, np.random.default_rng(0)
        vocab_sizes = [t.vocab_size for t in (network.tokenizer, self.generator.target_tokenizer)]
        differences = []
        for batch_size, length in shapes:
            lengths = rng.integers(1, length + 1, batch_size)
            lengths[0] = length
            sources = [rng.integers(0, vocab_sizes[0], n) for n in lengths] if network.is_seq2seq else []
            sizes = [length] * batch_size if network.is_seq2seq else lengths.tolist()  # targets have no padding
            rows = [rng.integers(0, vocab_sizes[1], n) for n in sizes]
            inputs = pack_inputs(rows, network.model, sources or None)
            inputs = (
                replace(inputs, layout=inputs.layout.as_causal()) if network.model.config.trunk.is_hybrid else inputs
            )
            expected = network.model.predict(self.step.head, network.model.trunk(inputs).hidden, inputs.layout)
            ids, mask = pad_ids(rows)
            decoder, middle = GraphDecoder(self.modules, runners, sources, batch_size), (length + 1) // 2
            chunks = [slice(0, middle), slice(middle, length)][: 1 + (length > 1)]
            logits = np.concatenate([decoder.read(ids[:, each], mask[:, each]) for each in chunks], axis=1)
            differences.append(relative_difference(logits[mask.astype(bool)], expected))
        self._check_generation(runners)
        return float(np.max(differences))

    def _check_generation(self, runners: Mapping[str, GraphRunner]) -> None:
        """Raise `ModelError` if the graphs do not generate the tokens that the model generates."""
        prompts, sources = self._encode(SAMPLE_TEXTS[:3], [3, 6, 12])
        num_tokens = min(NUM_CHECKED_TOKENS, self.max_len - max(map(len, prompts)))
        expected = self._generate(prompts, sources, num_tokens)
        actual = self._run(runners, prompts, sources, num_tokens)
        if actual != expected:
            row = next(i for i, pair in enumerate(zip(actual, expected)) if pair[0] != pair[1])
            raise ModelError(
                f"the exported graph of {self.network.path} generates the tokens {list(actual[row])}, but the model "
                f"{list(expected[row])}: nothing was written; please report this"
            )

    def _encode(self, texts: Sequence[str], max_lens: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """Return prompts of at most these lengths, and sources."""
        generator, longest = self.generator, max(1, self.max_len // 2)
        limits = [min(n, longest) for n in max_lens]
        if not generator.is_seq2seq:
            return [generator.encode_prompt(text)[:n] for text, n in zip(texts, limits)], []
        sources = [[*generator.tokenizer.encode(text)[:n], *generator.source_suffix] for text, n in zip(texts, limits)]
        return [list(generator.start_ids) for _ in texts], sources

    def _generate(self, prompts: Any, sources: Any, num_tokens: int) -> list[tuple[int, ...]]:
        generator = self.generator
        hypotheses = generate_tokens(
            self.network.model,
            prompts,
            num_tokens,
            sources=sources or None,
            eos_token_ids=generator.eos_token_ids,
            suppress_tokens=generator.suppress_tokens,
        )
        return [hypothesis.tokens for hypothesis in hypotheses]

    def _run(
        self, runners: Mapping[str, GraphRunner], prompts: Any, sources: Any, num_tokens: int
    ) -> list[tuple[int, ...]]:
        decoder = GraphDecoder(self.modules, runners, sources, len(prompts))
        special_ids = sorted(self.generator.eos_token_ids), sorted(self.generator.suppress_tokens)
        return decoder.generate(prompts, num_tokens, *special_ids)

    def as_network(self, runners: Mapping[str, GraphRunner], min_len: int) -> NeuralLM:
        """Return a model whose predictions are those of the graph after an empty past."""

        def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            decoder = GraphDecoder(self.modules, runners, (), len(feeds["input_ids"]))
            return [decoder.read(feeds["input_ids"], feeds["attention_mask"])]

        return graph_network(self.network, [GraphOutput("logits", self.step.head, True)], run, min_len)

    def timed_readers(self, runners: Mapping[str, GraphRunner]) -> list[Callable[[str], object]]:
        """Return functions that generate tokens after a text: with the model, and with the graphs."""
        num_tokens = min(NUM_TIMED_TOKENS, self.max_len // 2)

        def generate(text: str) -> object:
            return self._generate(*self._encode([text], [self.max_len]), num_tokens)

        def run(text: str) -> object:
            return self._run(runners, *self._encode([text], [self.max_len]), num_tokens)

        return [generate, run]
