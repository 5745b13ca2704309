"""Generated piano performances."""

import random

from polyseme.corpus.sources.midi import Note


def random_performance(seed: int, count: int = 60) -> list[Note]:
    """Generate notes off any grid, with chords, keys struck while they sound, and long silences."""
    rng, now, notes = random.Random(seed), 0.0, []
    for _ in range(count):
        now += rng.choice((0.0, 0.0, rng.random() / 20, rng.random(), 3 * rng.random()))
        duration = rng.choice((0.001, rng.random() / 10, 4 * rng.random()))
        notes.append(Note(now, now + duration, rng.choice((0, 60, 60, 61, 64, 127)), rng.randint(1, 127)))
    return notes
