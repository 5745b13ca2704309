"""`polyseme explain`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_table, read_texts
from polyseme.errors import ConfigError

if TYPE_CHECKING:
    from polyseme.explain.explanation import Explanation

# What each figure needs, and what it may take besides `models`, `out` and `as_json`.
FIGURES: dict[str, tuple[set[str], set[str]]] = {
    "graph": ({"graph"}, {"at"}),
    "path_length": ({"path_length"}, set()),
    "image": ({"image"}, {"features"}),
    "word": ({"word"}, {"data", "layer"}),
    "wic": ({"wic"}, set()),
    "gender_bias": ({"gender_bias"}, {"data"}),
    "geometry": ({"geometry", "data"}, set()),
    "patch": ({"patch"}, {"text", "text_b", "attribute", "contrast", "data"}),
    "lens": ({"lens", "text"}, {"top_k"}),
    "attribute": ({"attribute"}, {"text", "data", "pair", "contrast", "method", "baseline"}),
    "attention": ({"text"}, {"text_b", "pair", "target", "token", "layer", "head", "num_beams", "length_penalty"}),
}

AttributeOption = Annotated[
    str | None,
    Option(
        help="Label or token to attribute to the words of --text, or of each text of --data: a class, TAG@WORD, "
        "the token at the mask (TOKEN@2 for the second) or after the text; 'predicted' for the model's prediction."
    ),
]
MethodOption = Annotated[
    str | None,
    Option(help="Attribution method: integrated_gradients, gradient_x_input, erasure, leave_one_out; default: all."),
]
BaselineOption = Annotated[
    str | None,
    Option(help="What stands for no token in attribution: mask, pad, unk, eos, zero; default: the first there is."),
]
ModelsArgument = Annotated[
    list[Path] | None, Argument(help="Model folders: one, or two to compare; none with --graph and --path-length.")
]
DataOption = Annotated[
    str | None,
    Option(
        help="Texts: a file in any format; FILE::label=COLUMN has senses for --word, source words "
        "for --gender-bias; --patch reads pairs."
    ),
]
WordOption = Annotated[
    str | None,
    Option(help="Plot all occurrences of this word in --data, or in sentences with bank, spring and stick."),
]
LayerOption = Annotated[
    int | None, Option(help="Layer to start with, from 1; default: all, or where --token looks.", min=0)
]
WicOption = Annotated[
    Path | None, Option(help="Folder of Word in Context: accuracy of the cosine of two occurrences by layer.")
]
GenderBiasOption = Annotated[
    bool, Option("--gender-bias", help="Probability of she and he by occupation: 48 in the package, or --data.")
]
PathLengthOption = Annotated[
    bool, Option("--path-length", help="Compare types of layers: steps between two words, and costs; no model.")
]
PageOption = Annotated[
    Path | None, Option(help="Output page (.html); the numbers (.json) and figures (.svg) go next to it.")
]
ContrastOption = Annotated[str | None, Option(help="Label or token to contrast with: why --attribute and not this.")]
LengthPenaltyOption = Annotated[float | None, Option(help="Exponent of a translation's length penalty; default: 0.6.")]
NumBeamsOption = Annotated[int | None, Option(help="Width of the beam search of a translation; default: 4.", min=1)]


def explain(
    models: ModelsArgument = None,
    text: Annotated[str | None, Option(help="Text to read.")] = None,
    text_b: Annotated[str | None, Option(help="Text to compare with --text.")] = None,
    pair: Annotated[str | None, Option(help="Second text of the same input, as in a sentence pair.")] = None,
    target: Annotated[str | None, Option(help="Target of an encoder-decoder; default: what it generates.")] = None,
    token: Annotated[str | None, Option(help="Word to start with, computed step by step; default: the first.")] = None,
    layer: LayerOption = None,
    head: Annotated[int | None, Option(help="Head to start with, from 1; default: where --token looks.", min=1)] = None,
    word: WordOption = None,
    data: DataOption = None,
    attribute: AttributeOption = None,
    contrast: ContrastOption = None,
    method: MethodOption = None,
    baseline: BaselineOption = None,
    lens: Annotated[bool, Option("--lens", help="Show what each layer would predict (logit lens).")] = False,
    top_k: Annotated[int | None, Option(help="Predictions per layer with --lens; default: 5.", min=1)] = None,
    patch: Annotated[bool, Option("--patch", help="Patch activations of --text-b into --text.")] = False,
    geometry: Annotated[bool, Option("--geometry", help="Anisotropy, self-similarity, and layer distances.")] = False,
    wic: WicOption = None,
    num_beams: NumBeamsOption = None,
    length_penalty: LengthPenaltyOption = None,
    image: Annotated[Path | None, Option(help="Image to describe, with where the model looks for each word.")] = None,
    features: Annotated[Path | None, Option(help="Regions of --image (.npz), for a model that reads features.")] = None,
    graph: Annotated[str | None, Option(help="Expression to differentiate: '(x+y)*x*y**2'.")] = None,
    at: Annotated[str | None, Option(help="Values of the names in --graph: x=1,y=2.")] = None,
    gender_bias: GenderBiasOption = False,
    path_length: PathLengthOption = False,
    out: PageOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Look inside a model: its attention, layers and predictions.

    --text alone shows the attention of every layer and head (and the beam search of a translation), --attribute what a
    prediction depends on, --lens what each layer would predict, --patch which layer and position carry a
    difference, --word the occurrences of a word in context, --wic how well each layer tells meanings of a word
    apart, --geometry the vectors of each layer, --gender-bias which pronoun goes with an occupation, --image where a
    model looks in an image, --graph backpropagation through an expression, and --path-length how far apart two words
    are in recurrent, convolutional and attention layers.
    """
    arguments = {name: value for name, value in locals().items() if name != "as_json"}
    arguments = {name: value for name, value in arguments.items() if value is not None and value is not False}  # not 0
    figure = choose_figure(arguments)
    _show(lambda: BUILDERS[figure](arguments), out, as_json)


def choose_figure(arguments: dict[str, Any]) -> str:
    """Return the figure that the options ask for; a missing one or one without effect is an error."""
    flags = {"models": "MODEL"}
    figure = next((name for name in FIGURES if name in arguments), None)
    figure = figure or ("attention" if "text" in arguments else None)
    if figure is None:
        raise ConfigError("explain needs a model and --text, --word or --geometry with --data, or --graph")
    required, optional = FIGURES[figure]
    required = required if figure in ("graph", "path_length") else required | {"models"}

    def flag(name: str) -> str:
        return flags.get(name, f"--{name.replace('_', '-')}")

    title = "--text" if figure == "attention" else flag(figure)

    if missing := sorted(required - set(arguments)):
        raise ConfigError(f"{title} needs {flag(missing[0])}")
    if unused := [name for name in arguments if name not in required | optional | {"out"}]:
        raise ConfigError(f"{flag(unused[0])} has no effect with {title}")
    return figure


def _show(build: Callable[[], "Explanation"], out: Path | None, as_json: bool) -> None:
    """Build an explanation and write it, or print its tables or its numbers."""
    from polyseme.explain.explanation import check_page_path, format_record

    if out is not None:
        check_page_path(out)
    explanation = build()
    paths = explanation.save(out) if out is not None else []
    if as_json:
        print(format_record(explanation.record))
        return
    if out is None:
        for header, rows in explanation.tables:
            print_table(header, rows)
    print(explanation.summary)
    for path in paths:
        print(path)


def _models(arguments: dict[str, Any], most: int) -> list[Any]:
    """Load the models; more than a figure can show are an error."""
    from polyseme.inference.load import load

    folders = arguments["models"]
    if len(folders) > most:
        raise ConfigError(
            f"{len(folders)} models, expected {'one' if most == 1 else f'at most {most}'} for this figure"
        )
    return [load(folder) for folder in folders]


def _attention(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.explain.attention import explain_attention

    names = FIGURES["attention"][1] - {"text_b"}
    texts = [arguments[name] for name in ("text", "text_b") if name in arguments]
    settings = {name: arguments[name] for name in names if name in arguments}
    return explain_attention(_models(arguments, 2), texts, **settings)


def _attribute(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.explain.attribution import explain_attribution

    if ("text" in arguments) == ("data" in arguments):
        raise ConfigError("--attribute needs --text, or --data with several texts")
    settings = {name: arguments[name] for name in ("pair", "contrast", "method", "baseline") if name in arguments}
    texts = arguments["text"] if "text" in arguments else read_texts(arguments["data"])
    label = None if arguments["attribute"] == "predicted" else arguments["attribute"]
    return explain_attribution(_models(arguments, 1)[0], texts, label, **settings)


def _lens(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.explain.logit_lens import explain_logit_lens

    return explain_logit_lens(_models(arguments, 1)[0], arguments["text"], top_k=arguments.get("top_k", 5))


def _patch(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.explain.patching import PatchingPair, explain_patching_pairs, read_pairs

    names = ("text", "text_b", "attribute", "contrast")
    missing = [name for name in names if name not in arguments]
    if "data" in arguments and len(missing) < len(names):
        raise ConfigError(
            "--patch takes --text, --text-b, --attribute and --contrast, or the pairs of --data, not both"
        )
    if "data" not in arguments and missing:
        raise ConfigError(f"--patch needs --{missing[0].replace('_', '-')}, or pairs of texts as --data")
    pairs = read_pairs(arguments["data"]) if "data" in arguments else [PatchingPair(*map(arguments.__getitem__, names))]
    return explain_patching_pairs(_models(arguments, 1)[0], pairs)


def _word(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.evaluation.text_rows import read_labeled_texts
    from polyseme.explain.words import explain_word

    texts, senses = read_labeled_texts(arguments["data"]) if "data" in arguments else (None, None)
    models = _models(arguments, 4)
    return explain_word(models, arguments["word"], texts, layer=arguments.get("layer"), senses=senses)


def _wic(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.explain.words.wic import explain_wic

    return explain_wic(_models(arguments, 8), arguments["wic"])


def _geometry(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.evaluation.text_rows import read_labeled_texts
    from polyseme.explain.geometry import explain_geometry

    texts, labels = read_labeled_texts(arguments["data"])
    if labels is not None:
        raise ConfigError(f"--data {arguments['data']}: `label` has no effect with --geometry")
    return explain_geometry(_models(arguments, 4), texts)


def _graph(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.explain.graph.page import explain_graph

    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in arguments.get("at", "").split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name in values:
            raise ConfigError(f"--at has two values of {name}: {values[name]:g} and {number}")
        try:
            values[name] = float(number)
        except ValueError:
            raise ConfigError(f"--at {part!r} is not a name and a number, such as x=1") from None
    return explain_graph(arguments["graph"], values)


def _gender_bias(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.evaluation.text_rows import read_labeled_texts
    from polyseme.explain.bias import Occupation, explain_gender_bias

    occupations = None
    if "data" in arguments:
        names, sources = read_labeled_texts(arguments["data"])
        occupations = [Occupation(*row) for row in zip(names, sources or [""] * len(names))]
    return explain_gender_bias(_models(arguments, 4), occupations)


def _path_length(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.explain.path_length import explain_path_length

    return explain_path_length()


def _image(arguments: dict[str, Any]) -> "Explanation":
    from polyseme.explain.image_attention import explain_image

    return explain_image(_models(arguments, 1)[0], arguments["image"], arguments.get("features"))


BUILDERS: dict[str, Callable[[dict[str, Any]], "Explanation"]] = {
    "attention": _attention,
    "attribute": _attribute,
    "lens": _lens,
    "patch": _patch,
    "word": _word,
    "wic": _wic,
    "geometry": _geometry,
    "graph": _graph,
    "gender_bias": _gender_bias,
    "path_length": _path_length,
    "image": _image,
}
