"""English text available wherever Python is: the language reference and the docstrings of installed packages.

Docstrings are read from the source files; no module is imported.
"""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from polyseme.corpus.sources.docstrings import extract_prose
from polyseme.errors import DataError, suggest

DEFAULT_PACKAGES = (
    *("torch", "numpy", "scipy", "sklearn", "matplotlib", "networkx", "sympy", "rich", "typer", "click"),
    *("jinja2", "pydantic", "tokenizers", "safetensors", "huggingface_hub", "fsspec", "setuptools", "pip"),
)
_EXTRACTION_VERSION = 1  # increment when the extracted text changes
_EXCLUDED_FOLDERS = {
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "testing", "idlelib", "lib2to3"),
    *("turtledemo", "encodings", "pydoc_data", "_vendor", "_inductor", "_dynamo"),
}
_TOKEN = re.compile(
    r"""
    (?P<comment> \#.* )
    | (?P<prefix> [rRbBfFuU]{0,2} ) (?:
        (?P<text> \"{3} [^"\\]* (?: (?: \\[\s\S] | "(?!"") ) [^"\\]* )* \"{3}
                | '{3} [^'\\]* (?: (?: \\[\s\S] | '(?!'') ) [^'\\]* )* '{3} )
        | " [^"\\\n]* (?: \\[\s\S] [^"\\\n]* )* "
        | ' [^'\\\n]* (?: \\[\s\S] [^'\\\n]* )* ' )
    """,
    re.VERBOSE,
)
_DOCSTRING_CALL = re.compile(
    r"doc\w*\(.*(?:\n.*){0,2}\Z"
)  # start of a call like torch's add_docstr, numpy's add_newdoc


def read_documents(
    packages: Sequence[str] | None = None, keep: Callable[[str], bool] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield module names and their prose, one paragraph per line: language reference, standard library, packages.

    Packages of the default list are skipped if not installed; packages passed explicitly must be installed. A
    paragraph is yielded only with the first module that contains it, and `keep` selects modules after that. Two calls
    with disjoint `keep` therefore share no paragraph, so that modules can be held out.
    """
    seen_paragraphs: set[str] = set()
    for name, texts in _iter_modules(packages):
        new_paragraphs = []
        for text in texts:
            for paragraph in extract_prose(text):
                if paragraph not in seen_paragraphs:
                    seen_paragraphs.add(paragraph)
                    new_paragraphs.append(paragraph)
        if new_paragraphs and (keep is None or keep(name)):
            yield name, "\n".join(new_paragraphs)


def describe_version(packages: Sequence[str] | None = None) -> str:
    """Return the versions that determine the text: of the extraction, Python and each package."""
    parts = [f"extraction {_EXTRACTION_VERSION}", f"python {platform.python_version()}"]
    installed = importlib.metadata.packages_distributions()
    for package in _installed_packages(packages):
        names = installed.get(package, [])
        parts += [f"{package} {importlib.metadata.version(name)}" for name in sorted(set(names))]
    return ", ".join(parts)


def _installed_packages(packages: Sequence[str] | None) -> list[str]:
    folder = Path(sysconfig.get_paths()["purelib"])
    available = [
        package for package in (DEFAULT_PACKAGES if packages is None else packages) if (folder / package).is_dir()
    ]
    for package in packages or ():
        if package not in available:
            names = (path.name for path in folder.iterdir() if (path / "__init__.py").is_file())
            raise DataError(f"package {package!r} is not installed in {folder}: {suggest(package, names)}")
    return available


def _iter_modules(packages: Sequence[str] | None) -> Iterator[tuple[str, Iterator[str]]]:
    paths = sysconfig.get_paths()
    packages = _installed_packages(packages)
    from pydoc_data.topics import topics

    for topic, text in sorted(topics.items()):
        # The reference puts code in straight quotes; its own quotes are curly.
        yield f"reference.{topic}", iter([re.sub(r'"([^"\n]+)"', r"`\1`", text)])
    yield from _iter_folder(Path(paths["stdlib"]), "")
    for package in packages:
        yield from _iter_folder(Path(paths["purelib"]) / package, package + ".")


def _iter_folder(folder: Path, prefix: str) -> Iterator[tuple[str, Iterator[str]]]:
    files: dict[str, list[Path]] = {}  # by module, which may have a source file and a stub
    for directory, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _EXCLUDED_FOLDERS]
        relative_parts = Path(directory).relative_to(folder).parts
        for name in sorted(name for name in names if name.endswith((".py", ".pyi"))):
            parts = [*relative_parts, name.partition(".")[0]]
            files.setdefault(".".join(parts).removesuffix("__init__"), []).append(Path(directory, name))
    for module in sorted(files):
        sources = (path.read_text(encoding="utf-8", errors="replace") for path in files[module])
        yield (prefix + module).strip("."), itertools.chain.from_iterable(map(_extract_docstrings, sources))


def _extract_docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a source file, including those that a call attaches to C functions.

    Uses a regular expression over tokens: `ast.parse` takes ten times as long on 100 MB of source.
    """
    if '"""' not in source and "'''" not in source:
        return
    # A docstring is expected at the start of the file and after code that ends in a colon (def, class).
    last_end, expects_docstring = 0, True
    for token in _TOKEN.finditer(source):
        between = source[last_end : token.start()].strip()
        last_end, expects_docstring = token.end(), between.endswith(":") or (expects_docstring and not between)
        if token["comment"]:
            continue
        text, is_raw = token["text"], token["prefix"] in ("r", "R")
        if text and not is_raw and token["prefix"]:
            text = None  # bytes or an f-string
        if text and (expects_docstring or _DOCSTRING_CALL.search(source, max(0, token.start() - 200), token.start())):
            yield text[3:-3] if is_raw or "\\" not in text else _unescape(text)
        expects_docstring = False


def _unescape(text: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return ""
