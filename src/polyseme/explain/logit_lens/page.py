"""`explain_logit_lens`: the page, the numbers and the figures of the logit lens."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polyseme.errors import ConfigError
from polyseme.explain.explanation import Explanation, PrintedTable
from polyseme.explain.lm_input import lm_heads, model_name, read_text
from polyseme.explain.logit_lens.lens import OUTPUT, LayerPredictions, decode_layers
from polyseme.explain.supported import supported_figures, unsupported
from polyseme.inference.base import LanguageModel
from polyseme.inference.load import load_neural
from polyseme.report.charts import Panel, Series, panel_chart
from polyseme.report.heatmap import Labels, heat_map
from polyseme.report.html import Html, escape, figure, html_page, html_table, key_figures, note, paragraph
from polyseme.report.svg import Axis, shorten

MAX_LINES = 6  # positions with a line of their own in the curves; more are summarized
MAX_PIECE_CHARS = 14  # of a token in a cell
PREDICTS = {"masked": "masked token", "next": "next token", "previous": "previous token"}
STYLE = """
.lens td{padding:0;text-align:center;min-width:2.6rem}.lens th{padding:.3rem .5rem .3rem 0}
.lens thead th{text-align:center}
.lens button{font:inherit;font-size:.86rem;color:inherit;background:none;border:0;padding:.3rem .35rem;width:100%;
cursor:pointer;white-space:nowrap}
.lens button:hover,.lens button:focus,.lens button[aria-pressed=true]{outline:2px solid var(--ink);outline-offset:-2px}
.best{position:sticky;top:0;background:var(--paper);z-index:2;padding:.4rem 0;border-bottom:1px solid var(--line)}
.best p{margin:0 0 .2rem}.best ol{margin:0;padding:0;list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}
.lens .sticky th:first-child{z-index:1}
"""
SCRIPT = """
for(const lens of document.querySelectorAll(".lens")){
 const data=JSON.parse(lens.querySelector("script").textContent),buttons=[...lens.querySelectorAll("button")];
 const size=data.layers.length,list=lens.querySelector("ol"),heading=lens.querySelector(".best p");
 let current=size-1;
 function show(i){const row=Math.floor(i/size),layer=i%size;
  buttons[current].tabIndex=-1;buttons[current].setAttribute("aria-pressed","false");
  current=i;buttons[i].tabIndex=0;buttons[i].setAttribute("aria-pressed","true");
  heading.textContent=data.labels[row]+", "+data.layers[layer]+":";
  list.replaceChildren(...data.top[row][layer].map(([token,share])=>{const item=document.createElement("li");
   const name=document.createElement("b");name.textContent=token;item.append(name," "+share);return item;}));}
 buttons.forEach((button,i)=>{button.addEventListener("mouseenter",()=>show(i));
  button.addEventListener("focus",()=>show(i));button.addEventListener("click",()=>{show(i);button.focus();});
  button.addEventListener("keydown",event=>{
   const step={ArrowLeft:-1,ArrowRight:1,ArrowUp:-size,ArrowDown:size}[event.key];
   if(step&&buttons[i+step]){event.preventDefault();buttons[i+step].focus();}});});
}
"""
CAVEAT = (
    "The lens skips the layers above: it shows what the head would say if this layer were the last. Low layers may "
    "hold information in a form that only later layers turn into a prediction, so what the lens does not show may "
    "still be there (Belrose et al. 2023)."
)


def explain_logit_lens(model: LanguageModel, text: str, *, top_k: int = 5) -> Explanation:
    """Show what each layer of a language model would predict (logit lens; nostalgebraist 2020).

    The states of each layer go through the final norm and the head. A masked model predicts the masks of the text, or
    without one each token, masked in turn; a causal model the next token everywhere; an encoder-decoder reads the text
    as its source and predicts the target that it generates.

    >>> explanation = explain_logit_lens(model, "the [MASK] sat")
    >>> [len(head["layers"]) for head in explanation.record["heads"]]
    [4]
    """
    if top_k < 1:
        raise ConfigError(f"top_k is {top_k}, expected 1 or more")
    if "logit_lens" not in supported_figures(model):
        unsupported(model, "logit_lens")
    network = load_neural(model)
    views = [decode_layers(read_text(network, text, head), top_k) for head in lm_heads(network, text)]
    figures, sections, tables, suffix = {}, [], [], ""
    for view in views:
        suffix = f"-{view.lm_input.head}" if len(views) > 1 else ""
        figures[f"grid{suffix}"], figures[f"curves{suffix}"] = _grid_figure(view), _curves(view)
        sections += _sections(view, figures[f"curves{suffix}"], len(views) > 1)
        tables += _printed_tables(view)
    sections.append(("How to read it", paragraph(CAVEAT)))
    lead = f'<span dir="auto">{escape(text)}</span>'
    title, script = f"What each layer of {model_name(network)} would predict", f"<script>{SCRIPT}</script>"
    page = html_page(title, lead, sections, _key_figures(views[0]) + f"<style>{STYLE}</style>", script)
    record = {
        "figure": "logit_lens",
        "model": model_name(network),
        "family": network.model.config.family,
        "text": text,
        "heads": [_record(view) for view in views],
    }
    return Explanation(page, record, figures, " ".join(map(_summary, views)), tables)


def _layer_name(name: str) -> str:
    return {"0": "embeddings", OUTPUT: OUTPUT}.get(name, f"layer {name}")


def _pieces(view: LayerPredictions, ids: np.ndarray) -> list[str]:
    return view.lm_input.tokenizer.display_tokens(ids.tolist())


def _labels(view: LayerPredictions) -> list[str]:
    """Return the token at each position where there is a prediction."""
    tokens = view.lm_input.tokens
    return [tokens[position] for position in view.lm_input.positions]


def _median_layer(view: LayerPredictions) -> str:
    """Return the name of the layer from which the prediction no longer changes at half of the positions."""
    return _layer_name(view.layers[int(np.quantile(view.settled_layers, 0.5, method="lower"))])


def _summary(view: LayerPredictions) -> str:
    places = len(view.lm_input.positions)
    where = "at half of the positions, the" if places > 1 else "the"
    kind = PREDICTS[view.lm_input.head]
    summary = f"{where} prediction of the {kind} no longer changes from {_median_layer(view)} on"
    return f"{summary[0].upper()}{summary[1:]}.{_skipped_note(view)}"


def _skipped_note(view: LayerPredictions) -> str:
    """Say which layers the head cannot read."""
    if not view.skipped:
        return ""
    sizes = ", ".join(f"{_layer_name(str(depth))} ({size})" for depth, size in view.skipped.items())
    dim = view.lm_input.network.model.config.trunk.dim
    return f" Not decoded, because the head reads {dim} features: {sizes}."


def _key_figures(view: LayerPredictions) -> str:
    num_agreeing = (view.top_ids[-1, :, 0] == np.array([-1 if t is None else t for t in view.lm_input.targets])).sum()
    num_targets, places = sum(target is not None for target in view.lm_input.targets), len(view.lm_input.positions)
    figures = [
        (
            "Settled from",
            _median_layer(view),
            "half of the predictions no longer change" if places > 1 else "the prediction no longer changes",
        ),
        ("Positions", places, f"with a prediction of the {PREDICTS[view.lm_input.head]}"),
        ("Layers", len(view.layers), "decoded, with the embeddings"),
    ]
    if num_targets and view.lm_input.source is None:
        figures.append(("Right", f"{num_agreeing} of {num_targets}", "predictions of the last layer"))
    return key_figures(figures)


def _sections(view: LayerPredictions, curves: str, name_head: bool) -> list[tuple[str, str]]:
    suffix = f": {PREDICTS[view.lm_input.head]}" if name_head else ""
    caption = (
        "By layer: the probability and the rank of the token that the last layer predicts, and the divergence of the "
        "layer's distribution from the last one (0: the same)."
    )
    if len(view.lm_input.positions) > MAX_LINES:
        caption += f" Median and quartiles of {len(view.lm_input.positions)} positions."
    return [
        (f"The best token of each layer{suffix}", _explain_input(view) + _grid(view)),
        (f"From layer to layer{suffix}", figure(curves, caption)),
        (f"Predictions{suffix}", _prediction_table(view)),
    ]


def _explain_input(view: LayerPredictions) -> str:
    lm_input = view.lm_input
    kinds = {
        "masked": f"Each row is a {lm_input.tokenizer.mask_token} of the text.",
        "next": "Each row is a token that the model has read, and its cells predict the next one.",
        "previous": "The model reads from right to left: the cells of a token predict the one before it.",
    }
    text = kinds[lm_input.head]
    if lm_input.masks_in_turn:
        text = (
            f"The text has no {lm_input.tokenizer.mask_token}: each token is masked in turn, so that the model does "
            "not see the token that it predicts."
        )
    if lm_input.source is not None:
        text = "The decoder reads the target that the model generates for this source; cells predict the next token."
    shades = " The darker a cell, the more probable its token; bold: the final prediction." + _skipped_note(view)
    return paragraph(text + shades + " Point at a cell, or use Tab and the arrow keys, to see the best tokens.")


def _grid(view: LayerPredictions) -> str:
    """Render the grid as a table of buttons, which the script connects to the list of the best tokens."""
    labels, num_layers = _labels(view), len(view.layers)
    pieces = [_pieces(view, ids) for ids in view.top_ids.reshape(-1, view.top_ids.shape[-1])]  # [layers · positions]
    top = [
        [
            [
                (piece, f"{prob:.2%}")
                for piece, prob in zip(pieces[layer * len(labels) + row], view.top_probs[layer, row])
            ]
            for layer in range(num_layers)
        ]
        for row in range(len(labels))
    ]
    head = "".join(f'<th scope="col">{escape(_short_name(name))}</th>' for name in view.layers)
    rows = []
    for row, label in enumerate(labels):
        cells = []
        for layer in range(num_layers):
            piece, share = escape(shorten(top[row][layer][0][0], MAX_PIECE_CHARS)), view.top_probs[layer, row, 0]
            is_final = view.top_ids[layer, row, 0] == view.top_ids[-1, row, 0]
            content = f"<b>{piece}</b>" if is_final else piece
            is_first = row == 0 and layer == num_layers - 1
            state = f'tabindex="{0 if is_first else -1}" aria-pressed="{"true" if is_first else "false"}"'
            button = f'<button type="button" {state}>{content}</button>'
            cells.append(f'<td class="heat" style="--share:{100 * share:.3g}%">{button}</td>')
        rows.append(f'<tr><th scope="row">{escape(shorten(label, MAX_PIECE_CHARS))}</th>{"".join(cells)}</tr>')
    encoded = json.dumps({"labels": labels, "layers": list(map(_layer_name, view.layers)), "top": top}).replace(
        "<", "\\u003c"
    )
    first = "".join(f"<li><b>{escape(piece)}</b> {share}</li>" for piece, share in top[0][-1])
    return (
        f'<div class="lens wide"><div class="best" aria-live="polite"><p>{escape(labels[0])}, '
        f'{_layer_name(view.layers[-1])}:</p><ol>{first}</ol></div><div class="scroll sticky"><table><thead><tr>'
        f"<th>layer</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<script type="application/json">{encoded}</script></div>'
    )


def _short_name(name: str) -> str:
    return {"0": "embed.", OUTPUT: OUTPUT}.get(name, name)


def _grid_figure(view: LayerPredictions) -> str:
    """Draw the grid for a file of its own."""
    texts = [[shorten(piece, MAX_PIECE_CHARS) for piece in _pieces(view, ids)] for ids in view.top_ids[:, :, 0].T]
    labels = Labels(_labels(view), list(map(_short_name, view.layers)), "token", "layer")
    return heat_map(view.top_probs[:, :, 0].T, labels, texts=texts)


def _curves(view: LayerPredictions) -> str:
    """Draw probability, rank and divergence by layer, for each position or as median and quartiles."""
    xs = [len(view.layers) - 1 + len(view.skipped) if name == OUTPUT else int(name) for name in view.layers]
    final_pieces = [shorten(piece, MAX_PIECE_CHARS) for piece in _pieces(view, view.top_ids[-1, :, 0])]

    def lines(values: np.ndarray) -> list[Series]:
        if values.shape[1] <= MAX_LINES:
            labels = [f"{label} → {piece}" for label, piece in zip(_labels(view), final_pieces)]
            return [
                Series(label, list(zip(xs, column.tolist())), show_points=True)
                for label, column in zip(labels, values.T)
            ]
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=1).tolist()
        return [Series("median", list(zip(xs, middle)), show_points=True, band=list(zip(xs, low, high)))]

    max_rank = max(float(view.final_ranks.max()), 10.0)
    panels = [
        Panel(
            lines(view.final_probs), Axis("probability of the final prediction", percent=True, range=(0.0, 1.0)), 180
        ),
        Panel(lines(view.final_ranks), Axis("rank of the final prediction", log=True, range=(1.0, max_rank)), 140),
        Panel(lines(view.kl), Axis("divergence from the last layer (nats)", from_zero=True), 140),
    ]
    return panel_chart(panels, Axis("layer (0: embeddings)", integers=True))


def _prediction_rows(view: LayerPredictions) -> list[list[Any]]:
    """Return token, final prediction, probability, layer from which it holds, and rank of the true token."""
    rows = []
    final = zip(_labels(view), _pieces(view, view.top_ids[-1, :, 0]), view.top_probs[-1, :, 0], view.settled_layers)
    for (label, piece, prob, settled), target, rank in zip(final, view.lm_input.targets, view.target_ranks[-1]):
        true_token = "" if target is None else _pieces(view, np.array([target]))[0]
        true_rank = "" if target is None else int(rank)
        rows.append([label, piece, f"{prob:.1%}", _layer_name(view.layers[settled]), true_token, true_rank])
    return rows


PREDICTION_HEADER = ["token", "prediction", "probability", "settled from", "true token", "its rank"]


def _select_columns(view: LayerPredictions) -> int:
    """Return how many columns of the predictions say something: the last two only where there are true tokens."""
    return len(PREDICTION_HEADER) if any(target is not None for target in view.lm_input.targets) else 4


def _prediction_table(view: LayerPredictions) -> str:
    size = _select_columns(view)
    rows = [[Html(escape(cell)) if isinstance(cell, str) else cell for cell in row] for row in _prediction_rows(view)]
    return html_table(PREDICTION_HEADER[:size], [row[:size] for row in rows]) + note(
        "Settled from: the first layer from which on the best token is the final one."
    )


def _printed_tables(view: LayerPredictions) -> list[PrintedTable]:
    """Return one table by layer for each of a few positions, or one row per position."""
    if len(view.lm_input.positions) > 3:
        size = _select_columns(view)
        return [(PREDICTION_HEADER[:size], [row[:size] for row in _prediction_rows(view)])]
    tables: list[PrintedTable] = []
    for row, label in enumerate(_labels(view)):
        lines = [
            [
                _layer_name(name),
                "  ".join(f"{p} {s:.1%}" for p, s in zip(_pieces(view, view.top_ids[i, row]), view.top_probs[i, row])),
                int(view.final_ranks[i, row]),
                f"{view.kl[i, row]:.3f}",
            ]
            for i, name in enumerate(view.layers)
        ]
        tables.append(([label, "best tokens", "rank of the final prediction", "divergence (nats)"], lines))
    return tables


def _record(view: LayerPredictions) -> dict[str, Any]:
    """Return all numbers as plain values; a token is its entry in the vocabulary."""
    lm_input, convert = view.lm_input, view.lm_input.tokenizer.convert_ids_to_tokens

    def at_layer(layer: int, row: int) -> dict[str, Any]:
        ids, probs = view.top_ids[layer, row].tolist(), view.top_probs[layer, row].tolist()
        return {
            "layer": view.layers[layer],
            "top": [{"token": token, "id": i, "probability": p} for token, i, p in zip(convert(ids), ids, probs)],
            "final_probability": float(view.final_probs[layer, row]),
            "final_rank": int(view.final_ranks[layer, row]),
            "kl": float(view.kl[layer, row]),
            "true_probability": _number(view.target_probs[layer, row], float),
            "true_rank": _number(view.target_ranks[layer, row], int),
        }

    positions = [
        {
            "position": int(position),
            "token": lm_input.tokens[position],
            "true_token": None if lm_input.targets[row] is None else convert([lm_input.targets[row]])[0],  # type: ignore[list-item]
            "prediction": convert([view.top_ids[-1, row, 0]])[0],
            "settled_from": view.layers[view.settled_layers[row]],
            "layers": [at_layer(layer, row) for layer in range(len(view.layers))],
        }
        for row, position in enumerate(lm_input.positions)
    ]
    return {
        "head": lm_input.head,
        "masks_in_turn": lm_input.masks_in_turn,
        "tokens": lm_input.tokens,
        "layers": view.layers,
        "not_decoded": {str(depth): size for depth, size in view.skipped.items()},
        "positions": positions,
    }


def _number(value: float, kind: Callable[[float], Any]) -> Any:
    return None if math.isnan(value) else kind(value)
