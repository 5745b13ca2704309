"""Extraction of English prose from docstrings, one paragraph per line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_HORIZONTAL_RULE = re.compile(
    r"[-=~^*#+_.\"'`:]{3,}(?:\s+[-=~^*#+_.]+)*"
)  # underline of a heading, or border of a table
_TABLE = re.compile(r"[|+][-=+|\s]|\|")
_DIRECTIVE = re.compile(r"\.\.\s*(?:(\w[\w:-]*)::\s*(.*))?")
_FIELD = re.compile(r":(\w+)(?: [^:`]*)?:(?!`)\s*(.*)")
_BULLET = re.compile(r"(?:[-*+•]|\(?\d+[.)]|\(?[a-zA-Z][)])\s+(.*)")
_NUMPYDOC_TERM = re.compile(
    r"[\w*`][\w.,*`/ ]* : \S.*|[*{%][\w*{}()%]+"
)  # numpydoc's `axis : int`; a lone template field
_GOOGLE_ITEM = re.compile(
    r"[*`]*\w[\w.]*[*`]*(?: \([^()]*(?:\([^()]*\)[^()]*)*\):|:)\s+(\S.*)"
)  # Google's `axis (int): …`
_HEADING = re.compile(r"(?:examples?|usage|references?|see also|shape|attributes|methods)\b.{0,12}:?:", re.I)
_PROSE_DIRECTIVES = {"note", "warning", "attention", "important", "tip", "hint", "caution", "seealso"}

_ROLE = re.compile(r":((?:\w+:)?\w+):`([^`]+)`")
_LINK = re.compile(r"`([^`<]+?)\s*(?:<[^`>]*>)?`__?(?!\w)")
_STRONG = re.compile(r"(?<![\w*`])\*{1,2}([^\s*`](?:[^*`]*[^\s*`])?)\*{1,2}(?![\w*`])")
_CITATION = re.compile(r"\s*\[[#\w-]*\]_")
_TITLE_ROLES = {"ref", "doc", "term", "math", "pep", "rfc", "sup", "sub", "numref", "issue", "cite", "abbr"}

_CODE = re.compile(r"`[^`]*`")
_WORD = re.compile(r"[(\"“‘']*[A-Za-z][a-z]*(?:[-'’/][A-Za-z]+)*[.,;:!?)\"”’']*")
_COMMON_WORD = re.compile(
    r"\b(?:the|a|an|of|to|is|are|in|and|or|for|with|be|this|that|if|it|as|by|on|from|not|when|which|will|can)\b"
)


def extract_prose(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring that are English prose, unwrapped, with code in single backticks.

    Docstrings are written in reStructuredText and in the numpydoc and Google styles, mixed with examples, tables and
    formulas. Blocks are found by indentation; blocks marked up as code are dropped, and the rest must look like
    sentences.
    """
    parser = _DocstringParser()
    for line in inspect.cleandoc(docstring).split("\n"):
        yield from parser.add_line(line)
    yield from parser.close_block()


class _DocstringParser:
    """Collects the lines of a docstring into blocks."""

    def __init__(self) -> None:
        self.block: list[str] = []
        self.block_indent = 0
        self.is_hanging = False  # the block is a list item: more indented lines continue it
        self.code_indent: int | None = None  # more indented lines are code
        # Set if the last paragraph ended in a colon: more indented plain lines are code
        self.colon_indent: int | None = None
        self.in_example = self.in_fence = False

    def close_block(self) -> Iterator[str]:
        """Yield the block if it is prose, and start a new one."""
        if not self.block:
            return
        text = " ".join(self.block)
        self.block = []
        if text.endswith("::"):
            self.code_indent, text = self.block_indent, text[:-1]
        self.colon_indent = self.block_indent if text.endswith(":") and text.count(" ") > 2 else None
        text = _strip_markup(text)
        if _is_prose(text):
            yield text

    def add_line(self, line: str) -> Iterator[str]:
        """Add a line; yield the block that it ends."""
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if not stripped:
            yield from self.close_block()
            self.in_example = False
        elif stripped.startswith("```"):
            yield from self.close_block()
            self.in_fence = not self.in_fence
        elif self.in_fence or self.in_example or (self.code_indent is not None and indent > self.code_indent):
            return
        elif stripped.startswith(">>>"):
            yield from self.close_block()
            self.in_example = True
        elif _HORIZONTAL_RULE.fullmatch(stripped):
            if len(self.block) == 1:  # the underline of a heading
                self.block = []
            yield from self.close_block()
        elif _TABLE.match(stripped):
            yield from self.close_block()
        elif stripped.startswith("..") and (directive := _DIRECTIVE.match(stripped)):
            yield from self.close_block()
            self.code_indent, self.block_indent = indent, indent
            if directive[1] in _PROSE_DIRECTIVES:
                self.code_indent, self.is_hanging = None, True
                self.block = [directive[2]] if directive[2] else []
        else:
            yield from self._add_text(stripped, indent)

    def _add_text(self, stripped: str, indent: int) -> Iterator[str]:
        self.code_indent, item_text = None, _parse_item(stripped, indent)
        is_outside = indent < self.block_indent or (indent > self.block_indent and not self.is_hanging)
        if item_text is not None or is_outside:
            yield from self.close_block()
        if item_text is not None:
            self._start_block(item_text, indent, is_hanging=bool(item_text))
        elif self.block:
            self.block.append(stripped)
        elif _HEADING.fullmatch(stripped):
            self.code_indent = indent
        elif self.colon_indent is not None and indent > self.colon_indent:
            self.code_indent = self.colon_indent
        else:
            self._start_block(stripped, indent, is_hanging=False)

    def _start_block(self, text: str, indent: int, is_hanging: bool) -> None:
        self.block = [text] if text else []
        self.block_indent, self.is_hanging, self.colon_indent = indent, is_hanging, None


def _parse_item(stripped: str, indent: int) -> str | None:
    """Return the text of a line that begins a list item, without its marker; None for any other line."""
    if match := _FIELD.match(stripped):
        return "" if match[1] in ("type", "rtype", "vartype") else match[2]
    if match := _BULLET.match(stripped):
        return match[1]
    if _NUMPYDOC_TERM.fullmatch(stripped):
        return ""
    match = _GOOGLE_ITEM.match(stripped) if indent else None
    return match and match[1]


def _strip_markup(text: str) -> str:
    """Convert inline markup to plain text; every kind of code becomes `code`."""
    if "`" in text:
        text = _ROLE.sub(_replace_role, text.replace("``", "`"))
        text = _LINK.sub(r"\1", text)
    if "*" in text:
        text = _STRONG.sub(r"\1", text)
    if "]_" in text:
        text = _CITATION.sub("", text)
    return " ".join(text.replace("\\ ", "").split())


def _replace_role(match: re.Match[str]) -> str:
    text = match[2].split(" <")[0].lstrip("!")
    if text.startswith("~"):
        text = text.rsplit(".", 1)[-1].lstrip("~")
    return text if match[1] in _TITLE_ROLES else f"`{text}`"


def _is_prose(text: str) -> bool:
    """Return whether a text has at least five words, most of them plain and one common, not counting code."""
    words = _CODE.sub("", text).split()
    if len(words) < 5 or text.count("`") % 2:
        return False
    num_plain = sum(_WORD.fullmatch(word) is not None for word in words)
    return num_plain >= 0.8 * len(words) and _COMMON_WORD.search(text) is not None
