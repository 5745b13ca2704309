"""The exceptions that Polyseme raises for problems that a user can fix."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

EXTRA_OF_PACKAGE = {
    **dict.fromkeys(("sklearn", "scipy", "rouge_score"), "tasks"),
    **dict.fromkeys(("matplotlib", "tensorboard"), "report"),
    **dict.fromkeys(("pyarrow", "py3langid"), "text"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "export"),
    **dict.fromkeys(("starlette", "uvicorn", "httptools", "uvloop"), "serve"),
    **{"sentencepiece": "unigram", "mido": "music", "sacrebleu": "translate", "h5py": "elmo", "distributed": "cluster"},
    "PIL": "vision",
}
MAX_MESSAGE_CHARS = 1000  # a longer message, such as one that quotes a long value, is cut in the middle


class PolysemeError(Exception):
    """Base class of all errors that a user can fix.

    The message is one line: what is wrong, the value, where, and what to do. The command line prints it and exits with
    status 2. Output is written atomically, so no partial files are left.
    """

    def __init__(self, message: str):
        message = " ".join(message.split())
        if len(message) > MAX_MESSAGE_CHARS:
            message = f"{message[: MAX_MESSAGE_CHARS // 2]} … {message[-MAX_MESSAGE_CHARS // 2 :]}"
        super().__init__(message)


class ConfigError(PolysemeError, ValueError):
    """An invalid option, config, or recipe, or options that contradict each other."""


class DataError(PolysemeError, ValueError):
    """A file, row, text, or corpus that cannot be used."""


class TextError(DataError):
    """A text that a model cannot read or score, and the file and row that it is from, if they are known."""

    def __init__(self, message: str, text: str = "", location: str = ""):
        super().__init__(f"{location}: {message}" if location else message)
        self.text, self.location = text, location


class TextTooLongError(TextError):
    """A text that has more tokens than the model reads."""


class ModelError(PolysemeError):
    """A model folder, weights, or tokenizer that is missing, damaged, or incompatible."""


class UnsupportedError(PolysemeError):
    """An operation that the model does not support, or that needs a package that is not installed."""


class Interrupted(PolysemeError):
    """A run stopped by a signal, after its state was saved."""

    def __init__(self, signum: int, step: int, place: str = ""):
        super().__init__(f"interrupted at {place or f'step {step}'}; the run is saved and can be resumed")
        self.signum, self.step, self.place = signum, step, place

    def __reduce__(self) -> tuple[type, tuple[int, int, str]]:
        return Interrupted, (self.signum, self.step, self.place)


@contextmanager
def add_location(places: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Say in an error about one of these texts where it was read; each comes with its file and row."""
    try:
        yield
    except TextError as error:
        if location := next((location for text, location in places if text == error.text), ""):
            raise type(error)(str(error), error.text, location) from None
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python or torch is about memory; torch need not be imported."""
    is_torch_error = isinstance(error, RuntimeError) and re.search(r"DefaultCPUAllocator|out of memory", str(error))
    return isinstance(error, MemoryError) or bool(is_torch_error)


@contextmanager
def convert_out_of_memory(advice: Callable[[], str]) -> Iterator[None]:
    """Convert the errors of Python and torch when memory runs out to one line, which says what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        device = "GPU " if "CUDA" in str(error) else ""
        size = re.search(r"(?:allocate|need) ([\d.]+ ?[KMGT]?i?B|\d+ bytes)", str(error))
        request = f" (it needed {size[1]} more)" if size else ""
        raise PolysemeError(f"out of {device}memory{request}: {advice()}") from error


MAX_EDITS = 3  # between a misspelled name and the name that is suggested


def suggest(name: object, valid: Iterable[str]) -> str:
    """Return the end of an error message: the name that was probably meant, or else the valid names.

    A name is suggested if a few edits apart (at most a third of its letters), or if it contains all words of `name`
    or the reverse (`cola` and `glue/cola`), or starts with it (`acc` and `accuracy`).
    """
    name, names = str(name), sorted(set(valid))
    if meant := _find_misspelled(name, names) or _find_related(name, names):
        return f"did you mean {meant!r}?"
    return f"valid: {_list_names(names)}" if names else "there is none"


def unsupported(name: object, valid: Iterable[str]) -> str:
    """Return the end of an error message about an unsupported name, which is not taken for a misspelled one."""
    return f"{name!r} is not supported; supported: {', '.join(sorted(valid))}"


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")


def _find_misspelled(name: str, names: Sequence[str]) -> str:
    """Return the closest name if it is a few edits from `name`, else an empty string."""
    max_edits = min(max(len(name) // 3, 1), MAX_EDITS) if len(name) > 1 else 0
    candidates = difflib.get_close_matches(name.lower(), {n.lower() for n in names}, n=5, cutoff=0.5)
    edits = {n: _count_edits(name.lower(), n.lower()) for n in names if n.lower() in candidates}
    closest = min(edits, key=lambda n: edits[n], default="")
    return closest if closest and edits[closest] <= max_edits else ""


def _find_related(name: str, names: Sequence[str]) -> str:
    """Return the shortest name that has all words of `name`, or whose words `name` has, or that starts with it."""
    words = set(re.findall(r"[^\W_]+", name.lower()))
    if len(name) < 3 or not words:
        return ""
    words_by_name = {n: set(re.findall(r"[^\W_]+", n.lower())) for n in names}
    has_words = [n for n, w in words_by_name.items() if w and (words <= w or w <= words)]
    return min([*has_words, *(n for n in names if n.lower().startswith(name.lower()))], key=len, default="")


def _count_edits(first: str, second: str) -> int:
    """Return the number of inserted, deleted, replaced and swapped neighboring letters between two names."""
    before, previous = list[int](), list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        row = [i]
        for j, other in enumerate(second, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (letter != other)))
            if i > 1 and j > 1 and first[i - 2 : i] == second[j - 1] + second[j - 2]:
                row[-1] = min(row[-1], before[j - 2] + 1)
        before, previous = previous, row
    return previous[-1]


def require_package(module: str, purpose: str, package: str = "") -> Any:
    """Import a module of an optional package, or raise an `UnsupportedError` that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise UnsupportedError(f"{purpose} needs {name}: pip install {package or name}") from None


def require_packages(purposes: Mapping[str, str]) -> None:
    """Raise an `UnsupportedError` for the first module that is not installed, without importing any.

    A command calls this, with the purpose of each module, before its work rather than when it needs them.
    """
    for module, purpose in purposes.items():
        try:
            is_missing = find_spec(module) is None
        except (ImportError, ValueError):
            is_missing = True
        if is_missing:
            raise UnsupportedError(f"{purpose} needs {module}: pip install 'polyseme[{EXTRA_OF_PACKAGE[module]}]'")
