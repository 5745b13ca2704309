"""Reading and writing performances as MIDI files, with mido."""

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from polyseme.corpus.sources.documents import Document, ReadResult
from polyseme.corpus.sources.events import Note, notes_to_events
from polyseme.errors import DataError, PolysemeError, require_package
from polyseme.io.atomic import atomic_write
from polyseme.io.lines import bad_input, read_small_file

DEFAULT_TEMPO = 500_000  # microseconds per beat, the default of the MIDI standard
TICKS_PER_BEAT = 500  # in written files, so that a tick is a millisecond
_SUSTAIN_PEDAL, _DRUM_CHANNEL = 64, 9
_MAX_SECONDS = 24 * 3600  # a longer piece is taken for a damaged file


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
