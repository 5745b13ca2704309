"""Music as a sequence of words: what a performance does, event by event (Oore et al. 2018, §4).

`vel20 on60 shift50 off60` strikes middle C with velocity bin 20 and lets it go half a second later. So a piece is a
text that one can read, and everything that reads texts reads it; its vocabulary is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

SECONDS_PER_STEP = 0.01  # seconds: what a time shift of 1 lasts
NUM_PITCHES, MAX_SHIFT_STEPS, NUM_VELOCITY_BINS = 128, 100, 32
VELOCITY_BIN_WIDTH = 128 // NUM_VELOCITY_BINS  # velocities in a bin
EVENTS = (
    *(f"on{pitch}" for pitch in range(NUM_PITCHES)),
    *(f"off{pitch}" for pitch in range(NUM_PITCHES)),
    *(f"shift{steps}" for steps in range(1, MAX_SHIFT_STEPS + 1)),
    *(f"vel{number}" for number in range(1, NUM_VELOCITY_BINS + 1)),
)
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
_PARSED_EVENTS = {
    event: (event.rstrip("0123456789"), int(event.lstrip("abcdefghijklmnopqrstuvwxyz"))) for event in EVENTS
}  # what happens, and its number


class Note(NamedTuple):
    """One key of a piano: when it is struck and let go, in seconds, and how hard, from 1 to 127."""

    start: float
    end: float
    pitch: int
    velocity: int


def notes_to_events(notes: Iterable[Note]) -> list[str]:
    """The one way that a performance is written.

    Times are rounded to 10 ms, and a note lasts that long at least. A key that is struck again is let go first. At one
    moment keys are let go before others are struck, each from low to high; a velocity is said where it changes; silence
    behind the last note is not written.
    """
    end_and_bin: dict[tuple[int, int], tuple[int, int]] = {}  # pitch and start to end and bin; the last of two stays
    for start, end, pitch, velocity in sorted(notes):
        start_step = round(start / SECONDS_PER_STEP)
        end_and_bin[pitch, start_step] = (
            max(round(end / SECONDS_PER_STEP), start_step + 1),
            min(max(velocity, 0), 127) // VELOCITY_BIN_WIDTH + 1,
        )
    key_changes: list[tuple[int, bool, int, int]] = []  # when, struck or let go, pitch, bin
    next_key = dict(zip(keys := sorted(end_and_bin), [*keys[1:], (NUM_PITCHES, 0)]))
    for (pitch, start_step), (end_step, velocity_bin) in end_and_bin.items():
        next_pitch, step = next_key[pitch, start_step]
        key_changes += [
            (start_step, True, pitch, velocity_bin),
            (min(end_step, step) if next_pitch == pitch else end_step, False, pitch, 0),
        ]
    events: list[str] = []
    now = current_bin = 0
    for step, group in groupby(sorted(key_changes), key=lambda moment: moment[0]):
        num_full_shifts, rest = divmod(step - now, MAX_SHIFT_STEPS)
        events += [f"shift{MAX_SHIFT_STEPS}"] * num_full_shifts + [f"shift{rest}"] * (rest > 0)
        for _, is_on, pitch, velocity_bin in group:
            if is_on and velocity_bin != current_bin:
                events.append(f"vel{velocity_bin}")
                current_bin = velocity_bin
            events.append(f"{'on' if is_on else 'off'}{pitch}")
        now = step
    return events


def events_to_notes(events: Sequence[str]) -> list[Note]:
    """What is heard. Words that are no events are passed over, as are keys let go that were not struck.

    A key struck twice is let go between; what still sounds at the end ends there. Velocities are the middles of their
    bins.
    """
    notes: list[tuple[int, int, int, int]] = []
    sounding: dict[int, tuple[int, int]] = {}  # pitch to when and how hard
    now, velocity_bin = 0, NUM_VELOCITY_BINS // 2
    for kind, value in (_PARSED_EVENTS[event] for event in events if event in _PARSED_EVENTS):
        if kind == "shift":
            now += value
        elif kind == "vel":
            velocity_bin = value
        else:
            if value in sounding:
                notes.append(_quantized_note(now, value, *sounding.pop(value)))
            if kind == "on":
                sounding[value] = now, velocity_bin
    notes += [_quantized_note(now, pitch, *start_and_bin) for pitch, start_and_bin in sounding.items()]
    return [
        Note(start * SECONDS_PER_STEP, end * SECONDS_PER_STEP, pitch, velocity)
        for start, end, pitch, velocity in sorted(notes)
    ]


def _quantized_note(now: int, pitch: int, start: int, velocity_bin: int) -> tuple[int, int, int, int]:
    return start, max(now, start + 1), pitch, (velocity_bin - 1) * VELOCITY_BIN_WIDTH + VELOCITY_BIN_WIDTH // 2
