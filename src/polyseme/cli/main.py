"""The command line. A user error is reported in one line with exit status 2."""

import re
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from polyseme.cli import (
    arpa,
    corpus,
    demo,
    distill,
    doctor,
    evaluate,
    explain,
    export,
    finetune,
    generate,
    gradients,
    images,
    models,
    music,
    overlap,
    pretrain,
    probe,
    prompt,
    prune,
    published,
    quantize,
    query,
    score,
    search,
    serve,
    study,
    tokenizer,
    translate,
    ulmfit,
    vectors,
)
from polyseme.errors import ConfigError, Interrupted, PolysemeError, convert_out_of_memory
from polyseme.logs import log_to_stderr
from polyseme.report.cards.run_card import record_command

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VersionOption = Annotated[
    bool, typer.Option("--version", callback=doctor.version, is_eager=True, help="Print the versions and exit.")
]


@app.callback()
def options(version: VersionOption = False) -> None:
    """From a folder of text to a pre-trained language model, and from that model to an evaluated task model."""


app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(arpa.app, name="arpa")
app.add_typer(vectors.app, name="vectors")
app.add_typer(images.app, name="images")
COMMANDS: dict[str, Callable[..., None]] = {
    "prepare": corpus.prepare,
    "pairs": corpus.pairs,
    "verify": corpus.verify,
    "describe": corpus.describe,
    "overlap": overlap.overlap,
    "pretrain": pretrain.pretrain,
    "distill": distill.distill,
    "prune": prune.prune,
    "recipes": pretrain.recipes,
    "families": pretrain.families,
    "quantize": quantize.quantize,
    "export": export.export,
    "models": models.models,
    "convert": models.convert,
    "tasks": finetune.tasks,
    "finetune": finetune.finetune,
    "ulmfit": ulmfit.ulmfit,
    "evaluate": evaluate.evaluate,
    "predict": evaluate.predict,
    "compare": evaluate.compare,
    "benchmark": evaluate.benchmark,
    "study": study.study,
    "published": published.published,
    "ask": query.ask,
    "fill": query.fill,
    "next": query.next_sentence,
    "score": score.score,
    "prompt": prompt.prompt,
    "generate": generate.generate,
    "translate": translate.translate,
    "caption": images.caption,
    "music": music.music,
    "gradients": gradients.gradients,
    "embed": query.embed,
    "search": search.search,
    "explain": explain.explain,
    "probe": probe.probe,
    "encode": query.encode,
    "neighbors": vectors.neighbors,
    "analogy": vectors.analogy,
    "similarity": vectors.similarity,
    "serve": serve.serve,
    "demo": demo.demo,
    "doctor": doctor.doctor,
}
for name, command in COMMANDS.items():
    app.command(name)(command)

# typer may bundle its own click
ClickException: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
# Phrases of library messages, and the flag that does it.
_FLAGS = {
    "resume the run": "--resume",
    "choose another folder": "--out",
    "prepare it with the tokenizer of": "--tokenizer",
    "train a tokenizer of kind": "--kind",
    "accept the folder as it is now": "polyseme verify --update",
}


def main() -> None:
    """Run a command and exit."""
    log_to_stderr()
    try:
        for argument in sys.argv:
            _check_utf8(argument)
        advice = "use a smaller model, or less data at once"
        with convert_out_of_memory(lambda: advice), record_command(sys.argv[1:]):
            status = app(standalone_mode=False)
        if status == 130:  # typer's status after Ctrl-C
            raise KeyboardInterrupt
    except ClickException as error:
        message = error.format_message()
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        print(message if is_help else f"error: {' '.join(message.split())}", file=sys.stderr)
        status = 2
    except Interrupted as error:
        print(f"{error} with {'--resume' if '--resume' in _known_flags() else 'the same command'}", file=sys.stderr)
        status = 128 + error.signum
    except PolysemeError as error:
        print(f"error: {_with_flags(str(error))}", file=sys.stderr)
        status = 2
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        status = 130
    except BrokenPipeError:  # the reader of our output has exited, which is not an error
        sys.stderr.close()
        status = 0
    except OSError as error:
        location = f"{error.filename}: " if error.filename else ""
        print(f"error: {location}{error.strerror or error}", file=sys.stderr)
        status = 2
    sys.exit(status or 0)


def _with_flags(message: str) -> str:
    """Replace `keywords` in a message of the library by the flags of this command, and add flags for known phrases."""
    flags = [flag for phrase, flag in _FLAGS.items() if phrase in message]
    if "`" in message:
        known = _known_flags()
        replacements = {name: f"--{name.replace('_', '-')}" for name in re.findall(r"`(\w+)`", message)}
        for name, flag in replacements.items():
            flag = negated if (negated := f"--no-{flag[2:]}") in sys.argv else flag
            message = message.replace(f"`{name}`", flag) if flag in known else message
    return f"{message} ({', '.join(flags)})" if flags else message


def _known_flags() -> set[str]:
    """Return the flags of the command that runs."""
    command = typer.main.get_command(app)
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


def _check_utf8(argument: str) -> None:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"an argument is not text in UTF-8: {argument.encode(errors='replace').decode()!r}") from None


if __name__ == "__main__":
    main()
