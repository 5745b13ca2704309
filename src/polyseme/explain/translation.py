"""Explain a translation: the cross attention of each target token, and the tree of the beam search."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polyseme.errors import DataError, UnsupportedError
from polyseme.generation.beam import BeamResult
from polyseme.generation.config import GenerationConfig
from polyseme.generation.text import TextGenerator
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model
from polyseme.nn.packing import EncoderInput, Inputs, PackedLayout
from polyseme.report.html import escape, html_page, html_table, note
from polyseme.text.tokenizer import Tokenizer

MAX_TREE_NODES = 400  # nodes that are drawn


@dataclass(frozen=True, eq=False)
class Alignment:
    """Pieces of a source and of its translation, and cross attention [layers, heads, target, source].

    Row i is the distribution over the source when piece i of the target was predicted; EOS is the last piece. A model
    without attention has no layers.
    """

    source_pieces: list[str]
    target_pieces: list[str]
    weights: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The mean over layers and heads; each row sums to one."""
        return self.weights.mean((0, 1))


@torch.inference_mode()
def align(generator: TextGenerator, source_ids: Sequence[int], target_ids: Sequence[int]) -> Alignment:
    """Compute the cross attention of a translation."""
    model = generator.model
    assert isinstance(model, Model)
    trunk: Any = model.trunk
    device = next(model.parameters()).device

    def pack(ids: Sequence[int]) -> tuple[torch.Tensor, PackedLayout]:
        return torch.tensor(list(ids), device=device), PackedLayout.from_lengths([len(ids)], device=device)

    source = EncoderInput(*pack(source_ids))
    layers = trunk.cross_weights(Inputs(*pack([*generator.start_ids, *target_ids]), source=source))
    maps = [sequences[0].float().cpu().numpy() for sequences in layers]
    eos_pieces = generator.target_tokenizer.convert_ids_to_tokens(sorted(generator.eos_token_ids))[:1]
    target_pieces = [*_display_pieces(generator.target_tokenizer, target_ids), *eos_pieces]
    weights = np.stack(maps) if maps else np.zeros((0, 0, len(target_pieces), len(source_ids)), np.float32)
    return Alignment(_display_pieces(generator.tokenizer, source_ids), target_pieces, weights)


def explain_translation(model: NeuralLM, text: str, num_beams: int = 4, length_penalty: float = 1.0) -> str:
    """Translate a text and return a self-contained HTML page that explains the translation."""
    if not model.is_seq2seq:
        hint = "expected a sequence-to-sequence model such as transformer, seq2seq or t5"
        raise UnsupportedError(f"{model.path} cannot translate: {hint}")
    generator = TextGenerator.from_folder(model.folder)
    if not text.strip():
        raise DataError("there is nothing to translate: the text is empty")
    prefixes, sources = generator.encode_inputs([text], "")
    assert sources is not None
    config = GenerationConfig(0, num_beams=num_beams, length_penalty=length_penalty, num_return_sequences=num_beams)
    (beam,) = generator.search(prefixes, sources, config)
    alignment = align(generator, sources[0], beam.hypotheses[0].tokens)
    translations = [generator.decode([], hypothesis.tokens) for hypothesis in beam.hypotheses]
    rows = [
        (translation, f"{h.score:.3f}", f"{h.normalized_score:.3f}", "" if h.is_finished else "truncated")
        for translation, h in zip(translations, beam.hypotheses)
    ]
    layers = ""
    for i, layer in enumerate(alignment.weights, 1):
        heads = (_heatmap_svg(f"head {j}", alignment, head, 7, False) for j, head in enumerate(layer, 1))
        layers += f"<h3>layer {i}</h3><div class=side>{''.join(heads)}</div>"
    alignment_html = note("None: this model has no attention; it reads the source as one vector.")
    if layers:
        alignment_html = _heatmap_svg("", alignment, alignment.mean, 22, True)
        alignment_html += note("Cross attention, mean over layers and heads. A row is a target token.")
    tree_note = f"Beam size {num_beams}, length penalty {length_penalty:g}. Numbers are cumulative log-probabilities."
    sections = [
        ("Best translations", html_table(["translation", "log-probability", "by length", ""], rows)),
        ("Alignment", alignment_html),
        ("The beam", beam_tree_svg(beam, generator) + note(tree_note)),
        ("Cross attention by layer and head", layers),
    ]
    summary = f"{escape(text)} → <b>{escape(translations[0])}</b>"
    return html_page(f"A translation by {model.path.name}", summary, sections)


def beam_tree_svg(beam: BeamResult, generator: TextGenerator) -> str:
    """Draw the tree of a beam search: one column per step, with the path of the best hypothesis in color."""
    nodes = beam.nodes[:MAX_TREE_NODES]
    depth = [0] * len(nodes)
    for i, node in enumerate(nodes):
        depth[i] = depth[node.parent] + 1 if node.parent >= 0 else 0
    best = _best_path(beam)
    counts = [0] * (max(depth, default=0) + 1)
    places: list[tuple[float, float]] = []
    for level in depth:
        places.append((60 + 96 * level, 24 + 30 * counts[level]))
        counts[level] += 1
    width, height = 96 * len(counts) + 90, 30 * max(counts, default=1) + 24
    pieces = _display_pieces(generator.target_tokenizer, [node.token for node in nodes])
    lines, labels = [], []
    for i, (node, (x, y)) in enumerate(zip(nodes, places)):
        px, py = places[node.parent] if node.parent >= 0 else (-30.0, height / 2)
        color, stroke_width = ("#2b6cb0", 2.2) if i in best else ("#b8c0cc", 1)
        lines.append(
            f'<path d="M{px + 34:.0f} {py:.0f} C{px + 60:.0f} {py:.0f} {x - 60:.0f} {y:.0f} {x - 34:.0f} {y:.0f}" '
            f'fill="none" stroke="{color}" stroke-width="{stroke_width}"/>'
        )
        weight = ' font-weight="600"' if i in best else ""
        end = ' fill="#a33"' if node.token in generator.eos_token_ids else ""
        labels.append(
            f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" font-size="12"{weight}{end}>{escape(pieces[i])}</text>'
            f'<text x="{x:.0f}" y="{y + 11:.0f}" text-anchor="middle" font-size="9" fill="#5b6478">'
            f"{node.score:.2f}</text>"
        )
    num_omitted = len(beam.nodes) - len(nodes)
    omitted_note = note(f"{num_omitted} more nodes are not drawn.") if num_omitted else ""
    drawing = (
        f'<svg width="{width}" height="{height}" style="max-width:none" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(lines)}{''.join(labels)}</svg>"
    )
    return f'<div style="overflow-x:auto">{drawing}</div>{omitted_note}'


def _best_path(beam: BeamResult) -> set[int]:
    """Return the nodes of the best hypothesis; its last node is the one with its score."""
    best = beam.hypotheses[0]
    size = len(best.tokens) + best.is_finished
    for last in range(len(beam.nodes) - 1, -1, -1):
        path, node_index = [], last
        while node_index >= 0:
            path.append(node_index)
            node_index = beam.nodes[node_index].parent
        if len(path) == size and math.isclose(beam.nodes[last].score, best.score):
            return set(path)
    return set()


def _heatmap_svg(caption: str, alignment: Alignment, weights: np.ndarray, cell_size: int, show_labels: bool) -> str:
    """Draw a matrix; `show_labels` adds the pieces at its sides."""
    rows, columns = weights.shape
    target, source = (list(map(escape, pieces)) for pieces in (alignment.target_pieces, alignment.source_pieces))
    left = top = 1
    if show_labels:
        left, top = (9 * max(map(len, p), default=1) + 8 for p in (alignment.target_pieces, alignment.source_pieces))
    parts = []
    for i, j in np.ndindex(rows, columns):
        x, y = left + j * cell_size, top + i * cell_size
        parts.append(
            f'<rect x="{x}" y="{y}" width="{cell_size}" height="{cell_size}" fill="#2b6cb0" '
            f'fill-opacity="{weights[i, j]:.3f}"><title>{target[i]} → {source[j]}: {weights[i, j]:.2f}</title></rect>'
        )
    if show_labels:
        for i, piece in enumerate(target[:rows]):
            y = top + (i + 0.7) * cell_size
            parts.append(f'<text x="{left - 5}" y="{y:.0f}" text-anchor="end" font-size="13">{piece}</text>')
        for j, piece in enumerate(source[:columns]):
            x, y = left + (j + 0.65) * cell_size, top - 5
            rotation = f'transform="rotate(-90 {x:.0f} {y})"'
            parts.append(f'<text x="{x:.0f}" y="{y}" font-size="13" {rotation}>{piece}</text>')
    width, height = columns * cell_size, rows * cell_size
    frame = f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#dfe3ea"/>'
    size = f'width="{left + width + 2}" height="{top + height + 2}"'
    drawing = f'<svg {size} xmlns="http://www.w3.org/2000/svg">{"".join(parts)}{frame}</svg>'
    return f"<figure style='margin:.3rem 0'>{drawing}<figcaption class=note>{escape(caption)}</figcaption></figure>"


def _display_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return readable pieces: `_` for a space; bytes that are not a character by themselves stay as they are."""
    pieces = tokenizer.convert_ids_to_tokens(ids)
    if tokenizer.is_byte_level:
        decoded = [tokenizer.decode([i]) for i in ids]
        pieces = [text if text and "\ufffd" not in text else piece for text, piece in zip(decoded, pieces)]
    return [piece.replace("Ġ", "_").replace("▁", "_").replace(" ", "_") for piece in pieces]
