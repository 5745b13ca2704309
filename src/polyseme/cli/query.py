"""`polyseme encode`, `fill`, `next`, `ask` and `embed`: call a loaded model."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table
from polyseme.errors import ConfigError

EMBED_HELP = "Output file: .npz with the vectors, or .parquet or .jsonl with all columns of the input and `vector`."
LAYERS_HELP = "embeddings, last, second_to_last, sum_last_4, concat_last_4, sum_all, all, or a layer number."


def encode(
    model: options.ModelArgument,
    text: Annotated[str, Argument(help="Text to encode.")],
    text_pair: Annotated[str | None, Argument(help="Second text of a pair.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Print tokens, input ids, token type ids and attention mask."""
    import polyseme

    encoded = polyseme.load(model).encode(text, text_pair)
    if as_json:
        print_json(asdict(encoded))
        return
    rows = zip(encoded.tokens, encoded.input_ids, encoded.token_type_ids, encoded.attention_mask)
    print_table(["token", "input id", "token type id", "attention"], list(rows))


def fill(
    model: options.ModelArgument,
    text: Annotated[str, Argument(help="Text with one or more mask tokens, such as [MASK].")],
    top_k: Annotated[int, Option(help="Number of predictions per mask.", min=1)] = 5,
    as_json: options.JsonOption = False,
) -> None:
    """Predict the masked tokens of a text, most likely first."""
    import polyseme

    predictions = polyseme.load(model).fill(text, top_k)
    if as_json:
        print_json([[asdict(candidate) for candidate in candidates] for candidates in predictions])
        return
    for number, candidates in enumerate(predictions, start=1):
        if len(predictions) > 1:
            print(f"mask {number}")
        for candidate in candidates:
            print(f"{candidate.probability:7.2%}  {candidate.token}")


def next_sentence(
    model: options.ModelArgument,
    a: Annotated[str, Argument(help="First text.")],
    b: Annotated[str, Argument(help="Candidate next text.")],
) -> None:
    """Predict the probability that sentence B follows sentence A."""
    import polyseme

    print(f"{polyseme.load(model).next_sentence(a, b):.4f}")


def ask(
    model: Annotated[Path, Argument(help="Folder of a model fine-tuned for extractive_qa, or visual_qa with --image.")],
    question: Annotated[str, Argument(help="The question.")],
    context: Annotated[Path | None, Option(help="Text file that contains the answer, plain or compressed.")] = None,
    image: Annotated[Path | None, Option(help="Image file that the question is about.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Answer a question from a text of any length or about an image."""
    import polyseme
    from polyseme.tasks.readers.rows import read_lines

    if (context is None) == (image is None):
        raise ConfigError("give either --context with a text, or --image with an image")
    if image is not None:
        prediction = polyseme.load(model).answer_image(str(image), question)
        if as_json:
            print_json(asdict(prediction))
        else:
            print(f"{prediction.label}\nprobability {prediction.probabilities[prediction.label]:.4f}")
        return
    assert context is not None
    answer = polyseme.load(model).answer("\n".join(read_lines(context)), question)
    if as_json:
        print_json(asdict(answer))
    elif answer.text:
        location = f"characters {answer.start} to {answer.end} of {context}"
        print(f"{answer.text}\nprobability {answer.probability:.4f}, {location}")
    else:
        print(f"no answer (null score difference: {answer.null_score_diff:.3f})")


def embed(
    model: options.ModelArgument,
    data: options.TextsOption,
    out: Annotated[Path, Option(help=EMBED_HELP)],
    layers: Annotated[str, Option(help=LAYERS_HELP)] = "last",
    granularity: Annotated[str, Option(help="One vector per token, word, or text (mean pooling).")] = "text",
    precision: Annotated[str, Option(help="float32, or bf16 on a GPU.")] = "float32",
    truncate: Annotated[bool, Option(help="Truncate texts that are longer than the model's maximum length.")] = False,
    resume: options.ResumeOutputOption = False,
) -> None:
    """Write the vectors of texts, words or tokens to a file.

    Rows (.jsonl, .parquet) have the columns of the input and `vector`. An .npz file has `vectors`, for
    tokens or words `starts`, the first row of each text, and `id` if the input has ids.
    """
    import polyseme
    from polyseme.evaluation.embed_file import EMBED_SUFFIXES, embed_file
    from polyseme.evaluation.text_rows import open_texts
    from polyseme.io.table_output import check_output_suffix

    check_output_suffix(out, EMBED_SUFFIXES, "vectors")
    language_model = polyseme.load(model, precision=precision)
    texts = open_texts(data, model)
    shapes = embed_file(language_model, texts, out, layers, granularity, truncate, precision, resume)  # type: ignore[arg-type]
    print(f"{out}: " + ", ".join(f"{name} {shape}" for name, shape in shapes.items()))
