"""MIDI files: performances as notes, read and written with mido."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from polyseme.corpus.sources.lines import LONGEST_ROW, Document, Found, bad
from polyseme.errors import UserError
from polyseme.io.files import unpacked, write_whole
from polyseme.text.events import Note, to_events

TEMPO = 500_000  # microseconds a beat, where a file does not say
TICKS = 500  # a beat in the files that are written, so that one lasts a millisecond
_PEDAL, _DRUMS = 64, 9
_LONGEST = 24 * 3600  # seconds; a longer piece is damage


def mido() -> Any:
    """The package mido, which MIDI files are read and written with."""
    try:
        import mido as found
    except ImportError:
        raise UserError("MIDI files are read and written with mido: install polyseme[music]") from None
    return found


def read(path: Path, name: str) -> Iterator[Found]:
    """The piece of a file as one document of events, or what is wrong with it."""
    try:
        events = to_events(read_notes(path, name))
    except UserError as error:
        yield error
        return
    yield Document(" ".join(events), name) if events else bad(f"{name} has no notes")


def read_notes(path: Path, name: str = "") -> list[Note]:
    """The notes of all channels but the drums', as one piano plays them.

    While the sustain pedal of a channel is down its notes go on, until the pedal rises or their key is struck again
    (Oore et al. 2018, §3.2).
    """
    name, library, whole = name or str(path), mido(), b""
    for block in unpacked(path):
        whole += block
        if len(whole) > LONGEST_ROW:
            raise bad(f"{name} is longer than {LONGEST_ROW >> 20} MB")
    if whole[:4] != b"MThd":
        raise bad(f"{name} is no MIDI file: it begins with {whole[:4]!r}, not with b'MThd'")
    try:
        file = library.MidiFile(file=io.BytesIO(whole), clip=True)
        if file.type == 2:
            raise bad(f"{name}: a MIDI file of type 2 holds several pieces, and only types 0 and 1 are read")
        if not 0 < file.ticks_per_beat < 1 << 15:
            raise bad(f"{name} counts time in frames of film, which is not read: its beat must be divided into ticks")
        return _performed(library.merge_tracks(file.tracks), file.ticks_per_beat, name)
    except UserError:
        raise
    except Exception as error:  # whatever the library stumbles over, the file is at fault
        raise bad(f"{name} is not a whole MIDI file ({type(error).__name__} {str(error)[:80]})") from None


def _performed(messages: Iterable[Any], ticks: int, name: str) -> list[Note]:
    notes: list[Note] = []
    sounding: dict[tuple[int, int], tuple[float, int]] = {}  # channel and pitch to when and how hard
    held: set[tuple[int, int]] = set()  # let go, but kept by the pedal
    down: set[int] = set()  # the channels whose pedal is down
    now, tempo = 0.0, TEMPO

    def end(key: tuple[int, int]) -> None:
        held.discard(key)
        if key in sounding:
            start, velocity = sounding.pop(key)
            notes.append(Note(start, now, key[1], velocity))

    for message in messages:
        now += message.time * tempo * 1e-6 / ticks
        if not now < _LONGEST:
            raise bad(f"{name} lasts longer than {_LONGEST // 3600} hours")
        if message.type == "set_tempo":
            tempo = message.tempo
        elif message.type in ("note_on", "note_off") and message.channel != _DRUMS:
            key = message.channel, message.note
            if message.type == "note_on" and message.velocity:
                end(key)
                sounding[key] = now, message.velocity
            elif message.channel in down:
                held.add(key)
            else:
                end(key)
        elif message.type == "control_change" and message.control == _PEDAL:
            if message.value >= 64:
                down.add(message.channel)
            else:
                down.discard(message.channel)
                for key in [key for key in held if key[0] == message.channel]:
                    end(key)
    for key in list(sounding):
        end(key)
    return sorted(notes)


def write_notes(path: Path, notes: Sequence[Note]) -> None:
    """One piano track; times are kept to a millisecond."""
    library = mido()
    moments = [(round(n.start * 1000), True, n.pitch, n.velocity) for n in notes]
    moments += [(max(round(n.end * 1000), round(n.start * 1000) + 1), False, n.pitch, 0) for n in notes]
    track, now = library.MidiTrack(), 0
    track.append(library.MetaMessage("set_tempo", tempo=TEMPO))
    for when, strikes, pitch, velocity in sorted(moments):
        kind = "note_on" if strikes else "note_off"
        track.append(library.Message(kind, note=pitch, velocity=velocity, time=when - now))
        now = when
    file = library.MidiFile(type=0, ticks_per_beat=TICKS, tracks=[track])
    write_whole(path, lambda temporary: file.save(temporary))
