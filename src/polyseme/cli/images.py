"""`polyseme images` and `polyseme caption`: corpora of captioned images, features of regions, captions."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from polyseme.cli import options
from polyseme.cli.output import print_json, print_table
from polyseme.errors import ConfigError
from polyseme.io.limits import MAX_INTEGER

app = Typer(help="Prepare images for captioning and visual questions.", no_args_is_help=True, rich_markup_mode=None)
CAPTIONS_HELP = "Tables with an image file (relative to the table) and a caption: JSON lines, CSV, TSV or Parquet."
FEATURES_HELP = "An .npz file with regions of the images: `features` [images, regions, dim] and `names`."
NETWORK_HELP = "The weights of SqueezeNet v1.0, an .npz file."
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp")
FeaturesOption = Annotated[Path | None, Option(help=FEATURES_HELP)]


@app.callback()
def group() -> None:
    """Prepare images for captioning and visual questions."""


@app.command()
def shapes(
    out: Annotated[Path, Argument(help="Output folder.")],
    num_train: Annotated[int, Option(help="Number of training images.", min=1, max=1_000_000)] = 10_000,
    num_eval: Annotated[int, Option(help="Number of validation and of test images.", min=1, max=1_000_000)] = 1_000,
    seed: Annotated[int, Option(help="Random seed.", min=0, max=MAX_INTEGER)] = 0,
) -> None:
    """Generate images of colored shapes with captions and boxes.

    Pairs of a color and a shape in test.jsonl occur in no image of train.jsonl and valid.jsonl.
    """
    from polyseme.images.shapes import write_shapes

    sizes = write_shapes(out, num_train, num_eval, seed)
    print(f"{out}: " + ", ".join(f"{size:,} images in {split}.jsonl" for split, size in sizes.items()))


@app.command()
def features(
    images: Annotated[list[Path], Argument(help="Image files, or folders of them.")],
    network: Annotated[Path, Option(help=NETWORK_HELP)],
    out: Annotated[Path, Option(help="Output file (.npz).")],
    grid: Annotated[int, Option(help="Rows and columns of regions; fewer than 13 are averages.", min=1, max=13)] = 13,
) -> None:
    """Extract features of image regions, to train models on them."""
    from polyseme.errors import DataError
    from polyseme.images.squeezenet import write_features

    paths: list[Path] = []
    for each in images:
        files = [path for path in sorted(each.rglob("*")) if path.suffix.lower() in IMAGE_SUFFIXES]
        if each.is_dir() and not files:
            raise DataError(f"{each} has no images ({', '.join(IMAGE_SUFFIXES)})")
        paths += files if each.is_dir() else [each]
    print(f"{out}: {' × '.join(map(str, write_features(network, paths, out, grid)))} features")


@app.command()
def prepare(
    source: Annotated[list[str], Argument(help=CAPTIONS_HELP)],
    tokenizer: Annotated[Path, Option(help="Tokenizer folder.")],
    out: Annotated[Path, Option(help="Output corpus folder.")],
    keys: Annotated[str, Option(help="Columns or keys of image and caption.")] = "image+caption",
    patch_size: Annotated[int | None, Option(help="Pixels on each side of a region; default: 8.", min=1)] = None,
    features: FeaturesOption = None,
) -> None:
    """Prepare captioned images for a model. Train one with `polyseme pretrain show-attend-tell-tiny`."""
    from polyseme.corpus.captions import DEFAULT_PATCH_SIZE, prepare_captions
    from polyseme.text.tokenizer import Tokenizer

    names = keys.split("+")
    if len(names) != 2 or not all(names):
        raise ConfigError(f"--keys {keys!r} does not name two columns, as image+caption does")
    if features is not None and patch_size is not None:
        raise ConfigError("--patch-size has no effect with --features: leave out one")
    size = DEFAULT_PATCH_SIZE if patch_size is None else patch_size
    manifest = prepare_captions(source, Tokenizer.load(tokenizer), out, (names[0], names[1]), size, features)
    images, counts = manifest["images"], manifest["counts"]
    grid = f"{images['num_rows']} × {images['num_columns']} regions each"
    print(f"{out}: {counts['documents']:,} captions of {images['count']:,} images, {grid}, {counts['tokens']:,} tokens")


def caption(
    model: Annotated[Path, Argument(help="Folder of a model that describes images.")],
    image: Annotated[list[Path] | None, Option(help="Image file; repeat the option for several.")] = None,
    data: Annotated[Path | None, Option(help="JSON lines with image, caption and words, to score captions.")] = None,
    features: FeaturesOption = None,
    num_beams: Annotated[int, Option(help="Width of the beam search; 0: greedy decoding.", min=0)] = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Describe images, or compare captions with those in --data.

    With boxes of words in --data, also measure how often the model looks at what it names (pointing accuracy).
    `polyseme explain MODEL --image FILE` shows where it looks.
    """
    import polyseme

    if bool(image) == (data is not None):
        raise ConfigError("give either --image with a file, or --data with JSON lines")
    settings: dict[str, Any] = {"features": features, "num_beams": num_beams}
    loaded = polyseme.load(model)
    if data is not None:
        from polyseme.evaluation.captions import evaluate_captions

        metrics = evaluate_captions(loaded, data, **settings)
        print_json(metrics) if as_json else print_table(["metric", "value"], list(metrics.items()))
        return
    files = image or []
    captions = loaded.caption([str(path) for path in files], **settings)
    if as_json:
        rows = [{"image": str(p), "caption": c.text, "log_prob": c.score} for p, c in zip(files, captions)]
        print_json(rows)
    else:
        for path, each in zip(files, captions):
            print(f"{path}: {each.text}" if len(files) > 1 else each.text)
