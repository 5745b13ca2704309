"""`polyseme music`: a piece from a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyseme.errors import UserError

if TYPE_CHECKING:
    from polyseme.inference.language_model import LanguageModel


def music(
    model: Annotated[Path, typer.Argument(help="a model folder that was trained on MIDI files")],
    out: Annotated[Path, typer.Option(help="the MIDI file to write")],
    length: Annotated[int, typer.Option(help="how many events at most, those of --prime too", min=1)] = 1024,
    temperature: Annotated[float, typer.Option(help="below 1 what is likely gets likelier; 0 takes the likeliest")] = 1,
    seed: Annotated[int, typer.Option(help="which piece")] = 0,
    prime: Annotated[Path | None, typer.Option(help="a MIDI file to go on with")] = None,
) -> None:
    """Let a model play, event by event, and write the piece as MIDI."""
    import polyseme
    from polyseme.corpus.sources.midi import mido, read_notes, write_notes
    from polyseme.io.files import new_file
    from polyseme.text.events import to_events, to_notes

    mido()
    new_file(out)
    opened = polyseme.load(model)
    if opened.tokenizer.kind != "events":
        raise UserError(f"{model} writes text and not music: its tokenizer is of kind {opened.tokenizer.kind}")
    begun = to_events(read_notes(prime)) if prime else []
    events = opened.tokenizer.pieces(sample(opened, begun, length, temperature, seed))
    notes = to_notes(events)
    write_notes(out, notes)
    print(f"{out}: {len(events):,} events, {len(notes):,} notes, {max((n.end for n in notes), default=0):.1f} seconds")


def sample(opened: LanguageModel, begun: list[str], length: int, temperature: float = 1.0, seed: int = 0) -> list[int]:
    """The ids of a piece of at most `length` events that begins as given; it ends where the model ends it.

    Where places are relative, a piece may be longer than the model reads: it remembers as much as that.
    """
    from polyseme.generation.sample import Sampling
    from polyseme.generation.sample import sample as drawn
    from polyseme.generation.session import endless

    network, marks = opened.model, opened.tokenizer.specials
    if "next" not in network.heads or marks.bos is None:
        raise UserError(f"{opened.path} cannot go on with a piece: it has no head 'next'")
    how = Sampling(temperature, seed=seed)
    if length > opened.max_len and not endless(network):
        raise UserError(f"length is {length}, and the model has places for {opened.max_len} events")
    found = opened.tokenizer.encode(" ".join(begun))
    if len(found) >= length or len(found) >= opened.max_len:
        raise UserError(f"the piece to go on with has {len(found)} events: --length {length} leaves nothing to add")
    most = length - len(found)
    if not endless(network):
        most = min(most, opened.max_len - 1 - len(found))  # the opening mark has a place too
    ends = set() if marks.eos is None else {marks.eos}
    banned = opened.tokenizer.special_ids - ends
    (written,) = drawn(network, [[marks.bos, *found]], most, how, eos=ends, banned=banned)
    return [*found, *written.tokens]
