"""How a translation was found: what each of its tokens looked at, and the beam as a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from polyseme.errors import UserError
from polyseme.generation.beam import Found
from polyseme.generation.text import Search, Writer
from polyseme.inference.language_model import LanguageModel
from polyseme.nn.model import Model
from polyseme.nn.packing import Layout, Source
from polyseme.report.html import escape, note, page, table

if TYPE_CHECKING:
    from polyseme.text.tokenizer import Tokenizer

SHOWN = 400  # nodes of a tree


@dataclass(frozen=True, eq=False)
class Alignment:
    """Pieces of a source and of its translation, and cross attention [layers, heads, target, source].

    Row i says where the model looked when it wrote piece i of the target, the end mark last. A model without attention
    has no layers here.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Over layers and heads: each row sums to one."""
        return self.weights.mean((0, 1))


@torch.inference_mode()
def align(writer: Writer, source: Sequence[int], written: Sequence[int]) -> Alignment:
    """Where each token of a translation looked in its source."""
    model = writer.model
    assert isinstance(model, Model)
    trunk: Any = model.trunk
    device = next(model.parameters()).device
    target = [*writer.start, *written]
    ids = torch.tensor(list(source), device=device)
    tokens, layout = torch.tensor(target, device=device), Layout.of([len(target)], device=device)
    layers = trunk.cross_weights(tokens, layout, Source(ids, Layout.of([len(ids)], device=device)))
    maps = [sequences[0].float().cpu().numpy() for sequences in layers]
    ends = writer.target.pieces(sorted(writer.eos))[:1]
    shown = [*_bare(writer.target, list(written)), *ends]
    weights = np.stack(maps) if maps else np.zeros((0, 0, len(shown), len(source)), np.float32)
    return Alignment(_bare(writer.tokenizer, list(source)), shown, weights)


def explain_translation(model: LanguageModel, text: str, beams: int = 4, penalty: float = 1.0) -> str:
    """A page of one translation, which needs no other file."""
    if not model.sourced:
        can = "a model that writes a target for a source can be explained, such as transformer, seq2seq or t5"
        raise UserError(f"{model.path} cannot translate: {can}")
    writer = Writer.of(model.folder)
    if not text.strip():
        raise UserError("there is nothing to translate: the text is empty")
    beginnings, sources = writer.asked([text], "")
    assert sources is not None
    search = Search(0, beams=beams, penalty=penalty, best=beams)
    (found,) = writer.found(beginnings, sources, search)
    alignment = align(writer, sources[0], found.texts[0].tokens)
    rows = [(writer.text([], t.tokens), f"{t.score:.3f}", f"{t.value:.3f}", "" if t.finished else "cut off")
            for t in found.texts]  # fmt: skip
    heads = [
        f"<h3>layer {layer + 1}</h3><div class=side>"
        + "".join(_figure(f"head {i + 1}", alignment, one, 7, False) for i, one in enumerate(per_head))
        + "</div>"
        for layer, per_head in enumerate(alignment.weights)
    ]
    lead = escape(text) + " → <b>" + escape(writer.text([], found.texts[0].tokens)) + "</b>"
    if heads:
        aligned = _figure("", alignment, alignment.mean, 22, True) + note(
            "Cross attention, the mean over layers and heads: a row is a written token, and where it looked."
        )
    else:
        aligned = note("None: this model looks back at nothing; the source reached it as one vector.")
    sections = [
        ("Best translations", table(["translation", "log-probability", "by length", ""], rows)),
        ("Alignment", aligned),
        ("The beam", tree(found, writer)
         + note(f"Width {beams}, length penalty {penalty:g}. A number is the log-probability up to there.")),
        *([("Cross attention by layer and head", "".join(heads))] if heads else []),
    ]  # fmt: skip
    return page(f"A translation by {model.path.name}", lead, sections)


def tree(found: Found, writer: Writer) -> str:
    """The beam as a drawing: a column for each step, the way to the best text in colour."""
    nodes = found.nodes[:SHOWN]
    depth = [0] * len(nodes)
    for i, node in enumerate(nodes):
        depth[i] = depth[node.parent] + 1 if node.parent >= 0 else 0
    best = _way(found)
    counts = [0] * (max(depth, default=0) + 1)
    places: list[tuple[float, float]] = []
    for level in depth:
        places.append((60 + 96 * level, 24 + 30 * counts[level]))
        counts[level] += 1
    width, height = 96 * len(counts) + 90, 30 * max(counts, default=1) + 24
    pieces = _bare(writer.target, [node.token for node in nodes])
    lines, labels = [], []
    for i, (node, (x, y)) in enumerate(zip(nodes, places)):
        px, py = places[node.parent] if node.parent >= 0 else (-30.0, height / 2)
        colour, thick = ("#2b6cb0", 2.2) if i in best else ("#b8c0cc", 1)
        lines.append(
            f'<path d="M{px + 34:.0f} {py:.0f} C{px + 60:.0f} {py:.0f} {x - 60:.0f} {y:.0f} {x - 34:.0f} {y:.0f}" '
            f'fill="none" stroke="{colour}" stroke-width="{thick}"/>'
        )
        weight = ' font-weight="600"' if i in best else ""
        end = ' fill="#a33"' if node.token in writer.eos else ""
        labels.append(
            f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" font-size="12"{weight}{end}>{escape(pieces[i])}</text>'
            f'<text x="{x:.0f}" y="{y + 11:.0f}" text-anchor="middle" font-size="9" fill="#5b6478">'
            f"{node.score:.2f}</text>"
        )
    left = note(f"{len(found.nodes) - SHOWN} nodes more are not drawn.") if len(found.nodes) > SHOWN else ""
    drawing = (
        f'<svg width="{width}" height="{height}" style="max-width:none" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(lines)}{''.join(labels)}</svg>"
    )
    return f'<div style="overflow-x:auto">{drawing}</div>{left}'


def _way(found: Found) -> set[int]:
    """The nodes of the best text: its end is the node that has its score."""
    best = found.texts[0]
    size = len(best.tokens) + best.finished
    for last in range(len(found.nodes) - 1, -1, -1):
        way, at = [], last
        while at >= 0:
            way.append(at)
            at = found.nodes[at].parent
        if len(way) == size and math.isclose(found.nodes[last].score, best.score):
            return set(way)
    return set()


def _figure(name: str, alignment: Alignment, weights: np.ndarray, cell: int, named: bool) -> str:
    """A matrix as a drawing; with `named` the pieces stand at its sides."""
    rows, columns = weights.shape
    left, top = (9 * max(map(len, alignment.target), default=1) + 8, 9 * max(map(len, alignment.source), default=1) + 8)
    left, top = (left, top) if named else (1, 1)
    parts = []
    for i in range(rows):
        for j in range(columns):
            share = float(weights[i, j])
            title = f"{escape(alignment.target[i])} → {escape(alignment.source[j])}: {share:.2f}"
            parts.append(
                f'<rect x="{left + j * cell}" y="{top + i * cell}" width="{cell}" height="{cell}" fill="#2b6cb0" '
                f'fill-opacity="{share:.3f}"><title>{title}</title></rect>'
            )
        if named:
            parts.append(f'<text x="{left - 5}" y="{top + i * cell + cell * 0.7:.0f}" text-anchor="end" font-size="13">'
                         f"{escape(alignment.target[i])}</text>")  # fmt: skip
    for j in range(columns if named else 0):
        x, y = left + j * cell + cell * 0.65, top - 5
        parts.append(f'<text x="{x:.0f}" y="{y}" font-size="13" transform="rotate(-90 {x:.0f} {y})">'
                     f"{escape(alignment.source[j])}</text>")  # fmt: skip
    frame = f'<rect x="{left}" y="{top}" width="{columns * cell}" height="{rows * cell}" fill="none" stroke="#dfe3ea"/>'
    size = f'width="{left + columns * cell + 2}" height="{top + rows * cell + 2}"'
    drawing = f'<svg {size} xmlns="http://www.w3.org/2000/svg">{"".join(parts)}{frame}</svg>'
    return f"<figure style='margin:.3rem 0'>{drawing}<figcaption class=note>{escape(name)}</figcaption></figure>"


def _bare(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Pieces as one reads them: a space is a low line. Bytes that are no letter by themselves stay as they are."""
    read = [tokenizer.decode([i]) if tokenizer.byte_level else "" for i in ids]
    pieces = [text if text and "\ufffd" not in text else piece for text, piece in zip(read, tokenizer.pieces(ids))]
    return [piece.replace("Ġ", "_").replace("▁", "_").replace(" ", "_") for piece in pieces]
