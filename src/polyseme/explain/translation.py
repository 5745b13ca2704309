"""How a translation was found: what each of its tokens looked at, and the beam as a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from polyseme.errors import DataError, UnsupportedError
from polyseme.generation.beam import BeamResult
from polyseme.generation.text import GenerationConfig, TextGenerator
from polyseme.inference.language_model import LanguageModel
from polyseme.nn.inputs import Inputs
from polyseme.nn.model import Model
from polyseme.nn.packing import EncoderInput, PackedLayout
from polyseme.report.html import escape, html_page, html_table, note

if TYPE_CHECKING:
    from polyseme.text.tokenizer import Tokenizer

MAX_TREE_NODES = 400  # nodes of a tree


@dataclass(frozen=True, eq=False)
class Alignment:
    """Pieces of a source and of its translation, and cross attention [layers, heads, target, source].

    Row i says where the model looked when it wrote piece i of the target, the end mark last. A model without attention
    has no layers here.
    """

    source_pieces: list[str]
    target_pieces: list[str]
    weights: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Over layers and heads: each row sums to one."""
        return self.weights.mean((0, 1))


@torch.inference_mode()
def align(generator: TextGenerator, source_ids: Sequence[int], target_ids: Sequence[int]) -> Alignment:
    """Where each token of a translation looked in its source."""
    model = generator.model
    assert isinstance(model, Model)
    trunk: Any = model.trunk
    device = next(model.parameters()).device
    decoder_ids = [*generator.start_ids, *target_ids]
    ids = torch.tensor(list(source_ids), device=device)
    tokens, layout = (
        torch.tensor(decoder_ids, device=device),
        PackedLayout.from_lengths([len(decoder_ids)], device=device),
    )
    source = EncoderInput(ids, PackedLayout.from_lengths([len(ids)], device=device))
    layers = trunk.cross_weights(Inputs(tokens, layout, source=source))
    maps = [sequences[0].float().cpu().numpy() for sequences in layers]
    eos_pieces = generator.target_tokenizer.convert_ids_to_tokens(sorted(generator.eos_token_ids))[:1]
    target_pieces = [*_display_pieces(generator.target_tokenizer, list(target_ids)), *eos_pieces]
    weights = np.stack(maps) if maps else np.zeros((0, 0, len(target_pieces), len(source_ids)), np.float32)
    return Alignment(_display_pieces(generator.tokenizer, list(source_ids)), target_pieces, weights)


def explain_translation(model: LanguageModel, text: str, num_beams: int = 4, length_penalty: float = 1.0) -> str:
    """A page of one translation, which needs no other file."""
    if not model.is_seq2seq:
        hint = "a model that writes a target for a source can be explained, such as transformer, seq2seq or t5"
        raise UnsupportedError(f"{model.path} cannot translate: {hint}")
    generator = TextGenerator.from_folder(model.folder)
    if not text.strip():
        raise DataError("there is nothing to translate: the text is empty")
    prefixes, sources = generator.encode_inputs([text], "")
    assert sources is not None
    search = GenerationConfig(0, num_beams=num_beams, length_penalty=length_penalty, num_return_sequences=num_beams)
    (beam,) = generator.search(prefixes, sources, search)
    alignment = align(generator, sources[0], beam.hypotheses[0].tokens)
    rows = [
        (
            generator.decode([], hypothesis.tokens),
            f"{hypothesis.score:.3f}",
            f"{hypothesis.normalized_score:.3f}",
            "" if hypothesis.is_finished else "cut off",
        )
        for hypothesis in beam.hypotheses
    ]
    heads = [
        f"<h3>layer {layer + 1}</h3><div class=side>"
        + "".join(
            _heatmap_svg(f"head {i + 1}", alignment, head_weights, 7, False) for i, head_weights in enumerate(per_head)
        )
        + "</div>"
        for layer, per_head in enumerate(alignment.weights)
    ]
    summary = escape(text) + " → <b>" + escape(generator.decode([], beam.hypotheses[0].tokens)) + "</b>"
    if heads:
        alignment_html = _heatmap_svg("", alignment, alignment.mean, 22, True) + note(
            "Cross attention, the mean over layers and heads: a row is a written token, and where it looked."
        )
    else:
        alignment_html = note("None: this model looks back at nothing; the source reached it as one vector.")
    sections = [
        ("Best translations", html_table(["translation", "log-probability", "by length", ""], rows)),
        ("Alignment", alignment_html),
        ("The beam", beam_tree_svg(beam, generator)
         + note(f"Width {num_beams}, length penalty {length_penalty:g}. A number is the log-probability up to there.")),
        *([("Cross attention by layer and head", "".join(heads))] if heads else []),
    ]  # fmt: skip
    return html_page(f"A translation by {model.path.name}", summary, sections)


def beam_tree_svg(beam: BeamResult, generator: TextGenerator) -> str:
    """The beam as a drawing: a column for each step, the way to the best text in colour."""
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
    omitted_note = (
        note(f"{len(beam.nodes) - MAX_TREE_NODES} nodes more are not drawn.")
        if len(beam.nodes) > MAX_TREE_NODES
        else ""
    )
    drawing = (
        f'<svg width="{width}" height="{height}" style="max-width:none" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(lines)}{''.join(labels)}</svg>"
    )
    return f'<div style="overflow-x:auto">{drawing}</div>{omitted_note}'


def _best_path(beam: BeamResult) -> set[int]:
    """The nodes of the best text: its end is the node that has its score."""
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
    """A matrix as a drawing; with `show_labels` the pieces stand at its sides."""
    rows, columns = weights.shape
    left, top = (
        9 * max(map(len, alignment.target_pieces), default=1) + 8,
        9 * max(map(len, alignment.source_pieces), default=1) + 8,
    )
    left, top = (left, top) if show_labels else (1, 1)
    parts = []
    for i in range(rows):
        for j in range(columns):
            weight = float(weights[i, j])
            title = f"{escape(alignment.target_pieces[i])} → {escape(alignment.source_pieces[j])}: {weight:.2f}"
            parts.append(
                f'<rect x="{left + j * cell_size}" y="{top + i * cell_size}" width="{cell_size}" height="{cell_size}" '
                f'fill="#2b6cb0" fill-opacity="{weight:.3f}"><title>{title}</title></rect>'
            )
        if show_labels:
            baseline = top + i * cell_size + cell_size * 0.7
            parts.append(f'<text x="{left - 5}" y="{baseline:.0f}" text-anchor="end" font-size="13">'
                         f"{escape(alignment.target_pieces[i])}</text>")  # fmt: skip
    for j in range(columns if show_labels else 0):
        x, y = left + j * cell_size + cell_size * 0.65, top - 5
        parts.append(f'<text x="{x:.0f}" y="{y}" font-size="13" transform="rotate(-90 {x:.0f} {y})">'
                     f"{escape(alignment.source_pieces[j])}</text>")  # fmt: skip
    frame_size = f'width="{columns * cell_size}" height="{rows * cell_size}"'
    frame = f'<rect x="{left}" y="{top}" {frame_size} fill="none" stroke="#dfe3ea"/>'
    size = f'width="{left + columns * cell_size + 2}" height="{top + rows * cell_size + 2}"'
    drawing = f'<svg {size} xmlns="http://www.w3.org/2000/svg">{"".join(parts)}{frame}</svg>'
    return f"<figure style='margin:.3rem 0'>{drawing}<figcaption class=note>{escape(caption)}</figcaption></figure>"


def _display_pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Pieces as one reads them: a space is a low line. Bytes that are no letter by themselves stay as they are."""
    decoded = [tokenizer.decode([i]) if tokenizer.is_byte_level else "" for i in ids]
    pieces = [
        text if text and "\ufffd" not in text else piece
        for text, piece in zip(decoded, tokenizer.convert_ids_to_tokens(ids))
    ]
    return [piece.replace("Ġ", "_").replace("▁", "_").replace(" ", "_") for piece in pieces]
