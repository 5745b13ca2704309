"""A text as a language model reads it, and the places where one of its heads predicts a token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyseme.errors import DataError, UnsupportedError
from polyseme.generation.config import GenerationConfig
from polyseme.generation.session import pack_inputs
from polyseme.generation.text import TextGenerator
from polyseme.inference.neural_lm import NeuralLM
from polyseme.inference.packed_model import inputs_for_head
from polyseme.nn.packing import Inputs, PackedLayout
from polyseme.text.tokenizer import Tokenizer

LMHeadName = Literal["masked", "next", "previous"]


@dataclass(frozen=True, eq=False)
class LMInput:
    """A text as ids with special tokens, and the positions where a head predicts a token.

    `targets` are the true tokens, None where there is none, as after the end of a text. A masked model reads one copy
    of the text for each position if `masks_in_turn`, with the token at that position masked.
    """

    network: NeuralLM
    head: LMHeadName
    ids: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    targets: Sequence[int | None]
    masks_in_turn: bool = False
    source: Sequence[int] | None = None  # of an encoder-decoder

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the ids: of the target if there is a source."""
        folder = self.network.folder
        return (folder.target_tokenizer if self.source is not None else None) or folder.tokenizer

    @property
    def tokens(self) -> list[str]:
        """The tokens in a readable form."""
        return self.tokenizer.display_tokens(self.ids.tolist())

    def batches(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield packed inputs, and the rows of their states that predict the next of the positions, in order."""
        model, device = self.network.model, self.network.device
        if not self.masks_in_turn:
            inputs = self.pack([self.ids])
            yield inputs_for_head(model, self.head, inputs, torch.from_numpy(self.positions).to(device))
            return
        mask_id = self.tokenizer.special_token_ids.mask
        copies_per_batch = max(self.network.max_batch_tokens // len(self.ids), 1)
        for start in range(0, len(self.positions), copies_per_batch):
            positions = self.positions[start : start + copies_per_batch]
            copies = np.tile(self.ids, (len(positions), 1))
            copies[np.arange(len(positions)), positions] = mask_id
            rows = torch.from_numpy(np.arange(len(positions)) * len(self.ids) + positions).to(device)
            yield inputs_for_head(model, self.head, self.pack(list(copies)), rows)

    def pack(self, rows: Sequence[np.ndarray]) -> Inputs:
        """Pack copies of the text, with segments if the model has them."""
        model = self.network.model
        if self.source is not None:
            return pack_inputs(rows, model, [self.source] * len(rows))
        tokens, segments = (
            torch.from_numpy(np.concatenate(parts)).to(self.network.device)
            for parts in (rows, [self.segments] * len(rows))
        )
        layout = PackedLayout.from_lengths([len(row) for row in rows], device=self.network.device)
        return model.config.trunk.omit_unsupported(Inputs(tokens, layout, segments))


def model_name(network: NeuralLM) -> str:
    """Return the name of a model for a title: that of its folder, or of the run that the folder belongs to."""
    path = network.path.absolute()
    return path.parent.name if path.name == "model" else path.name


def lm_heads(network: NeuralLM, text: str) -> list[LMHeadName]:
    """Return the heads that predict tokens of a text; a hybrid model predicts masks if there are any.

    The two directions of a bidirectional language model are two heads.
    """
    heads, tokenizer = network.model.heads, network.tokenizer
    has_mask = tokenizer.mask_token is not None and tokenizer.special_token_ids.mask in tokenizer.encode(text)
    if "masked" in heads and (has_mask or "next" not in heads):
        return ["masked"]
    directions: tuple[LMHeadName, ...] = ("next", "previous")
    return [name for name in directions if name in heads]


def read_text(network: NeuralLM, text: str, head: LMHeadName) -> LMInput:
    """Encode a text for a head: its masks, or each token masked in turn; the next or the previous token everywhere.

    An encoder-decoder reads the text as its source and predicts the target that it generates.
    """
    if network.is_seq2seq:
        return _read_source(network, text)
    if head == "masked":
        return _read_masked(network, text)
    ids = network.tokenizer.encode(text)
    if not ids:
        raise DataError(f"the text has no tokens: {text!r}")
    special_ids = network.tokenizer.special_token_ids
    ends = [i for i in (special_ids.text_boundaries[1], special_ids.bos) if i is not None][:1]
    ids = [*network.bos_ids, *ids] if head == "next" else [*ids, *ends]
    if len(ids) > network.max_len:
        problem = f"a text of {len(ids)} tokens is longer than the model reads ({network.max_len})"
        raise DataError(f"{problem}: {text[:40]!r}…")
    targets = [*ids[1:], None] if head == "next" else [None, *ids[:-1]]
    return LMInput(network, head, np.array(ids), np.zeros(len(ids), np.int64), np.arange(len(ids)), targets)


def _read_masked(network: NeuralLM, text: str) -> LMInput:
    encoded, special_ids = network.encode(text), network.tokenizer.special_token_ids
    if special_ids.mask is None:
        raise UnsupportedError("the tokenizer has no mask token, which masked prediction needs")
    ids, segments = np.array(encoded.input_ids), np.array(encoded.token_type_ids)
    if len(positions := np.flatnonzero(ids == special_ids.mask)):
        return LMInput(network, "masked", ids, segments, positions, [None] * len(positions))
    template, _ = network.tokenizer.build_inputs_with_special_tokens([-1])
    num_prefix, num_suffix = template.index(-1), len(template) - 1 - template.index(-1)
    positions = np.arange(num_prefix, len(ids) - num_suffix)
    return LMInput(network, "masked", ids, segments, positions, ids[positions].tolist(), masks_in_turn=True)


def _read_source(network: NeuralLM, text: str) -> LMInput:
    generator = TextGenerator.from_folder(network.folder)
    prompts, sources = generator.encode_inputs([text], "")
    assert sources is not None
    if not text.strip():
        raise DataError("the text is empty")
    (beam,) = generator.search(prompts, sources, GenerationConfig(0))
    ids = np.array([*generator.start_ids, *beam.hypotheses[0].tokens])
    num_start = len(generator.start_ids)
    positions = np.arange(num_start - 1, len(ids))
    eos_id = next(iter(generator.eos_token_ids), None) if beam.hypotheses[0].is_finished else None
    targets = [*ids[num_start:].tolist(), eos_id]
    return LMInput(network, "next", ids, np.zeros_like(ids), positions, targets, source=sources[0])
