"""Reading a docstring as English: the paragraphs that are prose, one line each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_RULE = re.compile(r"[-=~^*#+_.\"'`:]{3,}(?:\s+[-=~^*#+_.]+)*")  # a section's underline, or a table's
_TABLE = re.compile(r"[|+][-=+|\s]|\|")
_DIRECTIVE = re.compile(r"\.\.\s*(?:(\w[\w:-]*)::\s*(.*))?")
_FIELD = re.compile(r":(\w+)(?: [^:`]*)?:(?!`)\s*(.*)")
_BULLET = re.compile(r"(?:[-*+•]|\(?\d+[.)]|\(?[a-zA-Z][)])\s+(.*)")
_TERM = re.compile(r"[\w*`][\w.,*`/ ]* : \S.*|[*{%][\w*{}()%]+")  # numpydoc's `axis : int`; a lone template field
_ITEM = re.compile(r"[*`]*\w[\w.]*[*`]*(?: \([^()]*(?:\([^()]*\)[^()]*)*\):|:)\s+(\S.*)")  # Google's `axis (int): …`
_HEADING = re.compile(r"(?:examples?|usage|references?|see also|shape|attributes|methods)\b.{0,12}:?:", re.I)
_SPOKEN = {"note", "warning", "attention", "important", "tip", "hint", "caution", "seealso"}

_ROLE = re.compile(r":((?:\w+:)?\w+):`([^`]+)`")
_LINK = re.compile(r"`([^`<]+?)\s*(?:<[^`>]*>)?`__?(?!\w)")
_STRONG = re.compile(r"(?<![\w*`])\*{1,2}([^\s*`](?:[^*`]*[^\s*`])?)\*{1,2}(?![\w*`])")
_CITATION = re.compile(r"\s*\[[#\w-]*\]_")
_TITLE_ROLES = {"ref", "doc", "term", "math", "pep", "rfc", "sup", "sub", "numref", "issue", "cite", "abbr"}

_CODE = re.compile(r"`[^`]*`")
_WORD = re.compile(r"[(\"“‘']*[A-Za-z][a-z]*(?:[-'’/][A-Za-z]+)*[.,;:!?)\"”’']*")
_COMMON = re.compile(
    r"\b(?:the|a|an|of|to|is|are|in|and|or|for|with|be|this|that|if|it|as|by|on|from|not|when|which|will|can)\b"
)


def prose(docstring: str) -> Iterator[str]:
    """The paragraphs of a docstring that read as English, unwrapped, with code words in single backticks.

    Docstrings come in reStructuredText, numpydoc's and Google's dialects, mixed with examples, tables and
    formulas. Lines are followed by indentation; what is code by its mark-up is dropped, and what is left must
    look like sentences.
    """
    block: list[str] = []
    start = 0  # the indentation of the block
    hanging = False  # an item: deeper lines go on with it
    skip: int | None = None  # lines deeper than this are code
    after: int | None = None  # the last paragraph ended in a colon: plain lines deeper than this are code
    example = fenced = False

    def close() -> Iterator[str]:
        nonlocal skip, after
        if not block:
            return
        text = " ".join(block)
        block.clear()
        if text.endswith("::"):
            skip, text = start, text[:-1]
        after = start if text.endswith(":") and text.count(" ") > 2 else None
        text = _inline(text)
        if _is_prose(text):
            yield text

    for line in inspect.cleandoc(docstring).split("\n"):
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if not bare:
            yield from close()
            example = False
        elif bare.startswith("```"):
            yield from close()
            fenced = not fenced
        elif fenced or example or (skip is not None and indent > skip):
            continue
        elif bare.startswith(">>>"):
            yield from close()
            example = True
        elif _RULE.fullmatch(bare):
            if len(block) == 1:  # it underlines a heading
                block.clear()
            yield from close()
        elif _TABLE.match(bare):
            yield from close()
        elif bare.startswith("..") and (found := _DIRECTIVE.match(bare)):
            yield from close()
            skip, start = indent, indent
            if found[1] in _SPOKEN:
                skip, hanging = None, True
                block = [found[2]] if found[2] else []
        else:
            skip, item = None, _item(bare, indent)
            if item is not None or indent < start or (indent > start and not hanging):
                yield from close()
            if item is not None:
                block, start, hanging, after = [item] if item else [], indent, bool(item), None
            elif block:
                block.append(bare)
            elif _HEADING.fullmatch(bare):
                skip = indent
            elif after is not None and indent > after:
                skip = after
            else:
                block, start, hanging, after = [bare], indent, False, None
    yield from close()


def _item(bare: str, indent: int) -> str | None:
    """The text of a line that begins an item of a list, without its mark; None for any other line."""
    if found := _FIELD.match(bare):
        return "" if found[1] in ("type", "rtype", "vartype") else found[2]
    if found := _BULLET.match(bare):
        return found[1]
    if _TERM.fullmatch(bare):
        return ""
    found = _ITEM.match(bare) if indent else None
    return found and found[1]


def _inline(text: str) -> str:
    """Mark-up inside a line to plain text; every kind of code becomes `code`."""
    if "`" in text:
        text = _ROLE.sub(_role, text.replace("``", "`"))
        text = _LINK.sub(r"\1", text)
    if "*" in text:
        text = _STRONG.sub(r"\1", text)
    if "]_" in text:
        text = _CITATION.sub("", text)
    return " ".join(text.replace("\\ ", "").split())


def _role(found: re.Match[str]) -> str:
    text = found[2].split(" <")[0].lstrip("!")
    if text.startswith("~"):
        text = text.rsplit(".", 1)[-1].lstrip("~")
    return text if found[1] in _TITLE_ROLES else f"`{text}`"


def _is_prose(text: str) -> bool:
    """At least five words, most of them plain, one of them common; code in backticks is not counted."""
    words = _CODE.sub("", text).split()
    if len(words) < 5 or text.count("`") % 2:
        return False
    plain = sum(_WORD.fullmatch(word) is not None for word in words)
    return plain >= 0.8 * len(words) and _COMMON.search(text) is not None
