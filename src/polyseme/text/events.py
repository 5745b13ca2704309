"""Music as a sequence of words: what a performance does, event by event (Oore et al. 2018, §4).

`vel20 on60 shift50 off60` strikes middle C with velocity bin 20 and lets it go half a second later. So a piece is a
text that one can read, and everything that reads texts reads it; its vocabulary is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from tokenizers import Tokenizer, models, pre_tokenizers

from polyseme.text.pipelines import add_specials, apart

STEP = 0.01  # seconds: what a time shift of 1 lasts
PITCHES, SHIFTS, BINS = 128, 100, 32
WIDTH = 128 // BINS  # velocities in a bin
EVENTS = (
    *(f"on{pitch}" for pitch in range(PITCHES)),
    *(f"off{pitch}" for pitch in range(PITCHES)),
    *(f"shift{steps}" for steps in range(1, SHIFTS + 1)),
    *(f"vel{number}" for number in range(1, BINS + 1)),
)
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
_READ = {
    event: (event.rstrip("0123456789"), int(event.lstrip("abcdefghijklmnopqrstuvwxyz"))) for event in EVENTS
}  # what happens, and its number


class Note(NamedTuple):
    """One key of a piano: when it is struck and let go, in seconds, and how hard, from 1 to 127."""

    start: float
    end: float
    pitch: int
    velocity: int


def build_events() -> Tokenizer:
    """The tokenizer of performances: a word is an event, and nothing is learnt."""
    vocab = {word: i for i, word in enumerate((*SPECIALS, *EVENTS))}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), apart(SPECIALS)])
    add_specials(made, SPECIALS)
    return made


def to_events(notes: Iterable[Note]) -> list[str]:
    """The one way that a performance is written.

    Times are rounded to 10 ms, and a note lasts that long at least. A key that is struck again is let go first. At one
    moment keys are let go before others are struck, each from low to high; a velocity is said where it changes; silence
    behind the last note is not written.
    """
    struck: dict[tuple[int, int], tuple[int, int]] = {}  # pitch and start to end and bin; the last of two stays
    for start, end, pitch, velocity in sorted(notes):
        first = round(start / STEP)
        struck[pitch, first] = max(round(end / STEP), first + 1), min(max(velocity, 0), 127) // WIDTH + 1
    moments: list[tuple[int, bool, int, int]] = []  # when, struck or let go, pitch, bin
    following = dict(zip(keys := sorted(struck), [*keys[1:], (PITCHES, 0)]))
    for (pitch, first), (last, loud) in struck.items():
        again, when = following[pitch, first]
        moments += [(first, True, pitch, loud), (min(last, when) if again == pitch else last, False, pitch, 0)]
    found: list[str] = []
    now = loudness = 0
    for when, group in groupby(sorted(moments), key=lambda moment: moment[0]):
        whole, rest = divmod(when - now, SHIFTS)
        found += [f"shift{SHIFTS}"] * whole + [f"shift{rest}"] * (rest > 0)
        for _, strikes, pitch, loud in group:
            if strikes and loud != loudness:
                found.append(f"vel{loud}")
                loudness = loud
            found.append(f"{'on' if strikes else 'off'}{pitch}")
        now = when
    return found


def to_notes(events: Sequence[str]) -> list[Note]:
    """What is heard. Words that are no events are passed over, as are keys let go that were not struck.

    A key struck twice is let go between; what still sounds at the end ends there. Velocities are the middles of their
    bins.
    """
    notes: list[tuple[int, int, int, int]] = []
    sounding: dict[int, tuple[int, int]] = {}  # pitch to when and how hard
    now, loud = 0, BINS // 2
    for kind, number in (_READ[event] for event in events if event in _READ):
        if kind == "shift":
            now += number
        elif kind == "vel":
            loud = number
        else:
            if number in sounding:
                notes.append(_note(now, number, *sounding.pop(number)))
            if kind == "on":
                sounding[number] = now, loud
    notes += [_note(now, pitch, *struck) for pitch, struck in sounding.items()]
    return [Note(start * STEP, end * STEP, pitch, velocity) for start, end, pitch, velocity in sorted(notes)]


def _note(now: int, pitch: int, start: int, loud: int) -> tuple[int, int, int, int]:
    return start, max(now, start + 1), pitch, (loud - 1) * WIDTH + WIDTH // 2
