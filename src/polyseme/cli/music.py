"""`polyseme music`: a piece from a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyseme.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from polyseme.inference.language_model import LanguageModel


def music(
    model: Annotated[Path, typer.Argument(help="a model folder that was trained on MIDI files")],
    out: Annotated[Path, typer.Option(help="the MIDI file to write")],
    max_len: Annotated[int, typer.Option(help="how many events at most, those of --primer too", min=1)] = 1024,
    temperature: Annotated[float, typer.Option(help="below 1 what is likely gets likelier; 0 takes the likeliest")] = 1,
    seed: Annotated[int, typer.Option(help="which piece")] = 0,
    primer: Annotated[Path | None, typer.Option(help="a MIDI file to go on with")] = None,
) -> None:
    """Let a model play, event by event, and write the piece as MIDI."""
    import polyseme
    from polyseme.corpus.sources.midi import read_notes, require_mido, write_notes
    from polyseme.io.atomic import ensure_new_file
    from polyseme.text.events import events_to_notes, notes_to_events

    require_mido()
    ensure_new_file(out)
    language_model = polyseme.load(model)
    if language_model.tokenizer.kind != "events":
        raise UnsupportedError(
            f"{model} writes text and not music: its tokenizer is of kind {language_model.tokenizer.kind}"
        )
    primer_events = notes_to_events(read_notes(primer)) if primer else []
    events = language_model.tokenizer.convert_ids_to_tokens(
        sample_events(language_model, primer_events, max_len, temperature, seed)
    )
    notes = events_to_notes(events)
    write_notes(out, notes)
    print(f"{out}: {len(events):,} events, {len(notes):,} notes, {max((n.end for n in notes), default=0):.1f} seconds")


def sample_events(
    language_model: LanguageModel, primer_events: list[str], max_len: int, temperature: float = 1.0, seed: int = 0
) -> list[int]:
    """The ids of a piece of at most `max_len` events that begins as given; it ends where the model ends it.

    Where places are relative, a piece may be longer than the model reads: it remembers as much as that.
    """
    from polyseme.generation.sample import SamplingConfig, generate_tokens
    from polyseme.generation.session import is_unbounded

    model, specials = language_model.model, language_model.tokenizer.special_token_ids
    if "next" not in model.heads or specials.bos is None:
        raise UnsupportedError(f"{language_model.path} cannot go on with a piece: it has no head 'next'")
    sampling_config = SamplingConfig(temperature, seed=seed)
    if max_len > language_model.max_len and not is_unbounded(model):
        raise ConfigError(f"max_len is {max_len}, and the model has places for {language_model.max_len} events")
    primer_ids = language_model.tokenizer.encode(" ".join(primer_events))
    if len(primer_ids) >= max_len or len(primer_ids) >= language_model.max_len:
        raise ConfigError(
            f"the piece to go on with has {len(primer_ids)} events: --max-len {max_len} leaves nothing to add"
        )
    max_new_tokens = max_len - len(primer_ids)
    if not is_unbounded(model):
        max_new_tokens = min(
            max_new_tokens, language_model.max_len - 1 - len(primer_ids)
        )  # the opening mark has a place too
    eos_ids = set() if specials.eos is None else {specials.eos}
    banned_ids = language_model.tokenizer.all_special_ids - eos_ids
    (hypothesis,) = generate_tokens(
        model,
        [[specials.bos, *primer_ids]],
        max_new_tokens,
        sampling_config,
        eos_token_ids=eos_ids,
        suppress_tokens=banned_ids,
    )
    return [*primer_ids, *hypothesis.tokens]
