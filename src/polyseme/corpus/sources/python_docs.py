"""English that lies on every Python machine: the language reference and the docstrings of what is installed.

It is read from the source files; no module is imported, so no package runs.
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

from polyseme.corpus.sources.docstrings import prose
from polyseme.errors import UserError, nearest

PACKAGES = (
    *("torch", "numpy", "scipy", "sklearn", "matplotlib", "networkx", "sympy", "rich", "typer", "click"),
    *("jinja2", "pydantic", "tokenizers", "safetensors", "huggingface_hub", "fsspec", "setuptools", "pip"),
)
_VERSION = 1  # of the extraction; a change of what comes out must change it
_LEFT_OUT = {
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
_GIVEN = re.compile(r"doc\w*\(.*(?:\n.*){0,2}\Z")  # the head of a call such as torch's add_docstr, numpy's add_newdoc


def documents(
    packages: Sequence[str] | None = None, keep: Callable[[str], bool] | None = None
) -> Iterator[tuple[str, str]]:
    """Module name and its prose, a paragraph a line: the reference, the standard library, then each package.

    A package of the default list that is not installed is left out; one asked for by name must be there. A
    paragraph stays only where it is met first, and `keep` chooses modules after that: two calls whose `keep`
    exclude each other share no paragraph, so modules can be held out.
    """
    seen: set[str] = set()
    for name, texts in _modules(packages):
        fresh = []
        for text in texts:
            for paragraph in prose(text):
                if paragraph not in seen:
                    seen.add(paragraph)
                    fresh.append(paragraph)
        if fresh and (keep is None or keep(name)):
            yield name, "\n".join(fresh)


def version(packages: Sequence[str] | None = None) -> str:
    """What the text depends on, without reading it: Python's version and that of each package."""
    parts = [f"extraction {_VERSION}", f"python {platform.python_version()}"]
    installed = importlib.metadata.packages_distributions()
    for package in _installed(packages):
        names = installed.get(package, [])
        parts += [f"{package} {importlib.metadata.version(name)}" for name in sorted(set(names))]
    return ", ".join(parts)


def _installed(packages: Sequence[str] | None) -> list[str]:
    folder = Path(sysconfig.get_paths()["purelib"])
    there = [package for package in (PACKAGES if packages is None else packages) if (folder / package).is_dir()]
    for package in packages or ():
        if package not in there:
            names = (path.name for path in folder.iterdir() if (path / "__init__.py").is_file())
            raise UserError(f"no package {package!r} in {folder}: {nearest(package, names)}")
    return there


def _modules(packages: Sequence[str] | None) -> Iterator[tuple[str, Iterator[str]]]:
    paths = sysconfig.get_paths()
    packages = _installed(packages)
    from pydoc_data.topics import topics

    for topic, text in sorted(topics.items()):
        # the reference shows code in straight quotes, and its own quotes are curly
        yield f"reference.{topic}", iter([re.sub(r'"([^"\n]+)"', r"`\1`", text)])
    yield from _folder(Path(paths["stdlib"]), "")
    for package in packages:
        yield from _folder(Path(paths["purelib"]) / package, package + ".")


def _folder(folder: Path, prefix: str) -> Iterator[tuple[str, Iterator[str]]]:
    files: dict[str, list[Path]] = {}  # a module may have a source and a stub
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        inside = Path(where).relative_to(folder).parts
        for name in sorted(name for name in names if name.endswith((".py", ".pyi"))):
            parts = [*inside, name.partition(".")[0]]
            files.setdefault(".".join(parts).removesuffix("__init__"), []).append(Path(where, name))
    for module in sorted(files):
        sources = (path.read_text(encoding="utf-8", errors="replace") for path in files[module])
        yield (prefix + module).strip("."), itertools.chain.from_iterable(map(_docstrings, sources))


def _docstrings(source: str) -> Iterator[str]:
    """The strings that stand where docstrings do, and those that C functions are given by a call.

    Read from the tokens: `ast.parse` takes ten times as long over a hundred megabytes of source.
    """
    if '"""' not in source and "'''" not in source:
        return
    last, opened = 0, True  # whether code since the last string ends as a def, a class or the head of a file
    for token in _TOKEN.finditer(source):
        between = source[last : token.start()].strip()
        last, opened = token.end(), between.endswith(":") or (opened and not between)
        if token["comment"]:
            continue
        text, raw = token["text"], token["prefix"] in ("r", "R")
        if text and not raw and token["prefix"]:
            text = None  # bytes or a formatted string
        if text and (opened or _GIVEN.search(source, max(0, token.start() - 200), token.start())):
            yield text[3:-3] if raw or "\\" not in text else _unescaped(text)
        opened = False


def _unescaped(text: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in other people's strings
            return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return ""
