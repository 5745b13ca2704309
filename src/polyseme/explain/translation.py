"""Explain a translation: the cross attention of each target token, and the tree of the beam search."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from polyseme.generation.beam import BeamResult
from polyseme.generation.config import TRANSLATION, GenerationConfig
from polyseme.generation.session import pack_inputs
from polyseme.generation.text import TextGenerator
from polyseme.inference.neural_lm import NeuralLM
from polyseme.nn.model import Model
from polyseme.report.heatmap import Labels, heat_map
from polyseme.report.html import figure, html_table, key_figures, note
from polyseme.report.svg import shorten, svg_image, svg_text, text_width

MAX_TREE_NODES = 400  # nodes that are drawn
MAX_PIECE_CHARS = 24  # of a label in the tree
ALIGNMENT_CAPTION = (
    "Cross attention, mean over layers and heads: each row shows where the model looked when it predicted a target "
    "token. A dark diagonal means word-by-word translation, a dark cell far from it a change of word order."
)
TREE_CAPTION = (
    "One column per step, the best hypothesis in color. Numbers are cumulative log-probabilities: a path that "
    "leaves the beam early shows what the model considered and dropped."
)


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
    layers = trunk.attention_terms(pack_inputs([[*generator.start_ids, *target_ids]], model, [source_ids]))
    maps = [terms.weights.float().cpu().numpy() for name, terms in layers if name == "cross"]
    eos_pieces = generator.target_tokenizer.convert_ids_to_tokens(sorted(generator.eos_token_ids))[:1]
    target_pieces = [*generator.target_tokenizer.display_tokens(target_ids), *eos_pieces]
    weights = np.stack(maps) if maps else np.zeros((0, 0, len(target_pieces), len(source_ids)), np.float32)
    return Alignment(generator.tokenizer.display_tokens(source_ids), target_pieces, weights)


@dataclass(frozen=True, eq=False)
class ExplainedTranslation:
    """A translation with the parts of its page: figures at the top, sections, charts by name, and numbers."""

    best: str
    target_ids: Sequence[int]
    top: str
    sections: list[tuple[str, str]]
    figures: dict[str, str]
    table: tuple[list[str], list[tuple[str, ...]]]
    record: dict[str, Any]


def explain_translation(
    model: NeuralLM,
    text: str,
    num_beams: int = TRANSLATION.num_beams,
    length_penalty: float = TRANSLATION.length_penalty,
) -> ExplainedTranslation:
    """Translate a text and explain the translation: other candidates, alignment, and the tree of the beam search."""
    generator = TextGenerator.from_folder(model.folder)
    prefixes, sources = generator.encode_inputs([text], "")
    assert sources is not None
    beam_options = {"num_beams": num_beams, "num_return_sequences": num_beams, "length_penalty": length_penalty}
    config = GenerationConfig.from_options(TRANSLATION, beam_options)
    (beam,) = generator.search(prefixes, sources, config)
    best = beam.hypotheses[0]
    alignment = align(generator, sources[0], best.tokens)
    translations = [generator.decode([], hypothesis.tokens) for hypothesis in beam.hypotheses]
    header = ["translation", "log-probability", "by length", ""]
    rows = [
        (translation, f"{h.score:.3f}", f"{h.normalized_score:.3f}", "" if h.is_finished else "truncated")
        for translation, h in zip(translations, beam.hypotheses)
    ]
    key_values = [
        ("Log-probability", f"{best.score:.2f}", "" if best.is_finished else "truncated"),
        ("Per token", f"{best.score / max(len(alignment.target_pieces), 1):.2f}", "0 would be certain"),
        ("Tokens", f"{len(alignment.source_pieces)} → {len(alignment.target_pieces)}", "source and target"),
        ("Beam", str(num_beams), f"length penalty {length_penalty:g}"),
    ]
    charts = {"alignment": _alignment_chart(alignment), "beam": beam_tree_svg(beam, generator)}
    no_attention = note("None: this model has no attention; it reads the source as one vector.")
    sections = [
        ("Best translations", html_table(header, rows)),
        ("Alignment", figure(charts["alignment"], ALIGNMENT_CAPTION) or no_attention),
        ("The beam", figure(charts["beam"], TREE_CAPTION)),
    ]
    record = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "hypotheses": [
            {
                "text": translation,
                "score": h.score,
                "normalized_score": h.normalized_score,
                "is_finished": h.is_finished,
            }
            for translation, h in zip(translations, beam.hypotheses)
        ],
        "source": alignment.source_pieces,
        "target": alignment.target_pieces,
        "alignment": alignment.mean.tolist() if len(alignment.weights) else [],
    }
    charts = {name: chart for name, chart in charts.items() if chart}
    return ExplainedTranslation(
        translations[0],
        best.tokens,
        key_figures(key_values),
        sections,
        charts,
        (header[:3], [row[:3] for row in rows]),
        record,
    )


def _alignment_chart(alignment: Alignment) -> str:
    if not len(alignment.weights):
        return ""
    return heat_map(alignment.mean, Labels(alignment.target_pieces, alignment.source_pieces, "target", "source"))


def beam_tree_svg(beam: BeamResult, generator: TextGenerator) -> str:
    """Draw the tree of a beam search: one column per step, with the path of the best hypothesis in color."""
    nodes = beam.nodes[:MAX_TREE_NODES]
    levels = [0] * len(nodes)
    for i, node in enumerate(nodes):
        levels[i] = levels[node.parent] + 1 if node.parent >= 0 else 0
    pieces = [
        shorten(piece, MAX_PIECE_CHARS)
        for piece in generator.target_tokenizer.display_tokens([node.token for node in nodes])
    ]
    num_levels = max(levels, default=0) + 1
    widths = [44.0] * num_levels  # of the columns
    for level, piece in zip(levels, pieces):
        widths[level] = max(widths[level], text_width(piece) + 8)
    starts = [20 + sum(widths[:level]) + 36 * level for level in range(num_levels)]
    counts, places = [0] * num_levels, []
    for level in levels:
        places.append((starts[level], 24 + 34 * counts[level]))
        counts[level] += 1
    height, best = 34 * max(counts) + 16, _best_path(beam)
    lines, labels = [], []
    for i, (node, level, (x, y)) in enumerate(zip(nodes, levels, places)):
        parent_x, parent_y = 0.0, height / 2
        if node.parent >= 0:
            parent_x, parent_y = places[node.parent][0] + widths[level - 1], places[node.parent][1]
        style = "stroke:var(--s1);stroke-width:2.4" if i in best else "stroke:var(--line);stroke-width:1.2"
        middle = (parent_x + x) / 2
        curve = f"M{parent_x:.0f} {parent_y:.0f}C{middle:.0f} {parent_y:.0f} {middle:.0f} {y} {x:.0f} {y}"
        lines.append(f'<path d="{curve}" fill="none" style="{style}"/>')
        weight = ' font-weight="700"' if i in best else ""
        is_end = node.token in generator.eos_token_ids
        end_style = ' style="fill:var(--s2)"' if is_end else ""
        center = x + widths[level] / 2
        labels.append(svg_text(center, y + 4, pieces[i], "middle", weight + end_style))
        score_style = ' font-size="10" style="fill:var(--soft)"'
        labels.append(svg_text(center, y + 16, f"{node.score:.2f}", "middle", score_style))
    width = starts[-1] + widths[-1] + 12
    drawing = svg_image(width, height, "".join([*lines, *labels]), "tree of the beam search", scalable=False)
    num_omitted = len(beam.nodes) - len(nodes)
    return drawing + (note(f"{num_omitted} more nodes are not drawn.") if num_omitted else "")


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
