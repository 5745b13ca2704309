"""Documentation of Python as a text source: prose is extracted, code is dropped."""

from __future__ import annotations

import ast
import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyseme.corpus.sources import python_docs
from polyseme.corpus.sources.python_docs import extract_prose

REST = """
    Return the mean of *all* values, see :func:`~math.fsum` and
    ``statistics.fmean(x)`` for a `fast one <https://x.y>`_ [1]_.

    This is the code that does it::

        if the code is here:
            it must not be read

    .. note:: The note is
        kept as it is prose.

    .. math:: this is not a part of it

    Parameters
    ----------
    axis : int, optional
        The axis along which
        the mean is taken.

    >>> mean([1, 2]) and this is the output
    is this it

    :param weights: how much each of the values counts
    :type weights: a list or an array of it

    =====  =================
    a      this is the table
    =====  =================
"""
GOOGLE = """One line that says what it is for.

    Args:
        dim (int): the dimension to reduce,
            on two lines of the text.
        keep (bool, optional): whether to keep it in the output. Default: ``False``

    Example:
        this is the code and not a text
    """


@pytest.fixture(scope="module", autouse=True)
def cached_extraction() -> Iterator[None]:
    """Extract the prose of each file once, because several tests read the standard library."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_extract_docstrings", "extract_prose"):
            extract = getattr(python_docs, name)
            cached = functools.cache(lambda text, extract=extract: tuple(extract(text)))
            patch.setattr(python_docs, name, cached)
        yield


def test_extract_prose() -> None:
    assert list(extract_prose(REST)) == [
        "Return the mean of all values, see `fsum` and `statistics.fmean(x)` for a fast one.",
        "This is the code that does it:",
        "The note is kept as it is prose.",
        "The axis along which the mean is taken.",
        "how much each of the values counts",
    ]
    assert list(extract_prose(GOOGLE)) == [
        "One line that says what it is for.",
        "the dimension to reduce, on two lines of the text.",
        "whether to keep it in the output. Default: `False`",
    ]


def test_docstrings_match_those_of_ast() -> None:
    folder = Path(sysconfig.get_paths()["stdlib"])
    num_docstrings, num_missing = 0, 0
    for name in ("argparse", "collections/__init__", "http/client", "inspect", "logging/__init__", "typing"):
        source = (folder / f"{name}.py").read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(source))
        node_types = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {ast.get_docstring(node, clean=False) for node in nodes if isinstance(node, node_types)}
        multiline_docstrings = {text for text in docstrings if text and "\n" in text}
        num_docstrings += len(multiline_docstrings)
        num_missing += len(multiline_docstrings - set(python_docs._extract_docstrings(source)))
    assert num_docstrings > 300 and num_missing <= 0.01 * num_docstrings


def test_other_strings_are_ignored() -> None:
    source = '# """ no\n"""Head."""\nx = """no"""\ny = "\'\'\'"\ndef f(a=":"):  # so\n    r"""A\\d."""\n'
    source += '    z(b"""no""")\nadd_docstr(f, r"""\ngiven\n""")\nprint("""no""")\n'
    assert list(python_docs._extract_docstrings(source)) == ["Head.", "A\\d.", "\ngiven\n"]


@pytest.fixture(scope="module")
def docs() -> list[tuple[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_docs, "PACKAGES", ("numpy", "not_installed"))
        assert "numpy" in python_docs.describe_version()
        return list(python_docs.read_documents())


def test_read_documents(docs: list[tuple[str, str]]) -> None:
    names = [name for name, _ in docs]
    assert len(set(names)) == len(names) > 300
    assert {"reference.assert", "json", "collections", "numpy.linalg._linalg"} <= set(names)
    assert names[0].startswith("reference.") and names[-1].startswith("numpy.")
    assert not any("test" in name.split(".") for name in names)
    assert sum(len(text) for _, text in docs) > 1_500_000
    paragraphs = [line for _, text in docs for line in text.split("\n")]
    assert len(set(paragraphs)) == len(paragraphs)
    assert sum("`" in line for line in paragraphs) > 2000
    assert not any(">>>" in line[:3] or "``" in line for line in paragraphs)
    assert "Assert statements are a convenient way to insert debugging assertions into a program:" in paragraphs


def test_heldout_modules_share_no_paragraph_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_docs, "PACKAGES", ())

    def is_heldout(name: str) -> bool:
        return name.startswith(("a", "c", "reference.a"))

    heldout_documents = dict(python_docs.read_documents(keep=is_heldout))
    other_documents = dict(python_docs.read_documents(keep=lambda name: not is_heldout(name)))
    assert (
        "argparse" in heldout_documents
        and "json" in other_documents
        and not heldout_documents.keys() & other_documents.keys()
    )
    lines = [
        {line for text in part.values() for line in text.split("\n")} for part in (heldout_documents, other_documents)
    ]
    assert lines[0] and lines[1] and not lines[0] & lines[1]
