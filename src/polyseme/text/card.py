"""The card of a tokenizer folder."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from polyseme.io.atomic import target_name
from polyseme.report.cards.readme import (
    format_code,
    format_front_matter,
    format_literal,
    format_sections,
    format_table,
    write_readme,
)

if TYPE_CHECKING:
    from polyseme.text.tokenizer import Tokenizer


def write_tokenizer_card(folder: Path, tokenizer: "Tokenizer") -> None:
    """Write `README.md` of a tokenizer folder; a model next to it has a card of its own."""
    if (folder / "config.json").exists():
        return
    name = target_name(folder)
    special = ", ".join(f"{role} {token}" for role, token in tokenizer.special_tokens_map.items())
    rows = [
        ("kind", tokenizer.kind),
        ("vocabulary", f"{tokenizer.vocab_size:,} entries"),
        ("lowercase", "yes" if tokenizer.lowercase else "no"),
        ("special tokens", special or "none"),
        ("hash", tokenizer.hash[:16]),
    ]
    text = tokenizer.vocabulary[-1] if tokenizer.kind == "events" else "The cat sat on the mat."
    ours = f"""from polyseme import Tokenizer

tokenizer = Tokenizer.load({format_literal(name)})
print(tokenizer.convert_ids_to_tokens(tokenizer.encode({format_literal(text)})))"""
    theirs = f"""from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({format_literal(name)})
print(tokenizer.tokenize({format_literal(text)}))"""
    usage = f"From the folder above this one:\n\n{format_code(ours)}\n\nWith `transformers`:\n\n{format_code(theirs)}"
    next_command = format_code(f"polyseme prepare TEXT --tokenizer {shlex.quote(name)} --out CORPUS", "bash")
    sections = [("Vocabulary", format_table(["", ""], rows)), ("Usage", f"{usage}\n\n{next_command}")]
    front_matter = {"library_name": "transformers", "tags": ["polyseme", "tokenizer"]}
    lead = f"A tokenizer of kind {tokenizer.kind} with {tokenizer.vocab_size:,} entries."
    write_readme(folder, format_front_matter(front_matter) + "\n" + format_sections(name, lead, sections))
