"""Next-token prediction over documents, in either direction or both."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from polyseme.corpus.sampling import build_samples
from polyseme.corpus.store import Corpus
from polyseme.errors import ConfigError
from polyseme.nn.model import ModelConfig
from polyseme.objectives.base import Objective, text_capacity
from polyseme.objectives.batch import Batch
from polyseme.objectives.packing import BatchBuilder, SpecialIds, StaticShape, insert_ids, pack


@dataclass(frozen=True)
class CausalLM(Objective):
    """Next-token prediction: the input is `<bos> w1 … wn`, the labels are `w1 … wn <eos>`, split at `max_len`.

    Every token and the end of every document is predicted exactly once per epoch; a sequence that does not start its
    document starts with the token before its first label. GPT-2 has one token, `<|endoftext|>`, for both; a tokenizer
    without bos uses eos, one with neither BERT's [CLS] and [SEP]. Without `add_bos_eos`, as in GPT (2018), whose
    vocabulary has neither, the first token and the end of a document are not predicted. Departure from both: a sequence
    never continues into the next document.

    With `direction` "backward", the input is `w1 … wn <eos>` and the labels are `<bos> w1 … wn`: each token is
    predicted from those after it. With "both", the input has all tokens, and the states of each direction predict their
    own labels (Peters et al. 2018).
    """

    add_bos_eos: bool = True
    direction: Literal["forward", "backward", "both"] = "forward"

    @property
    def terms(self) -> tuple[str, ...]:
        return {"forward": ("next",), "backward": ("previous",), "both": ("next", "previous")}[self.direction]

    def check(self, model: ModelConfig, max_len: int) -> None:
        reads_both_sides = not (model.trunk.causal or model.trunk.is_hybrid or model.trunk.has_source)
        if self.direction == "forward" and reads_both_sides:
            advice = "" if "next" in model.heads else "; BERT's is causal with model.causal=true"
            sees = f"that of {model.family} sees the tokens it predicts"
            raise ConfigError(f"CausalLM needs a causal trunk, and {sees}{advice}")
        super().check(model, max_len)

    def bind(self, corpus: Corpus, special_ids: SpecialIds, max_len: int, seed: int = 0) -> BatchBuilder:
        return _CausalLMBatchBuilder(self, corpus, special_ids, max_len)


class _CausalLMBatchBuilder(BatchBuilder):
    def __init__(self, config: CausalLM, corpus: Corpus, special_ids: SpecialIds, max_len: int):
        is_bidirectional = config.direction == "both"
        capacity, num_end_tokens = text_capacity(max_len, is_bidirectional, 1), 1 if config.add_bos_eos else -1
        samples = build_samples(corpus, capacity, split_by="length", num_end_tokens=num_end_tokens)
        super().__init__(samples, max_len, int(is_bidirectional))
        self.config, self.corpus = config, corpus
        self.bos, self.eos = special_ids.require_bos_eos("CausalLM") if config.add_bos_eos else (0, 0)
        self.document_offsets = np.asarray(corpus.sentence_offsets)[np.asarray(corpus.document_offsets)]

    def batch(self, ids: np.ndarray, epoch: int, shape: StaticShape | None = None) -> Batch:
        samples = self.samples
        starts, sizes, document = samples.starts[ids], samples.lengths[ids], samples.document_ids[ids]
        if self.config.add_bos_eos:
            has_bos = starts == self.document_offsets[document]
            has_eos = starts + sizes > self.document_offsets[document + 1]
        else:  # the first token of a sequence is text too
            starts, has_bos, has_eos = starts + 1, np.zeros(len(ids), dtype=bool), np.zeros(len(ids), dtype=bool)
        # one token longer than the labels: forward, the input is all but its last token, the labels all but its first
        ends = np.cumsum(sizes + 1)
        first, last = ends - sizes - 1, ends - 1
        text = self.corpus.gather_tokens(starts - ~has_bos, sizes + 1 - has_bos - has_eos)
        extended, _ = insert_ids(text, (first[has_bos], self.bos), (last[has_eos], self.eos))
        all_but_last, all_but_first = np.delete(extended, last), np.delete(extended, first)
        rows = np.arange(len(extended))
        if self.config.direction == "both":
            labels = {
                "next": (np.delete(rows, last), all_but_first),
                "previous": (np.delete(rows, first), all_but_last),
            }
            return pack(extended, sizes + 1, shape, labels)
        rows = rows[: len(all_but_last)]
        if self.config.direction == "backward":
            return pack(all_but_first, sizes, shape, {"previous": (rows, all_but_last)})
        return pack(all_but_last, sizes, shape, {"next": (rows, all_but_first)})
