"""`NeuralLM`: a loaded neural network with its tokenizer."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyseme.errors import DataError, UnsupportedError
from polyseme.families import ALL_FAMILIES
from polyseme.generation.captions import ImageLike, caption_images, read_regions
from polyseme.generation.config import GenerationConfig
from polyseme.generation.session import generation_head, is_seq2seq
from polyseme.generation.text import TextGenerator
from polyseme.inference import likelihood, scoring
from polyseme.inference.base import Granularity, LanguageModel
from polyseme.inference.embedding import EncodedSequences, embed_sequences, embed_texts
from polyseme.inference.inspection.attention import Attention, AttentionInspector
from polyseme.inference.inspection.attribution import Attribution, AttributionInput, AttributionRequest, attribute_input
from polyseme.inference.inspection.attribution_targets import LanguageModelTarget, TaskTarget
from polyseme.inference.packed_model import MAX_BATCH_TOKENS, PackedModel, select_device
from polyseme.inference.prediction import encode_examples, predict
from polyseme.inference.results import ChoiceResult, EncodedText, LastWordScore, MaskPrediction, TextScore
from polyseme.io.atomic import ensure_new_directory
from polyseme.nn.model import Model
from polyseme.nn.trunks.image_text import ImageTextConfig
from polyseme.tasks import load_task
from polyseme.tasks.base import TaskConfig
from polyseme.text.arguments import check_count, check_path
from polyseme.text.tokenizer import Tokenizer
from polyseme.weights.folder import ModelFolder, save_model
from polyseme.weights.pooling import TextPooling


class NeuralLM(LanguageModel):
    """A neural network with its tokenizer; its heads decide which operations it supports."""

    def __init__(
        self,
        folder: ModelFolder,
        device: str | torch.device | None = None,
        max_batch_tokens: int = 0,
        tasks: Sequence[type[TaskConfig]] = (),
    ):
        super().__init__(folder.path)
        self.folder, self.tasks = folder, tasks
        self.device = select_device(device)
        self.model: Model = folder.model.to(self.device).eval()
        max_batch_tokens = max_batch_tokens or MAX_BATCH_TOKENS["cuda" if self.device.type == "cuda" else "cpu"]
        self._packed = PackedModel(self.model, folder.tokenizer, self.device, max_batch_tokens, folder.pooling)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.folder.tokenizer

    @property
    def max_len(self) -> int:
        """The longest text that the model reads, in tokens with special tokens."""
        return self._packed.max_len

    @property
    def max_text_tokens(self) -> int:
        return self._packed.max_pooled_len - self.tokenizer.num_special_tokens_to_add()

    @property
    def max_batch_tokens(self) -> int:
        """The number of tokens that the model reads at once; assign a smaller one if memory runs out."""
        return self._packed.max_batch_tokens

    @max_batch_tokens.setter
    def max_batch_tokens(self, value: int) -> None:
        self._packed = replace(self._packed, max_batch_tokens=check_count(value, "max_batch_tokens"))

    def _memory_advice(self) -> str:
        limit = self.max_batch_tokens
        return f"lower max_batch_tokens of the model from {limit} to {limit // 2}, or pass fewer or shorter texts"

    @property
    def bos_ids(self) -> list[int]:
        """The token that a causal model reads before a text, if there is one."""
        return self._packed.bos_ids

    @property
    def is_seq2seq(self) -> bool:
        return is_seq2seq(self.model)

    @property
    def is_masked_lm(self) -> bool:
        """Whether the model fills gaps in a text rather than continues it."""
        return "masked" in self.model.heads and "next" not in self.model.heads

    @property
    def has_pll_metric(self) -> bool:
        """Whether the score of a text is a pseudo-log-likelihood."""
        return "masked" in self.model.heads and not {"next", "previous"} & set(self.model.heads)

    @property
    def supports_pll_metric(self) -> bool:
        return "masked" in self.model.heads and (self.has_pll_metric or self.model.config.trunk.is_hybrid)

    @property
    def _fills_sentinels(self) -> bool:
        """Whether the model generates what a sentinel in its source stands for (T5)."""
        return self.is_seq2seq and bool(generation_head(self.model)) and bool(self.tokenizer.sentinel_ids)

    @property
    def description(self) -> str:
        heads = list(self.model.heads)
        named = f"the head{'s' * (len(heads) > 1)} {', '.join(heads)}" if heads else "no head"
        kind = "model" if self.model.trunk.is_differentiable else "graph for inference"
        return f"a {self.model.config.family} {kind} with {named}"

    @property
    def capabilities(self) -> tuple[str, ...]:
        heads = self.model.heads
        is_lm = "next" in heads and not self.is_seq2seq
        pretraining_heads = ALL_FAMILIES[self.model.config.family].pretraining_heads(self.model.config.trunk)
        has_task = bool({"task", "tasks"} & set(self.folder.metadata)) or not set(heads) <= set(pretraining_heads)
        task = self._load_task() if has_task and "tasks" not in self.folder.metadata else None
        predicts_tokens = not has_task and bool({"next", "masked"} & set(heads))
        supported = {
            "encode": True,
            "fill": "masked" in heads,
            "next_sentence": "pair" in heads,
            "score": is_lm or "previous" in heads or "masked" in heads or self._fills_sentinels,
            "score_last_words": is_lm or self.is_masked_lm,
            "rank_choices": is_lm or self.is_masked_lm,
            "generate": bool(generation_head(self.model)),
            "translate": bool(generation_head(self.model)) and self.is_seq2seq,
            "embed": True,
            "attention": self.model.config.trunk.has_attention and self.model.trunk.is_differentiable,
            "predict": has_task,
            "answer": task is not None and task.answers_questions,
            "attribute": predicts_tokens or (task is not None and task.codec.supports_attribution),
        }
        supported["attribute"] = supported["attribute"] and self.model.trunk.is_differentiable
        if isinstance(self.model.config.trunk, ImageTextConfig):  # no text without an image
            supported = {"encode": True, "caption": "next" in heads, "predict": has_task, "answer_image": has_task}
        return tuple(operation for operation, is_supported in supported.items() if is_supported)

    def save(self, out: str | Path, dtype: str = "float32") -> Path:
        path, folder = check_path(out, "a new folder"), self.folder
        if not self.model.trunk.is_differentiable:
            raise UnsupportedError(f"{self.path} is {self.description}: copy the folder")
        ensure_new_directory(path)
        folder.pooling.check()
        pooling = None if folder.pooling == TextPooling() else folder.pooling
        save_model(
            path, self.model, folder.tokenizer, folder.metadata, folder.target_tokenizer, pooling=pooling, dtype=dtype
        )
        return path

    def _encode(self, text: str, pair: str | None) -> EncodedText:
        ids, segments = (row.tolist() for row in self._packed.encode_sequence(text, pair))
        return EncodedText(self.tokenizer.convert_ids_to_tokens(ids), ids, segments, [1] * len(ids))

    @torch.inference_mode()
    def _fill(self, texts: Sequence[str], top_k: int) -> list[list[list[MaskPrediction]]]:
        encoded = [self._packed.encode_sequence(text) for text in texts]
        positions = [np.flatnonzero(ids == self.tokenizer.special_token_ids.mask) for ids, _ in encoded]
        for text, masks in zip(texts, positions):
            if not len(masks):
                raise DataError(f"there is no {self.tokenizer.mask_token} in {text!r}")
        predictions: list[list[list[MaskPrediction]]] = [[] for _ in texts]
        for index, inputs in self._packed.batches([ids for ids, _ in encoded], [segments for _, segments in encoded]):
            starts = np.cumsum([0, *inputs.layout.lengths])
            rows = torch.from_numpy(np.concatenate([start + positions[i] for start, i in zip(starts, index)]))
            text_of_row = iter(np.repeat(index, [len(positions[i]) for i in index]).tolist())
            for log_probs in self._packed.log_probs("masked", inputs, rows):
                best = log_probs.exp().topk(min(top_k, log_probs.shape[-1]))
                for ids, probs in zip(best.indices.tolist(), best.values.tolist()):
                    tokens = self.tokenizer.convert_ids_to_tokens(ids)
                    predictions[next(text_of_row)].append(list(map(MaskPrediction, tokens, probs)))
        return predictions

    @torch.inference_mode()
    def _next_sentence(self, first: str, second: str) -> float:
        ids, segments = self._packed.encode_sequence(first, second)
        ((_, inputs),) = self._packed.batches([ids], [segments])
        logits = self.model.predict("pair", self.model.trunk(inputs).hidden, inputs.layout)
        return float(logits.float().softmax(-1)[0, 0])

    @torch.inference_mode()
    def _score(self, texts: Sequence[str], pll_metric: str | None, spans: likelihood.Spans) -> list[TextScore]:
        if self.has_pll_metric or (pll_metric is not None and self.supports_pll_metric):
            metric = "original" if pll_metric is None else pll_metric
            return likelihood.score_masked(self._packed, texts, metric, spans)
        self._reject_pll_metric(pll_metric)
        if self._fills_sentinels:
            special_ids = self._text_generator.start_ids, self._text_generator.source_suffix
            return likelihood.score_span_corruption(self._packed, texts, spans, *special_ids)
        heads = [head for head in ("next", "previous") if head in self.model.heads]
        directions = [likelihood.score_causal(self._packed, texts, head, spans) for head in heads]
        return [
            replace(scores[0], log_prob=math.fsum(score.log_prob for score in scores) / len(scores))
            for scores in zip(*directions)
        ]

    @torch.inference_mode()
    def _score_last_words(self, texts: Sequence[tuple[str, str]]) -> list[LastWordScore]:
        score = scoring.score_masked_last_words if self.is_masked_lm else scoring.score_last_words
        return score(self._packed, texts)

    @torch.inference_mode()
    def _rank_choices(
        self, questions: Sequence[tuple[str, Sequence[str]]], normalization: str, context: str
    ) -> list[ChoiceResult]:
        return scoring.rank_choices(self._packed, questions, normalization, context, self.is_masked_lm)

    @cached_property
    def _text_generator(self) -> TextGenerator:
        return TextGenerator.from_folder(self.folder)

    def _caption(self, images: Sequence[ImageLike], config: GenerationConfig, features: Path | None) -> list[Any]:
        regions = read_regions(self.model.config, images, features)
        return caption_images(self._text_generator, regions, config)

    @torch.inference_mode()
    def _embed(
        self, texts: Sequence[str], layers: str | int, granularity: Granularity, truncate: bool
    ) -> np.ndarray | list[np.ndarray]:
        return embed_texts(self._packed, texts, layers, granularity, truncate)

    @property
    def packed_model(self) -> PackedModel:
        """The model as functions of packed batches take it."""
        return self._packed

    def embed_sequences(
        self, sequences: EncodedSequences, layers: str | int, granularity: Granularity
    ) -> np.ndarray | list[np.ndarray]:
        """Compute the vectors of texts that `encode_texts` encoded, maybe in several calls, as `embed` does."""
        return self._guard(self._embed_sequences)(sequences, layers, granularity)

    @torch.inference_mode()
    def _embed_sequences(
        self, sequences: EncodedSequences, layers: str | int, granularity: Granularity
    ) -> np.ndarray | list[np.ndarray]:
        return embed_sequences(self._packed, sequences, layers, granularity)

    @property
    def attention_inspector(self) -> AttentionInspector:
        """What reads a text and returns what attention computes."""
        has_decoder = self.is_seq2seq and bool(generation_head(self.model))
        return AttentionInspector(self._packed, self._text_generator if has_decoder else None)

    @torch.inference_mode()
    def _attention(self, text: str, pair: str | None, target: str | None) -> Attention:
        inspector = self.attention_inspector
        return inspector.attention(inspector.read(text, pair, target))

    def _load_task(self) -> TaskConfig:
        return load_task(self.folder.metadata, self.model.config, self.tasks)

    def _predict(self, examples: Sequence[Any]) -> list[Any]:
        task = self._load_task()
        return predict(self.folder, task.read(examples, needs_labels=False), task)

    def _attribute(self, requests: Sequence[AttributionRequest], method: str) -> list[Attribution]:
        return [attribute_input(self.attribution_input(request), method) for request in requests]

    def attribution_input(self, request: AttributionRequest) -> AttributionInput:
        """Return the input whose score is attributed: that of a task's answer, or of a predicted token."""
        if "predict" not in self.capabilities:
            generator = self._text_generator if self.is_seq2seq else None
            return LanguageModelTarget(self._packed, generator, self.path).build(request)
        task = self._load_task()
        encode = partial(encode_examples, self.folder, task)
        return TaskTarget(self.model, task, encode, self.tokenizer, self.path).build(request)
