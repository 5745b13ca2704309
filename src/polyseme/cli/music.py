"""`polyseme music`: generate a piece of music."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from polyseme.errors import ConfigError, UnsupportedError
from polyseme.io.limits import MAX_INTEGER

if TYPE_CHECKING:
    from polyseme.inference.neural_lm import NeuralLM


def music(
    model: Annotated[Path, Argument(help="Folder of a model trained on MIDI files.")],
    out: Annotated[Path, Option(help="Output MIDI file.")],
    max_len: Annotated[int, Option(help="Maximum number of events, including those of --primer.", min=1)] = 1024,
    temperature: Annotated[float, Option(help="Sampling temperature; 0: greedy decoding.")] = 1,
    seed: Annotated[int, Option(help="Random seed.", min=0, max=MAX_INTEGER)] = 0,
    primer: Annotated[Path | None, Option(help="MIDI file to continue.")] = None,
) -> None:
    """Generate a piece event by event and write it as MIDI."""
    from polyseme.corpus.sources.midi import events_to_notes, notes_to_events, read_notes, require_mido, write_notes
    from polyseme.inference.load import load_neural
    from polyseme.io.atomic import ensure_new_file

    require_mido()
    ensure_new_file(out)
    loaded = load_neural(model)
    if loaded.tokenizer.kind != "events":
        raise UnsupportedError(f"{model} generates text, not music: its tokenizer is of kind {loaded.tokenizer.kind}")
    primer_events = notes_to_events(read_notes(primer)) if primer else []
    events = loaded.tokenizer.convert_ids_to_tokens(sample_events(loaded, primer_events, max_len, temperature, seed))
    notes = events_to_notes(events)
    write_notes(out, notes)
    print(f"{out}: {len(events):,} events, {len(notes):,} notes, {max((n.end for n in notes), default=0):.1f} seconds")


def sample_events(
    loaded: "NeuralLM", primer_events: list[str], max_len: int, temperature: float = 1.0, seed: int = 0
) -> list[int]:
    """Return the ids of a piece of at most `max_len` events that starts with the primer.

    With relative positions, a piece may be longer than the model's maximum length, which then limits its memory.
    """
    from polyseme.generation.config import SamplingConfig
    from polyseme.generation.sample import generate_tokens
    from polyseme.generation.session import is_unbounded

    model, specials = loaded.model, loaded.tokenizer.special_token_ids
    if "next" not in model.heads or specials.bos is None:
        raise UnsupportedError(f"{loaded.path} cannot continue a piece: it has no head 'next'")
    config = SamplingConfig(temperature, seed=seed)
    if max_len > loaded.max_len and not is_unbounded(model):
        raise ConfigError(f"max_len is {max_len}, and the model has positions for {loaded.max_len} events")
    primer_ids = loaded.tokenizer.encode(" ".join(primer_events))
    if len(primer_ids) >= min(max_len, loaded.max_len):
        raise ConfigError(f"the primer has {len(primer_ids)} events, which leaves none to add up to max_len {max_len}")
    max_new_tokens = max_len - len(primer_ids)
    if not is_unbounded(model):
        max_new_tokens = min(max_new_tokens, loaded.max_len - 1 - len(primer_ids))  # one position is for BOS
    eos_ids = set() if specials.eos is None else {specials.eos}
    banned_ids = loaded.tokenizer.all_special_ids - eos_ids
    prompts = [[specials.bos, *primer_ids]]
    (hypothesis,) = generate_tokens(
        model, prompts, max_new_tokens, config, eos_token_ids=eos_ids, suppress_tokens=banned_ids
    )
    return [*primer_ids, *hypothesis.tokens]
