"""The card of a corpus: facts of its manifest, in the Hub's format of a dataset card. It contains no text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyseme.report.cards.model_card import format_corpus
from polyseme.report.cards.readme import (
    format_code,
    format_front_matter,
    format_list,
    format_sections,
    short_name,
    write_readme,
)


def corpus_facts(manifest: dict[str, Any], path: Path | None = None) -> dict[str, Any]:
    """Return what cards say about a corpus: its name if the path is passed, sizes, languages, cleaning and sources."""
    settings, removed = manifest.get("settings", {}), manifest.get("removed", {})
    duplicates = removed.get("duplicates", {})
    counts = {
        "bad rows": removed.get("num_bad", 0),
        "documents by cleaning": sum(step.get("removed", 0) for step in removed.get("cleaning", {}).values()),
        "duplicates": duplicates.get("exact", 0) + duplicates.get("near", 0),
        "pairs": sum(removed.get("pairs", {}).values()),
    }
    facts = {
        "name": path.absolute().name if path else "",
        **manifest.get("counts", {}),
        "languages": sorted(filter(None, manifest.get("languages", {}))),
        "vocabulary": manifest["vocab_size"],
        "cleaning": settings.get("clean", ""),
        "deduplication": settings.get("dedup", ""),
        "removed": ", ".join(f"{count:,} {what}" for what, count in counts.items() if count),
        "hash": manifest["hash"][:16],
        "sources": [
            {
                "name": ", ".join(map(short_name, str(source.get("path", "")).split(", "))),
                "language": source.get("lang", ""),
                "documents": source["counts"].get("documents", 0),
                "tokens": source["counts"].get("tokens", 0),
                "weight": source["weight"],
            }
            for source in manifest.get("sources", ())
        ],
    }
    return {name: value for name, value in facts.items() if value}


def write_corpus_card(folder: Path, manifest: dict[str, Any]) -> None:
    """Write `README.md` of a corpus. It depends only on the manifest, so that equal corpora have equal files."""
    facts = corpus_facts(manifest)
    tokens = facts.get("tokens", 0)
    size = next((label for label, limit in _SIZES.items() if facts.get("documents", 0) < limit), "n>1B")
    usage = 'from polyseme import Corpus\n\ncorpus = Corpus.open(".")\nprint(corpus.num_tokens)'
    commands = "polyseme verify .\npolyseme describe .\npolyseme pretrain RECIPE --corpus . --out ../RUN"
    limits = [
        "The text can be decoded from the tokens: share the folder only if you may share the text.",
        "Its license is that of the sources; Polyseme does not know it.",
        "Languages are those declared for the sources, unless the cleaning step `language` checked them.",
    ]
    front_matter = {
        "language": facts.get("languages", []),
        "task_categories": ["translation" if "pairs" in manifest else "text-generation"],
        "size_categories": [size],
        "tags": ["polyseme", "tokenized"],
    }
    lead = f"A tokenized corpus for pre-training: {facts.get('documents', 0):,} documents, {tokens:,} tokens. "
    lead += "The token ids are in memory-mapped `.npy` files, `tokenizer/` encodes and decodes them, and "
    lead += "`manifest.json` lists the hash of every file."
    sections = [
        ("Content", format_corpus(facts)),
        ("Usage", f"In this folder:\n\n{format_code(usage)}\n\n{format_code(commands, 'bash')}"),
        ("Limits", format_list(limits)),
    ]
    title = _format_title([source["name"] for source in facts.get("sources", ())])
    write_readme(folder, format_front_matter(front_matter) + "\n" + format_sections(title, lead, sections))


def _format_title(sources: Sequence[str]) -> str:
    """Return a title that names up to three sources, or two of them and how many more there are."""
    names = ["standard input" if name == "-" else name for name in dict.fromkeys(sources)]
    if len(names) > 3:
        names[2:] = [f"{len(names) - 2:,} more"]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    return f"Tokenized corpus of {listed}" if listed else "Tokenized corpus"


_SIZES = {  # the Hub's names, and what they are below
    **{"n<1K": 10**3, "1K<n<10K": 10**4, "10K<n<100K": 10**5, "100K<n<1M": 10**6, "1M<n<10M": 10**7},
    **{"10M<n<100M": 10**8, "100M<n<1B": 10**9},
}
