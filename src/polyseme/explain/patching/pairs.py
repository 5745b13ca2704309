"""Pairs of texts for activation patching: read from a file, encoded, checked, patched, and averaged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyseme.errors import DataError
from polyseme.explain.lm_input import LMInput, lm_heads, read_text
from polyseme.explain.patching.patch import Patching, patch_activations
from polyseme.inference.inspection.attribution_targets import find_single_token
from polyseme.inference.neural_lm import NeuralLM
from polyseme.tasks.readers.columns import Columns
from polyseme.tasks.readers.records import detect_record_format, open_records, parse_input, unknown_format
from polyseme.tasks.readers.rows import JsonRow, iter_records, read_rows


class PatchingPair(NamedTuple):
    """Two texts of the same number of tokens, and the two tokens whose logits are compared."""

    text: str
    text_b: str
    label: str
    contrast: str


@dataclass(frozen=True, eq=False)
class PatchedPairs:
    """The effects of patching in one or several pairs of the same length that predict at the same position."""

    pairs: list[PatchingPair]
    patchings: list[Patching]

    @property
    def components(self) -> list[str]:
        """What is patched: `residual`, `attention` and `ffn`, or `state`; the main one first."""
        return list(self.patchings[0].effects)

    @property
    def position(self) -> int:
        """The position that predicts."""
        return int(self.patchings[0].inputs[0].positions[-1])

    def layers(self, component: str) -> list[int]:
        """Return the numbers of the layers of a component."""
        return self.patchings[0].layers[component]

    def mean(self, component: str) -> np.ndarray:
        """Return the mean effects over all pairs, [layers, positions]."""
        return np.mean([patching.effects[component] for patching in self.patchings], axis=0)

    def std(self, component: str) -> np.ndarray:
        """Return the standard deviation of the effects over all pairs, [layers, positions]."""
        return np.std([patching.effects[component] for patching in self.patchings], axis=0)

    @property
    def differences(self) -> tuple[float, float]:
        """The mean logit differences of the first and of the second texts."""
        low, high = np.mean([patching.differences for patching in self.patchings], axis=0).tolist()
        return low, high

    @property
    def labels(self) -> list[str]:
        """The token of each position, or those of both texts where they differ; a triangle marks the prediction."""
        columns = [
            list(zip(*(patching.inputs[side].tokens for patching in self.patchings))) for side in range(2)
        ]  # [side][position][pair]
        labels = [_first(a) if a == b else f"{_first(a)} → {_first(b)}" for a, b in zip(*columns)]
        labels[self.position] += " ◂"
        return labels


def _first(tokens: Sequence[str]) -> str:
    """Return the token of the first pair at a position, with an ellipsis if others have another one."""
    return tokens[0] + ("/…" if len(set(tokens)) > 1 else "")


def read_pairs(source: str | Path) -> list[PatchingPair]:
    """Read pairs from a table or JSON lines with the columns `text`, `text_b`, `label` and `contrast`."""
    path, columns = parse_input(source, Columns())
    columns.reject(path, "pairs, whose columns have fixed names", "text", "pair", "label", "id")
    record_format = detect_record_format(path, columns)
    if not record_format:
        raise unknown_format(path)

    def build(record: dict[str, Any], location: str) -> PatchingPair:
        row = JsonRow(location, record)
        return PatchingPair(*(row.get(name) for name in PatchingPair._fields))

    return read_rows(path, iter_records(open_records(path, columns, record_format).rows, build))


def patch_pairs(network: NeuralLM, pairs: Sequence[PatchingPair]) -> PatchedPairs:
    """Patch the states of each pair; an error names the pair if there are several."""
    patchings: list[Patching] = []
    for number, pair in enumerate(pairs, 1):
        try:
            first, second, ids = _encode_pair(network, pair)
            if patchings:
                _check_alignment(patchings[0].inputs[0], first)
            patchings.append(patch_activations(first, second, ids))
        except DataError as error:
            raise DataError(f"pair {number}: {error}" if len(pairs) > 1 else str(error)) from None
    if not patchings:
        raise DataError("there is no pair of texts")
    return PatchedPairs(list(pairs), patchings)


def _encode_pair(network: NeuralLM, pair: PatchingPair) -> tuple[LMInput, LMInput, tuple[int, int]]:
    first, second = (_read(network, each) for each in (pair.text, pair.text_b))
    tokens = [" ".join(each.tokens) for each in (first, second)]
    if len(first.ids) != len(second.ids):
        sizes = f"{len(first.ids)} and {len(second.ids)} tokens"
        raise DataError(f"the texts have {sizes}, expected the same number: {tokens[0]!r} and {tokens[1]!r}")
    if (first.ids == second.ids).all():
        raise DataError(f"the two texts have the same tokens: {tokens[0]!r}")
    if first.head != second.head or first.positions[-1] != second.positions[-1]:
        raise DataError(f"the texts predict at different positions: {tokens[0]!r} and {tokens[1]!r}")
    ids = find_token(first, pair.text, pair.label), find_token(first, pair.text, pair.contrast)
    if ids[0] == ids[1]:
        raise DataError(f"{pair.label!r} and {pair.contrast!r} are the same token: choose two to compare")
    return first, second, ids


def _read(network: NeuralLM, text: str) -> LMInput:
    """Encode a text with one place where a token is predicted."""
    head = lm_heads(network, text)[0]
    lm_input = read_text(network, text, head)
    if head == "masked" and (lm_input.masks_in_turn or len(lm_input.positions) > 1):
        number, mask = 0 if lm_input.masks_in_turn else len(lm_input.positions), network.tokenizer.mask_token
        raise DataError(f"there are {number} {mask} in {text!r}, expected one: the token that is predicted")
    return lm_input


def _check_alignment(reference: LMInput, lm_input: LMInput) -> None:
    """Check that the positions of a pair can be averaged with those of the first one."""
    shapes = [(len(each.ids), int(each.positions[-1])) for each in (reference, lm_input)]
    if shapes[0] != shapes[1] or reference.head != lm_input.head:
        tokens = [" ".join(each.tokens) for each in (reference, lm_input)]
        problem = f"it has {shapes[1][0]} tokens and predicts at {shapes[1][1]}, the first pair {shapes[0][0]} and"
        raise DataError(f"{problem} {shapes[0][1]}, so they have no mean: {tokens[1]!r} and {tokens[0]!r}")


def find_token(lm_input: LMInput, text: str, word: str) -> int:
    """Return the id of a word that is one token where a text predicts one, or of an entry of the vocabulary."""
    tokenizer = lm_input.tokenizer
    if lm_input.head == "masked":
        before, _, after = text.partition(tokenizer.mask_token or "")
        return find_single_token(tokenizer, word, [(before, after)])
    return find_single_token(tokenizer, word, [(f"{text.rstrip()} ", ""), (text, "")])
