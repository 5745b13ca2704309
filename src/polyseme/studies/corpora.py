"""The corpora of a study: its own, and one for each other tokenizer, prepared from the same sources."""

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sources.sources import CorpusSource, open_sources
from polyseme.corpus.store import Corpus, read_manifest
from polyseme.errors import ConfigError, DataError, PolysemeError
from polyseme.families import get_family
from polyseme.ngram.train import NgramRecipe
from polyseme.studies.arms import resolve_recipe
from polyseme.studies.base import Arm
from polyseme.studies.plan import StudyPlan
from polyseme.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
MIN_VOCAB_SIZE = 512  # of another tokenizer: byte-level BPE starts with 256 bytes


def arm_corpus(plan: StudyPlan, arm: Arm) -> Path:
    """Return the corpus of an arm."""
    return plan.corpus if _uses_own_corpus(plan, arm) else plan.out / "corpora" / _corpus_name(plan, arm)


def prepare_corpora(plan: StudyPlan) -> None:
    """Prepare the corpora that are missing; raise `DataError` if the sources of the corpus are gone."""
    for arm in plan.arms:
        path = arm_corpus(plan, arm)
        if path != plan.corpus and not (path / "manifest.json").is_file():
            logger.info("preparing the corpus of the tokenizer %s", path.name)
            _prepare(plan, arm, path)


def check_sources(plan: StudyPlan) -> None:
    """Raise `DataError` if another corpus is needed and the sources of the study's corpus are gone."""
    missing = [arm for arm in plan.arms if not (arm_corpus(plan, arm) / "manifest.json").is_file()]
    if missing:
        _open_sources(plan, missing[0])


def _uses_own_corpus(plan: StudyPlan, arm: Arm) -> bool:
    return not arm.tokenizer or (arm.tokenizer == _study_tokenizer(plan).kind and not _num_sentinels(plan, arm))


def _parse_kind(arm: Arm) -> tuple[str, int]:
    """Return the kind and the size of an arm's tokenizer, `words:50000`; 0 for the size of the study's."""
    kind, _, size = arm.tokenizer.partition(":")
    if size and not size.isdecimal():
        raise ConfigError(f"the tokenizer of the arm {arm.name} is {arm.tokenizer!r}: expected KIND or KIND:SIZE")
    return kind, int(size or 0)


def _study_tokenizer(plan: StudyPlan) -> Tokenizer:
    return Tokenizer.load(plan.corpus / "tokenizer")


def _num_sentinels(plan: StudyPlan, arm: Arm) -> int:
    """Return the number of sentinels that the family of an arm needs and the corpus lacks."""
    recipe = resolve_recipe(arm, plan.options.overrides, plan.corpus)
    return 0 if isinstance(recipe, NgramRecipe) else get_family(recipe.family).num_sentinels


def _corpus_name(plan: StudyPlan, arm: Arm) -> str:
    return arm.tokenizer.replace(":", "-") + ("-sentinels" if _num_sentinels(plan, arm) else "")


def _open_sources(plan: StudyPlan, arm: Arm) -> list[CorpusSource]:
    manifest = read_manifest(plan.corpus)
    names = [each.name for each in fields(CorpusSource)]
    sources = [CorpusSource(**{name: row[name] for name in names if name in row}) for row in manifest["sources"]]
    try:
        reader = open_sources(sources)
        current = [facts.get("sha256") for facts in reader.file_facts]
    except PolysemeError as error:
        raise DataError(f"the arm {arm.name} needs the text of {plan.corpus} with another tokenizer: {error}") from None
    if current != [facts.get("sha256") for facts in manifest["source_files"]]:
        problem = f"the sources of {plan.corpus} have changed"
        raise DataError(
            f"{problem}, and the arm {arm.name} needs them with another tokenizer: prepare the corpus again"
        )
    return sources


def _prepare(plan: StudyPlan, arm: Arm, path: Path) -> None:
    """Train a tokenizer of the same size and casing on the sources, and prepare them with the same settings."""
    sources, study_tokenizer = _open_sources(plan, arm), _study_tokenizer(plan)
    settings = read_manifest(plan.corpus)["settings"]
    num_sentinels = _num_sentinels(plan, arm)
    kind, chosen_size = _parse_kind(arm)
    size = (chosen_size or max(Corpus.open(plan.corpus).vocab_size, MIN_VOCAB_SIZE)) + num_sentinels
    options: dict[str, Any] = {"lowercase": study_tokenizer.lowercase, "num_sentinels": num_sentinels}
    texts = (document.text for document in open_sources(sources))
    tokenizer = Tokenizer.train(kind, texts, None if kind == "characters" else size, **options)  # type: ignore[arg-type]
    names = ("clean", "dedup", "dedup_threshold", "shard_characters")
    prepare(sources, tokenizer, path, PrepareConfig(**{name: settings[name] for name in names if name in settings}))
