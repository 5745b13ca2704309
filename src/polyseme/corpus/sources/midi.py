"""Music as text: a performance is a sequence of event words (Oore et al. 2018, §4), stored in MIDI files.

`vel20 on60 shift50 off60` strikes middle C with velocity bin 20 and releases it half a second later. Since a piece is a
text, it can be used wherever text can.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from polyseme.corpus.sources.documents import Document, ReadResult
from polyseme.errors import DataError, PolysemeError, require_package
from polyseme.io.atomic import atomic_write
from polyseme.io.lines import bad_input, read_small_file

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
DEFAULT_TEMPO = 500_000  # microseconds per beat, the default of the MIDI standard
TICKS_PER_BEAT = 500  # in written files, so that a tick is a millisecond
_SUSTAIN_PEDAL, _DRUM_CHANNEL = 64, 9
_MAX_SECONDS = 24 * 3600  # a longer piece is taken for a damaged file


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


def require_mido() -> Any:
    """Import mido, or raise an `UnsupportedError` that says how to install it."""
    return require_package("mido", "reading or writing MIDI files", "'polyseme[music]'")


def read_midi(path: Path, name: str) -> Iterator[ReadResult]:
    """Read a MIDI file as one document of events, or yield the error."""
    try:
        events = notes_to_events(read_notes(path, name))
    except DataError as error:
        yield error
        return
    yield Document(" ".join(events), name) if events else bad_input(f"{name} has no notes")


def read_notes(path: Path, name: str = "") -> list[Note]:
    """Read the notes of all channels except drums, as if played on one piano.

    While the sustain pedal of a channel is down, its notes last until the pedal is released or the same key is struck
    again (Oore et al. 2018, §3.2).
    """
    name, library = name or str(path), require_mido()
    content = read_small_file(path, name)
    if content[:4] != b"MThd":
        raise bad_input(f"{name} is not a MIDI file: it begins with {content[:4]!r}, not with b'MThd'")
    try:
        file = library.MidiFile(file=io.BytesIO(content), clip=True)
        if file.type == 2:
            raise bad_input(f"{name}: MIDI type 2 (several pieces in one file) is not supported, only types 0 and 1")
        if not 0 < file.ticks_per_beat < 1 << 15:
            raise bad_input(f"{name}: SMPTE time codes are not supported, only ticks per beat")
        return _messages_to_notes(library.merge_tracks(file.tracks), file.ticks_per_beat, name)
    except PolysemeError:
        raise
    except Exception as error:  # mido raises many types for damaged files
        raise bad_input(f"{name} is a damaged MIDI file ({type(error).__name__} {str(error)[:80]})") from None


def _messages_to_notes(messages: Iterable[Any], ticks_per_beat: int, name: str) -> list[Note]:
    notes: list[Note] = []
    sounding: dict[tuple[int, int], tuple[float, int]] = {}  # (channel, pitch) → (start, velocity)
    sustained_keys: set[tuple[int, int]] = set()  # released, but held by the pedal
    pedal_channels: set[int] = set()  # channels whose pedal is down
    now, tempo = 0.0, DEFAULT_TEMPO

    def end(key: tuple[int, int]) -> None:
        sustained_keys.discard(key)
        if key in sounding:
            start, velocity = sounding.pop(key)
            notes.append(Note(start, now, key[1], velocity))

    for message in messages:
        now += message.time * tempo * 1e-6 / ticks_per_beat
        if not now < _MAX_SECONDS:
            raise bad_input(f"{name} lasts longer than {_MAX_SECONDS // 3600} hours")
        if message.type == "set_tempo":
            tempo = message.tempo
        elif message.type in ("note_on", "note_off") and message.channel != _DRUM_CHANNEL:
            key = message.channel, message.note
            if message.type == "note_on" and message.velocity:
                end(key)
                sounding[key] = now, message.velocity
            elif message.channel in pedal_channels:
                sustained_keys.add(key)
            else:
                end(key)
        elif message.type == "control_change" and message.control == _SUSTAIN_PEDAL:
            if message.value >= 64:
                pedal_channels.add(message.channel)
            else:
                pedal_channels.discard(message.channel)
                for key in [key for key in sustained_keys if key[0] == message.channel]:
                    end(key)
    for key in list(sounding):
        end(key)
    return sorted(notes)


def write_notes(path: Path, notes: Sequence[Note]) -> None:
    """Write notes as one piano track, with times rounded to milliseconds."""
    library = require_mido()
    events = [(round(n.start * 1000), True, n.pitch, n.velocity) for n in notes]
    events += [(max(round(n.end * 1000), round(n.start * 1000) + 1), False, n.pitch, 0) for n in notes]
    track, now = library.MidiTrack(), 0
    track.append(library.MetaMessage("set_tempo", tempo=DEFAULT_TEMPO))
    for time_ms, is_onset, pitch, velocity in sorted(events):
        message_type = "note_on" if is_onset else "note_off"
        track.append(library.Message(message_type, note=pitch, velocity=velocity, time=time_ms - now))
        now = time_ms
    file = library.MidiFile(type=0, ticks_per_beat=TICKS_PER_BEAT, tracks=[track])
    atomic_write(path, lambda temporary: file.save(temporary))
