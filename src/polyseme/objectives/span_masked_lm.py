"""Span masking with the span boundary objective (SpanBERT, Joshi et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from polyseme.errors import ConfigError
from polyseme.objectives.masked_lm import MaskedLMBatchBuilder, MaskingConfig
from polyseme.objectives.masking import MaskUnit, span_boundaries
from polyseme.objectives.packing import BatchBuilder, Labels, SpecialIds

if TYPE_CHECKING:
    from polyseme.corpus.store import Corpus


@dataclass(frozen=True)
class SpanMaskedLM(MaskingConfig):
    """Masked spans of words, and the span boundary objective (Joshi et al. 2020, §3).

    A masked token is predicted twice: from its own state, and from the states on both sides of its span together with
    its offset in the span.
    """

    terms: ClassVar[tuple[str, ...]] = ("masked", "boundary")
    mask_unit: MaskUnit = "span"
    max_span_offset: int = 20  # tokens deeper inside a span have no boundary term

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_unit not in ("ngram", "span"):
            raise ConfigError(
                f"mask_unit is {self.mask_unit!r}, expected 'ngram' or 'span', which keep both sides of a span"
            )

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _SpanMaskedLMBatchBuilder(self, corpus, special_ids, max_len, seed)


class _SpanMaskedLMBatchBuilder(MaskedLMBatchBuilder):
    def __init__(self, config: SpanMaskedLM, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int):
        super().__init__(config, corpus, special_ids, max_len, seed)
        self.max_span_offset = config.max_span_offset

    def build_labels(self, masked: Labels) -> dict[str, Labels]:
        around = span_boundaries(masked[0])
        is_near = around[:, 2] < self.max_span_offset
        return {"masked": masked, "boundary": (around[is_near], masked[1][is_near])}
