"""The command line: one small file per verb; a mistake is one line and exit status 2."""

from __future__ import annotations

import sys
from typing import Any

import typer

from polyseme.cli import (
    arpa,
    ask,
    compare,
    corpus,
    demo,
    describe,
    distill,
    embed,
    encode,
    explain,
    families,
    fill,
    finetune,
    generate,
    gradients,
    music,
    next_sentence,
    overlap,
    pairs,
    predict,
    pretrain,
    prompt,
    score,
    tasks,
    tokenizer,
    translate,
    ulmfit,
    vectors,
)
from polyseme.errors import ConfigError, Interrupted, PolysemeError

app = typer.Typer(
    help="From a folder of text to a pre-trained language model, and from that model to a measured task model.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(arpa.app, name="arpa")
app.add_typer(vectors.app, name="vectors")
app.command("prepare")(corpus.prepare)
app.command("pairs")(pairs.pairs)
app.command("verify")(corpus.verify)
app.command("describe")(describe.describe)
app.command("overlap")(overlap.overlap)
app.command("pretrain")(pretrain.pretrain)
app.command("distill")(distill.distill)
app.command("recipes")(pretrain.recipes)
app.command("families")(families.families)
app.command("tasks")(tasks.tasks)
app.command("finetune")(finetune.finetune)
app.command("ulmfit")(ulmfit.ulmfit)
app.command("evaluate")(predict.evaluate)
app.command("predict")(predict.predict)
app.command("compare")(compare.compare)
app.command("benchmark")(compare.benchmark)
app.command("ask")(ask.ask)
app.command("fill")(fill.fill)
app.command("next")(next_sentence.next_sentence)
app.command("score")(score.score)
app.command("prompt")(prompt.prompt)
app.command("generate")(generate.generate)
app.command("translate")(translate.translate)
app.command("music")(music.music)
app.command("gradients")(gradients.gradients)
app.command("embed")(embed.embed)
app.command("explain")(explain.explain)
app.command("encode")(encode.encode)
app.command("neighbors")(vectors.neighbors)
app.command("analogy")(vectors.analogy)
app.command("similarity")(vectors.similarity)
app.command("demo")(demo.demo)


ClickException: Any = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)  # typer may carry its own click


def main() -> None:
    try:
        for argument in sys.argv:
            _check_utf8(argument)
        status = app(standalone_mode=False)
        if status == 130:  # how typer tells of Ctrl-C
            raise KeyboardInterrupt
    except ClickException as error:
        message = error.format_message()
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        print(message if is_help else f"error: {' '.join(message.split())}", file=sys.stderr)
        status = 2
    except Interrupted as error:
        print(f"{error} with --resume", file=sys.stderr)
        status = 128 + error.signum
    except PolysemeError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        status = 130
    except BrokenPipeError:  # the reader of our output left: not an error
        sys.stderr.close()
        status = 0
    except OSError as error:
        location = f"{error.filename}: " if error.filename else ""
        print(f"error: {location}{error.strerror or error}", file=sys.stderr)
        status = 2
    sys.exit(status or 0)


def _check_utf8(argument: str) -> None:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"an argument is not text in UTF-8: {argument.encode(errors='replace').decode()!r}") from None


if __name__ == "__main__":
    main()
