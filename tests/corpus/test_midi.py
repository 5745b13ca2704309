"""MIDI files: round trips, the sustain pedal, several tracks, damaged files."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import pytest

from polyseme.corpus.build.prepare import PrepareConfig, prepare
from polyseme.corpus.sources.documents import Document
from polyseme.corpus.sources.midi import Note, events_to_notes, notes_to_events
from polyseme.corpus.sources.readers import SourceFile
from polyseme.corpus.sources.sources import open_sources
from polyseme.corpus.store import Corpus
from polyseme.errors import PolysemeError
from polyseme.text.tokenizer import Tokenizer
from tests.corpus.samples import mutate
from tests.support.music import random_performance


def test_missing_mido_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mido", None)
    (tmp_path / "a.mid").write_bytes(b"MThd")
    with pytest.raises(PolysemeError, match=r"needs mido: pip install 'polyseme\[music\]'"):
        open_sources([tmp_path / "a.mid"])


def test_text_with_an_events_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some words of a text, which are no events.")
    with pytest.raises(PolysemeError, match=r"a\.txt is text, but the tokenizer encodes only the events of MIDI files"):
        prepare([tmp_path / "a.txt"], Tokenizer.load("events"), tmp_path / "corpus")


@pytest.fixture
def midi():
    pytest.importorskip("mido")
    from polyseme.corpus.sources import midi

    return midi


def save_midi(path: Path, *tracks: list, ticks: int = 480, kind: int = 1) -> Path:
    """Write messages `(type, ticks since the last, values)`, one list per track."""
    import mido

    file = mido.MidiFile(type=kind, ticks_per_beat=ticks)
    for messages in tracks:
        track = mido.MidiTrack()
        for name, time, values in messages:
            message_type = mido.MetaMessage if name == "set_tempo" else mido.Message
            track.append(message_type(name, time=time, **values))
        file.tracks.append(track)
    file.save(path)
    return path


def on(time: int, note: int, velocity: int = 64, channel: int = 0) -> tuple:
    return "note_on", time, {"note": note, "velocity": velocity, "channel": channel}


def off(time: int, note: int, channel: int = 0) -> tuple:
    return "note_off", time, {"note": note, "channel": channel}


def pedal(time: int, value: int, channel: int = 0) -> tuple:
    return "control_change", time, {"control": 64, "value": value, "channel": channel}


@pytest.mark.parametrize("seed", range(8))
def test_events_survive_a_round_trip_through_midi(midi, seed: int, tmp_path: Path) -> None:
    events = notes_to_events(random_performance(seed))
    midi.write_notes(tmp_path / "a.mid", events_to_notes(events))
    assert notes_to_events(midi.read_notes(tmp_path / "a.mid")) == events


def test_midi_survives_a_round_trip_through_events_nearly(midi, tmp_path: Path) -> None:
    """With tempo changes, by mido's clock: times within 5 ms, velocities within a bin."""
    import mido

    draw = random.Random(0)
    track = [("set_tempo", 0, {"tempo": 612_345})]
    for number in range(80):
        track += [on(draw.randint(0, 400), 20 + number, draw.randint(1, 127)), off(draw.randint(20, 900), 20 + number)]
        if number % 20 == 7:
            track.append(("set_tempo", 33, {"tempo": draw.randint(200_000, 900_000)}))
    path = save_midi(tmp_path / "a.mid", track, ticks=384)
    midi.write_notes(tmp_path / "b.mid", events_to_notes(notes_to_events(midi.read_notes(path))))

    def read_events(path: Path) -> dict:
        now, events = 0.0, {}
        for message in mido.MidiFile(path):
            now += message.time
            if message.type in ("note_on", "note_off"):
                events[message.type, message.note] = now, message.velocity
        return events

    before, after = read_events(path), read_events(tmp_path / "b.mid")
    assert before.keys() == after.keys() and len(before) == 160
    for key, (time, velocity) in before.items():
        assert abs(after[key][0] - time) <= 0.005 + 1e-9
        assert key[0] == "note_off" or abs(after[key][1] - velocity) < 4


def test_sustain_pedal_holds_notes(midi, tmp_path: Path) -> None:
    """Until it is released or the key is struck again; each channel has its own pedal."""
    first = [
        pedal(0, 127), on(0, 60), off(96, 60), on(0, 62), off(96, 62), on(96, 60, 100), off(96, 60), pedal(96, 0),
        on(0, 64), ("note_on", 96, {"note": 64, "velocity": 0}), pedal(0, 63), on(0, 65),
    ]  # fmt: skip
    second = [on(96, 70, channel=1), off(96, 70, channel=1), on(0, 40, channel=9), off(96, 40, channel=9)]
    path = save_midi(tmp_path / "a.mid", first, second)
    tick = 0.5 / 480
    expected = [
        (0, 288, 60, 64), (96, 480, 62, 64), (96, 192, 70, 64), (288, 480, 60, 100), (480, 576, 64, 64),
        (576, 576, 65, 64),
    ]  # fmt: skip
    notes = [(round(n.start / tick), round(n.end / tick), n.pitch, n.velocity) for n in midi.read_notes(path)]
    assert notes == sorted(expected)


def test_bad_files_give_one_line_errors(midi, tmp_path: Path) -> None:
    good = save_midi(tmp_path / "good.mid", [on(0, 60), off(9, 60)]).read_bytes()
    for name, data, message in (
        ("a.mid", b"RIFF....", "is not a MIDI file: it begins with b'RIFF'"),
        ("b.mid", b"", "is not a MIDI file"),
        ("c.mid", good[:-9], "is a damaged MIDI file"),
        ("d.mid", good[:9] + b"\x02" + good[10:], "type 2"),
        ("e.mid", good[:12] + b"\xe7\x28" + good[14:], "SMPTE time codes"),
        ("f.mid", save_midi(tmp_path / "x.mid", [on(0, 60, channel=9)]).read_bytes(), "has no notes"),
    ):
        (tmp_path / name).write_bytes(data)
        (document,) = SourceFile(0, tmp_path / name, format="midi").read()
        assert isinstance(document, PolysemeError) and message in str(document) and name in str(document)


def test_mutated_files_give_a_document_or_an_error(midi, tmp_path: Path) -> None:
    tracks = [[on(0, 60), off(480, 60), ("set_tempo", 0, {"tempo": 400_000})], [pedal(0, 127), on(9, 61), off(9, 61)]]
    data = save_midi(tmp_path / "good.mid", *tracks).read_bytes()
    draw, counts = random.Random(0), [0, 0]
    for _ in range(1500):
        (tmp_path / "a.mid").write_bytes(mutate(data, draw))
        (document,) = SourceFile(0, tmp_path / "a.mid", format="midi").read()
        counts[isinstance(document, PolysemeError)] += 1
        assert (
            "\n" not in str(document) and len(str(document)) < 2_000
            if isinstance(document, PolysemeError)
            else document.text
        )
    assert min(counts) > 100


def test_midi_files_become_a_corpus(midi, tmp_path: Path) -> None:
    pieces = {seed: notes_to_events(random_performance(seed)) for seed in range(5)}
    folder = tmp_path / "pieces"
    folder.mkdir()
    for seed, events in pieces.items():
        midi.write_notes(folder / f"{seed}.mid", events_to_notes(events))
    (folder / "0.mid.gz").write_bytes(gzip.compress((folder / "0.mid").read_bytes()))  # a duplicate, which is removed
    (folder / "5.MIDI").write_bytes((folder / "1.mid").read_bytes())
    tokenizer = Tokenizer.load("events")
    manifest = prepare([folder], tokenizer, tmp_path / "corpus", PrepareConfig(num_workers=1))
    assert manifest["counts"]["documents"] == 5 and manifest["removed"]["duplicates"]["exact"] == 2
    corpus = Corpus.open(tmp_path / "corpus")
    starts = corpus.sentence_offsets[corpus.document_offsets]
    for i, events in enumerate(pieces.values()):
        ids = corpus.gather_tokens(starts[i : i + 1], starts[i + 1 : i + 2] - starts[i : i + 1])
        assert tokenizer.convert_ids_to_tokens(ids) == events
    assert isinstance(next(SourceFile(0, folder / "5.MIDI", format="midi").read()), Document)


def test_notes_of_no_length_are_written(midi, tmp_path: Path) -> None:
    midi.write_notes(tmp_path / "a.mid", [Note(1.0, 1.0, 60, 64)])
    (note,) = midi.read_notes(tmp_path / "a.mid")
    assert (round(note.start, 3), round(note.end, 3)) == (1.0, 1.001)
