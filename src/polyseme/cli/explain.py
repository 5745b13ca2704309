"""`polyseme explain` and `polyseme gradients`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table, read_texts
from polyseme.errors import ConfigError

DISTANCES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def explain(
    model: Annotated[Path | None, Argument(help="Folder of a sequence-to-sequence model; not with --graph.")] = None,
    text: Annotated[str | None, Option(help="Text to translate and explain.")] = None,
    out: Annotated[Path | None, Option(help="Output HTML page.")] = None,
    num_beams: Annotated[int | None, Option(help="Width of the beam search; default: 4.", min=1)] = None,
    length_penalty: Annotated[float | None, Option(help="Exponent of the length of a translation; default: 1.")] = None,
    graph: Annotated[str | None, Option(help="Expression to differentiate: '(x+y)*x*y**2'.")] = None,
    at: Annotated[str | None, Option(help="Values of the names in --graph: x=1,y=2.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Write a page about one translation, or about backpropagation on a computation graph.

    The page of a translation shows the alignment, the beam search tree, and cross attention by layer and head. That of
    an expression (--graph) shows values and gradients step by step; without --out they are printed.
    """
    if graph is not None:
        others = {"MODEL": model, "--text": text, "--num-beams": num_beams, "--length-penalty": length_penalty}
        if unused := [name for name, value in others.items() if value is not None]:
            raise ConfigError(f"{unused[0]} has no effect with --graph")
        _explain_graph(graph, at or "", out, as_json)
        return
    if at is not None or as_json:
        raise ConfigError(f"{'--at' if at is not None else '--json'} needs --graph")
    if model is None or text is None or out is None:
        raise ConfigError("explain needs a model, --text and --out; or --graph with an expression")
    from polyseme.explain.translation import explain_translation
    from polyseme.inference.load import load_neural
    from polyseme.io.atomic import ensure_new_file, write_text

    ensure_new_file(out)
    beams, penalty = num_beams or 4, 1.0 if length_penalty is None else length_penalty
    write_text(out, explain_translation(load_neural(model), text, beams, penalty))
    print(f"{out}: the translation of {text!r}")


def _explain_graph(expression: str, at: str, out: Path | None, as_json: bool) -> None:
    """Differentiate an expression; write its page, or print it."""
    from polyseme.explain.graph import Graph
    from polyseme.explain.graph.page import describe_graph, format_orders, graph_page, list_steps
    from polyseme.io.atomic import ensure_new_file, write_text

    values = {}
    for part in filter(None, (part.strip() for part in at.split(","))):
        name, _, number = part.partition("=")
        try:
            values[name.strip()] = float(number)
        except ValueError:
            raise ConfigError(f"--at {part!r} is not a name and a number, such as x=1") from None
    if out is not None:
        ensure_new_file(out)
    graph = Graph.from_expression(expression, **values)
    record = describe_graph(graph, expression)
    if out is not None:
        write_text(out, graph_page(graph, expression))
    if as_json:
        print_json(record)
        return
    if out is None:
        print_table(["pass", "formula", "with numbers"], [(s.phase, s.formula, s.numbers) for s in list_steps(graph)])
    print(f"value {record['value']:.10g}")
    for name, grad in record["gradients"].items():
        print(f"gradient of {name}: {grad:.10g}")
    print(f"{format_orders(record['orders'])} topological orders of {len(record['nodes'])} nodes")
    if out is not None:
        print(f"{out}: the computation graph of {expression}")


def gradients(
    models: Annotated[list[Path], Argument(help="Folders of causal language models.")],
    data: options.TextsOption,
    out: Annotated[Path, Option(help="Output .svg file.")],
    max_distance: Annotated[int, Option(help="Maximum distance in tokens.")] = 50,
) -> None:
    """Plot the gradient norm of a prediction by distance.

    One line per model shows the vanishing gradients of RNNs.
    """
    from polyseme.explain.gradients import gradients_by_distance, plot_gradients
    from polyseme.inference.load import load_neural
    from polyseme.io.atomic import write_text

    if out.suffix != ".svg":
        raise ConfigError(f"--out {out} does not end in .svg")
    texts = read_texts(data)
    curves = {}
    for folder in models:
        language_model = load_neural(folder)
        config = language_model.model.config
        name = " ".join(part for part in (config.family, getattr(config.trunk, "cell", "")) if part)
        label = name if name not in curves else f"{name} ({folder})"
        curves[label] = gradients_by_distance(language_model, texts, max_distance)
    write_text(out, plot_gradients(curves))
    distances = [distance for distance in DISTANCES if distance <= max_distance]
    print_table(["model", *map(str, distances)], [[n, *(f"{c[d]:.2e}" for d in distances)] for n, c in curves.items()])
    print(f"{out}: gradient norm by distance, {len(curves)} models")
