"""The corpora of a study: its own, and one for each other tokenizer, prepared from the same sources."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sources.sources import CorpusSource, open_sources
from polyseme.corpus.store import Corpus, read_manifest
from polyseme.errors import ConfigError, DataError, PolysemeError, suggest
from polyseme.families import get_family
from polyseme.io.atomic import atomic_directory
from polyseme.ngram.train import NgramRecipe
from polyseme.studies.arms import resolve_recipe
from polyseme.studies.base import Arm
from polyseme.studies.plan import StudyPlan
from polyseme.text.pipelines import TOKENIZER_KINDS
from polyseme.text.tokenizer import Tokenizer

MIN_VOCAB_SIZE = 512  # of another tokenizer: byte-level BPE starts with 256 bytes


def arm_corpus(plan: StudyPlan, arm: Arm) -> Path:
    """Return the corpus of an arm."""
    return plan.corpus if _uses_own_corpus(plan, arm) else plan.out / "corpora" / _corpus_name(plan, arm)


def missing_corpora(plan: StudyPlan) -> list[Arm]:
    """Return an arm for each corpus that has to be prepared before its arms can run."""
    arms = {arm_corpus(plan, arm): arm for arm in reversed(plan.arms) if plan.seeds_left(arm)}
    return [arm for path, arm in reversed(arms.items()) if not (path / "manifest.json").is_file()]


def check_sources(plan: StudyPlan) -> None:
    """Raise an error for unknown tokenizers, or if another corpus is needed and the sources of the study's are gone."""
    for arm in plan.study.arms:
        if arm.tokenizer and (kind := _parse_kind(arm)[0]) not in TOKENIZER_KINDS:
            raise ConfigError(f"the arm {arm.name}: unknown tokenizer kind {kind!r}; {suggest(kind, TOKENIZER_KINDS)}")
    if missing := missing_corpora(plan):
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


def prepare_corpus(plan: StudyPlan, arm: Arm) -> None:
    """Prepare the sources of the study with the same settings, but by the arm's kind of tokenizer.

    The tokenizer is trained on the sources unless it is in the folder of the study already.
    """
    sources, name = _open_sources(plan, arm), _corpus_name(plan, arm)
    folder = plan.out / "tokenizers" / name
    if not folder.is_dir():
        tokenizer = _train_tokenizer(plan, arm, sources)
        with atomic_directory(folder) as temporary:
            tokenizer.save(temporary)
    settings = read_manifest(plan.corpus)["settings"]
    names = ("clean", "dedup", "dedup_threshold", "shard_characters")
    config = PrepareConfig(**{name: settings[name] for name in names if name in settings})
    prepare(sources, Tokenizer.load(folder), arm_corpus(plan, arm), config)


def _train_tokenizer(plan: StudyPlan, arm: Arm, sources: list[CorpusSource]) -> Tokenizer:
    """Train a tokenizer of the same size and casing as that of the study."""
    study_tokenizer, num_sentinels = _study_tokenizer(plan), _num_sentinels(plan, arm)
    kind, chosen_size = _parse_kind(arm)
    size = (chosen_size or max(Corpus.open(plan.corpus).vocab_size, MIN_VOCAB_SIZE)) + num_sentinels
    options: dict[str, Any] = {"lowercase": study_tokenizer.lowercase, "num_sentinels": num_sentinels}
    texts = (document.text for document in open_sources(sources))
    return Tokenizer.train(kind, texts, None if kind == "characters" else size, **options)  # type: ignore[arg-type]
