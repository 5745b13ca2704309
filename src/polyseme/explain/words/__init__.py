"""Words in context: all occurrences of a word as points, clustered, in every layer of any model that embeds text."""

from collections.abc import Sequence
from typing import Any

from polyseme.errors import ConfigError, DataError
from polyseme.explain.explanation import Explanation
from polyseme.explain.supported import unsupported
from polyseme.explain.words.analysis import WordModel, analyze_layers
from polyseme.explain.words.names import model_names
from polyseme.explain.words.occurrences import BUNDLED_WORDS, Occurrence, bundled_sentences, find_occurrences
from polyseme.explain.words.page import WordPage, layer_name, layer_rows, word_page
from polyseme.explain.words.vectors import embed_spans, is_cased
from polyseme.inference.base import LanguageModel
from polyseme.inference.word_vectors import WordVectors

__all__ = ["explain_word"]

MAX_MODELS = 4


def explain_word(
    models: Sequence[LanguageModel],
    word: str,
    texts: Sequence[str] | None = None,
    *,
    layer: int | None = None,
    senses: Sequence[str] | None = None,
) -> Explanation:
    """Show all occurrences of a word in texts, in each layer of up to four models.

    Without texts, the word is looked up in the sentences with bank, spring and stick that come with the package.
    Upper and lower case are distinguished if all models do. `senses` has the sense of the word in each text, or an
    empty string; then each layer is compared with the senses. `layer` is shown first (0: the embeddings); without
    it, the layer three quarters up, because the last ones turn to the prediction of tokens (Voita et al. 2019).

    >>> stick = explain_word([model], "stick")
    >>> [layer["num_clusters"] for layer in stick.record["models"][0]["layers"]]  # doctest: +SKIP
    """
    if not 1 <= len(models) <= MAX_MODELS:
        raise ConfigError(f"{len(models)} models, expected 1 to {MAX_MODELS}")
    for model in models:
        if "embed" not in model.capabilities:
            unsupported(model, "word")
        if isinstance(model, WordVectors):
            for form in word.split():
                model.vector(form)  # raises an error that names similar words
    if texts is None:
        texts, senses = bundled_sentences()
        if word.lower() not in BUNDLED_WORDS:
            raise DataError(
                f"the sentences that come with the package are about {', '.join(BUNDLED_WORDS)}, not {word!r}: pass "
                "texts with it as `data`"
            )
    occurrences, num_total = find_occurrences(word, texts, senses, not all(map(is_cased, models)))
    names = model_names(models)
    views = [_analyze(model, name, occurrences, layer) for model, name in zip(models, names)]
    page = WordPage(word, occurrences, views)
    return Explanation(
        word_page(page, num_total), _record(page, num_total), page.figures(), _summarize(page), _tables(page)
    )


def _analyze(model: LanguageModel, name: str, occurrences: Sequence[Occurrence], layer: int | None) -> WordModel:
    """Embed the occurrences, text by text, and analyze every layer."""
    by_text: dict[str, list[int]] = {}
    for i, occurrence in enumerate(occurrences):
        by_text.setdefault(occurrence.text, []).append(i)
    spans = [[(occurrences[i].start, occurrences[i].end) for i in indices] for indices in by_text.values()]
    vectors = embed_spans(model, list(by_text), spans)
    order = [i for indices in by_text.values() for i in indices]  # as the vectors come
    ranks = sorted(range(len(order)), key=order.__getitem__)
    vectors.vectors[:] = [rows[ranks] for rows in vectors.vectors]
    if layer is not None and layer not in vectors.layers:
        first, last = vectors.layers[0], vectors.layers[-1]
        raise ConfigError(f"`layer` is {layer}, and {model.path} has vectors of words in the layers {first} to {last}")
    chosen = vectors.layers[-1] - vectors.layers[-1] // 4 if layer is None else layer
    start = vectors.layers.index(max(chosen, vectors.layers[0]))
    return WordModel(name, model.description, vectors.is_static, analyze_layers(occurrences, vectors), start)


def _record(page: WordPage, num_total: int) -> dict[str, Any]:
    """Return the numbers of the page."""
    return {
        "word": page.word,
        "num_occurrences": num_total,
        "occurrences": [
            {"text": each.text, "start": each.start, "end": each.end, "sense": each.sense or None}
            for each in page.occurrences
        ],
        "models": [
            {
                "name": model.name,
                "description": model.description,
                "is_static": model.is_static,
                "first_layer_shown": model.first_shown.layer,
                "layers": [layer.to_json() for layer in model.layers],
            }
            for model in page.models
        ],
    }


def _summarize(page: WordPage) -> str:
    """Return a line for each model."""
    lines = [f"{len(page.occurrences):,} occurrences of {page.word!r}"]
    for model in page.models:
        layer = model.first_shown
        if layer.coincides:
            lines.append(f"{model.name}, {layer_name(layer.layer)}: all occurrences have the same vector")
            continue
        count = len(layer.clusters)
        senses = f", adjusted Rand index with the senses {layer.senses.ari:.2f}" if layer.senses else ""
        clusters = "one cluster" if count == 1 else f"{count} clusters, silhouette {layer.clustering.silhouette:.2f}"
        lines.append(f"{model.name}, {layer_name(layer.layer)}: {clusters}{senses}")
    return "\n".join(lines)


def _tables(page: WordPage) -> list[tuple[list[str], list[tuple[Any, ...]]]]:
    """Return what the terminal shows: the clusters of the layer that is shown first, and the measures of all layers."""
    tables: list[tuple[list[str], list[tuple[Any, ...]]]] = []
    for model in page.models:
        header = ["model", "layer", "cluster", "size", *["senses"] * bool(page.senses), "words", "typical occurrence"]
        layer = model.first_shown
        rows: list[tuple[Any, ...]] = []
        for number, group in enumerate(layer.clusters, 1):
            context = "".join(page.occurrences[group.members[0]].keyword_in_context(30))
            senses = [page.count_senses(group.members)] if page.senses else []
            words = ", ".join(group.words[:4])
            rows.append((model.name, layer.layer, number, len(group.members), *senses, words, context))
        tables += [(header, rows), layer_rows(model)]
    return tables
