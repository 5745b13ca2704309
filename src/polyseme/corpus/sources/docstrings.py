"""Reading a docstring as English: the paragraphs that are prose, one line each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_HORIZONTAL_RULE = re.compile(r"[-=~^*#+_.\"'`:]{3,}(?:\s+[-=~^*#+_.]+)*")  # a section's underline, or a table's
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
    """The paragraphs of a docstring that read as English, unwrapped, with code words in single backticks.

    Docstrings come in reStructuredText, numpydoc's and Google's dialects, mixed with examples, tables and
    formulas. Lines are followed by indentation; what is code by its mark-up is dropped, and what is left must
    look like sentences.
    """
    block: list[str] = []
    block_indent = 0  # the indentation of the block
    is_hanging = False  # an item: deeper lines go on with it
    code_indent: int | None = None  # lines deeper than this are code
    colon_indent: int | None = None  # the last paragraph ended in a colon: plain lines deeper than this are code
    in_example = in_fence = False

    def close() -> Iterator[str]:
        nonlocal code_indent, colon_indent
        if not block:
            return
        text = " ".join(block)
        block.clear()
        if text.endswith("::"):
            code_indent, text = block_indent, text[:-1]
        colon_indent = block_indent if text.endswith(":") and text.count(" ") > 2 else None
        text = _strip_markup(text)
        if _is_prose(text):
            yield text

    for line in inspect.cleandoc(docstring).split("\n"):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if not stripped:
            yield from close()
            in_example = False
        elif stripped.startswith("```"):
            yield from close()
            in_fence = not in_fence
        elif in_fence or in_example or (code_indent is not None and indent > code_indent):
            continue
        elif stripped.startswith(">>>"):
            yield from close()
            in_example = True
        elif _HORIZONTAL_RULE.fullmatch(stripped):
            if len(block) == 1:  # it underlines a heading
                block.clear()
            yield from close()
        elif _TABLE.match(stripped):
            yield from close()
        elif stripped.startswith("..") and (directive := _DIRECTIVE.match(stripped)):
            yield from close()
            code_indent, block_indent = indent, indent
            if directive[1] in _PROSE_DIRECTIVES:
                code_indent, is_hanging = None, True
                block = [directive[2]] if directive[2] else []
        else:
            code_indent, item = None, _parse_item(stripped, indent)
            if item is not None or indent < block_indent or (indent > block_indent and not is_hanging):
                yield from close()
            if item is not None:
                block, block_indent, is_hanging, colon_indent = [item] if item else [], indent, bool(item), None
            elif block:
                block.append(stripped)
            elif _HEADING.fullmatch(stripped):
                code_indent = indent
            elif colon_indent is not None and indent > colon_indent:
                code_indent = colon_indent
            else:
                block, block_indent, is_hanging, colon_indent = [stripped], indent, False, None
    yield from close()


def _parse_item(stripped: str, indent: int) -> str | None:
    """The text of a line that begins an item of a list, without its mark; None for any other line."""
    if match := _FIELD.match(stripped):
        return "" if match[1] in ("type", "rtype", "vartype") else match[2]
    if match := _BULLET.match(stripped):
        return match[1]
    if _NUMPYDOC_TERM.fullmatch(stripped):
        return ""
    match = _GOOGLE_ITEM.match(stripped) if indent else None
    return match and match[1]


def _strip_markup(text: str) -> str:
    """Mark-up inside a line to plain text; every kind of code becomes `code`."""
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
    """At least five words, most of them plain, one of them common; code in backticks is not counted."""
    words = _CODE.sub("", text).split()
    if len(words) < 5 or text.count("`") % 2:
        return False
    num_plain = sum(_WORD.fullmatch(word) is not None for word in words)
    return num_plain >= 0.8 * len(words) and _COMMON_WORD.search(text) is not None
