"""`README.md` files in the Hub's format: YAML front matter, Markdown, and a last line that tells whether it was edited.

A file that a user edited is never overwritten. The last line has the hash of the text above it, so that this can be
told even in a run that was interrupted. `SHA256SUMS` does not list the file: it is documentation, not content.
"""

import hashlib
import json
import logging
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyseme.io.atomic import write_text
from polyseme.io.hashes import README_FILE

logger = logging.getLogger(__name__)
_SIGNATURE = re.compile(rb"\n<!-- Written by Polyseme \(sha256 ([0-9a-f]{64})\)[^\n]*-->\n\Z")
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


def write_readme(folder: Path, text: str, existing: Path | None = None) -> None:
    """Write `README.md`, unless a user edited the one that is there, or in the folder `existing`, which is replaced."""
    path = (existing or folder) / README_FILE
    if is_edited(path):
        logger.info("%s was edited, so it is kept; remove it to get a new one", path)
        if existing is not None:
            shutil.copyfile(path, folder / README_FILE)
        return
    text = text.rstrip() + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    comment = f"<!-- Written by Polyseme (sha256 {digest}); an edited file is not overwritten. -->"
    write_text(folder / README_FILE, f"{text}\n{comment}\n")


def add_limit(folder: Path, line: str) -> None:
    """Add a line to the limits on a card, unless it has that line or was edited."""
    path = folder / README_FILE
    if path.is_file() and not is_edited(path):
        text = path.read_text(encoding="utf-8")
        if f"\n- {line}\n" not in text:
            text = text[: text.rindex("\n<!-- ")].replace("\n## Limits\n\n", f"\n## Limits\n\n- {line}\n", 1)
            write_readme(folder, text)


def is_edited(path: Path) -> bool:
    """Return whether a `README.md` exists and is not as it was written."""
    if not path.is_file():
        return False
    content = path.read_bytes()
    match = _SIGNATURE.search(content)
    return match is None or hashlib.sha256(content[: match.start()]).hexdigest().encode() != match[1]


def short_name(path: object) -> str:
    """Return the last part of a path, or the run's name for `RUN/model`: no card shows the folders of a machine."""
    parts = [part for part in str(path).rstrip("/").split("/") if part not in ("", ".", "..")]
    if parts[-1:] == ["model"]:
        parts = parts[:-1] or parts
    return parts[-1] if parts else "model"


def format_front_matter(values: Mapping[str, Any]) -> str:
    """Return YAML front matter; entries that are empty are left out."""
    lines = ["---"]
    for key, value in values.items():
        if value or value is False or value == 0:
            lines += _format_yaml(key, value, "")
    return "\n".join([*lines, "---", ""])


def _format_yaml(key: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{indent}{key}:", *(line for k, v in value.items() for line in _format_yaml(k, v, indent + "  "))]
    if not isinstance(value, list | tuple):
        return [f"{indent}{key}: {_format_scalar(value)}"]
    lines = [f"{indent}{key}:"]
    for entry in value:
        if isinstance(entry, Mapping):
            inner = [line for k, v in entry.items() for line in _format_yaml(k, v, indent + "  ")]
            lines += [f"{indent}- {inner[0].lstrip()}", *inner[1:]]
        else:
            lines.append(f"{indent}- {_format_scalar(entry)}")
    return lines


def _format_scalar(value: Any) -> str:
    """Return a YAML scalar: a plain word, a number, or a JSON string, which YAML reads alike if it is printable."""
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    text = str(value)
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{2,}", text) and text.lower() not in ("yes", "off", "null", "true", "false"):
        return text
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def escape(text: object, max_len: int = 120) -> str:
    """Return text for a line or a cell of Markdown, on one line and shortened."""
    line = " ".join(str(text).encode("utf-8", "replace").decode().split())
    line = line if len(line) <= max_len else line[: max_len - 1] + "…"
    return re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", line)


def format_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; numbers are aligned to the right by their column's name in the caller's order."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def format_list(lines: Iterable[str]) -> str:
    """Return a Markdown list of lines that are Markdown."""
    return "\n".join(f"- {line}" for line in lines)


def format_code(code: str, language: str = "python") -> str:
    """Return a block of code."""
    return f"```{language}\n{code.rstrip()}\n```"


def format_sections(title: str, lead: str, sections: Iterable[tuple[str, str]]) -> str:
    """Return a Markdown page; sections without content are left out."""
    parts = [f"# {escape(title)}", lead, *(f"## {name}\n\n{content}" for name, content in sections if content)]
    return "\n\n".join(part for part in parts if part)


def format_literal(value: Any) -> str:
    """Return a Python expression for texts, numbers and tuples or lists of them."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        inner = ", ".join(map(format_literal, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def format_number(value: object, digits: int = 4) -> str:
    """Return a count with separators, or a float with some significant digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    is_usual = value == 0 or (math.isfinite(value) and 1e-3 <= abs(value) < 1e5)
    return f"{value:.{digits}f}" if is_usual else f"{value:.{digits}g}"
