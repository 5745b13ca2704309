"""Music as text: a performance is a sequence of event words (Oore et al. 2018, §4) from a fixed vocabulary.

`vel20 on60 shift50 off60` strikes middle C with velocity bin 20 and releases it half a second later. Since a piece is a
text, it can be used wherever text can.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

SECONDS_PER_STEP = 0.01  # duration of `shift1`
NUM_PITCHES, MAX_SHIFT_STEPS, NUM_VELOCITY_BINS = 128, 100, 32
VELOCITY_BIN_WIDTH = 128 // NUM_VELOCITY_BINS  # MIDI velocities per bin
EVENTS = (
    *(f"on{pitch}" for pitch in range(NUM_PITCHES)),
    *(f"off{pitch}" for pitch in range(NUM_PITCHES)),
    *(f"shift{steps}" for steps in range(1, MAX_SHIFT_STEPS + 1)),
    *(f"vel{number}" for number in range(1, NUM_VELOCITY_BINS + 1)),
)
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
_PARSED_EVENTS = {event: (event.rstrip("0123456789"), int(event.lstrip("efhilnostv"))) for event in EVENTS}


class Note(NamedTuple):
    """A note: start and end in seconds, MIDI pitch, and velocity from 1 to 127."""

    start: float
    end: float
    pitch: int
    velocity: int


def notes_to_events(notes: Iterable[Note]) -> list[str]:
    """Convert notes to their canonical sequence of events.

    Times are rounded to 10 ms, the minimum duration of a note. A key that is struck again is released first. At one
    moment, releases come before strikes, each from low to high pitch. A velocity is written only when it changes, and
    silence after the last note is not written.
    """
    end_and_bin: dict[tuple[int, int], tuple[int, int]] = {}  # by pitch and start; the last duplicate wins
    for start, end, pitch, velocity in sorted(notes):
        start_step, end_step = round(start / SECONDS_PER_STEP), round(end / SECONDS_PER_STEP)
        velocity_bin = min(max(velocity, 0), 127) // VELOCITY_BIN_WIDTH + 1
        end_and_bin[pitch, start_step] = max(end_step, start_step + 1), velocity_bin
    key_changes: list[tuple[int, bool, int, int]] = []  # step, is_on, pitch, velocity bin
    next_key = dict(zip(keys := sorted(end_and_bin), [*keys[1:], (NUM_PITCHES, 0)]))
    for (pitch, start_step), (end_step, velocity_bin) in end_and_bin.items():
        next_pitch, next_step = next_key[pitch, start_step]
        end_step = min(end_step, next_step) if next_pitch == pitch else end_step
        key_changes += [(start_step, True, pitch, velocity_bin), (end_step, False, pitch, 0)]
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
    """Convert events to notes. Unknown words and releases of keys that do not sound are ignored.

    A key that is struck again is released first, and keys that still sound at the end are released there. Velocities
    are the centers of their bins.
    """
    notes: list[Note] = []
    sounding: dict[int, tuple[int, int]] = {}  # pitch to start step and velocity bin
    now, velocity_bin = 0, NUM_VELOCITY_BINS // 2
    for kind, value in (_PARSED_EVENTS[event] for event in events if event in _PARSED_EVENTS):
        if kind == "shift":
            now += value
        elif kind == "vel":
            velocity_bin = value
        else:
            if value in sounding:
                notes.append(_make_note(now, value, *sounding.pop(value)))
            if kind == "on":
                sounding[value] = now, velocity_bin
    notes += [_make_note(now, pitch, *start_and_bin) for pitch, start_and_bin in sounding.items()]
    return sorted(notes)


def _make_note(now: int, pitch: int, start: int, velocity_bin: int) -> Note:
    velocity = (velocity_bin - 1) * VELOCITY_BIN_WIDTH + VELOCITY_BIN_WIDTH // 2
    return Note(start * SECONDS_PER_STEP, max(now, start + 1) * SECONDS_PER_STEP, pitch, velocity)
