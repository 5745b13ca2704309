"""MIDI files: notes there and back, the pedal, several tracks, and files that are damaged."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import pytest

from polyseme.corpus.build.prepare import prepare
from polyseme.corpus.sources.lines import Document
from polyseme.corpus.sources.readers import SourceFile
from polyseme.corpus.sources.sources import open_sources
from polyseme.corpus.store import Corpus
from polyseme.errors import PolysemeError
from polyseme.text.events import Note, events_to_notes, notes_to_events
from polyseme.text.tokenizer import Tokenizer
from tests.corpus.test_fuzz_readers import mutated
from tests.text.test_events import random_performance


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mido", None)
    (tmp_path / "a.mid").write_bytes(b"MThd")
    with pytest.raises(PolysemeError, match=r"read and written with mido: install polyseme\[music\]"):
        open_sources([tmp_path / "a.mid"])


def test_text_is_no_music(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some words of a text, which are no events.")
    with pytest.raises(PolysemeError, match=r"a\.txt is text, and the tokenizer knows the events of MIDI files alone"):
        prepare([tmp_path / "a.txt"], Tokenizer.load("events"), tmp_path / "corpus")


@pytest.fixture
def midi():
    pytest.importorskip("mido")
    from polyseme.corpus.sources import midi

    return midi


def saved(path: Path, *tracks: list, ticks: int = 480, kind: int = 1) -> Path:
    """A file of messages, each with the ticks since the last: `("note_on", 0, {...})`."""
    import mido

    file = mido.MidiFile(type=kind, ticks_per_beat=ticks)
    for messages in tracks:
        track = mido.MidiTrack()
        for name, time, values in messages:
            made = mido.MetaMessage if name == "set_tempo" else mido.Message
            track.append(made(name, time=time, **values))
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
def test_events_to_midi_and_back_are_the_same(midi, seed: int, tmp_path: Path) -> None:
    events = notes_to_events(random_performance(seed))
    midi.write_notes(tmp_path / "a.mid", events_to_notes(events))
    assert notes_to_events(midi.read_notes(tmp_path / "a.mid")) == events


def test_midi_to_events_and_back_is_near(midi, tmp_path: Path) -> None:
    """Against the library's own clock: times within 5 ms, velocities within a bin, tempo changes and all."""
    import mido

    draw = random.Random(0)
    track = [("set_tempo", 0, {"tempo": 612_345})]
    for number in range(80):
        track += [on(draw.randint(0, 400), 20 + number, draw.randint(1, 127)), off(draw.randint(20, 900), 20 + number)]
        if number % 20 == 7:
            track.append(("set_tempo", 33, {"tempo": draw.randint(200_000, 900_000)}))
    path = saved(tmp_path / "a.mid", track, ticks=384)
    midi.write_notes(tmp_path / "b.mid", events_to_notes(notes_to_events(midi.read_notes(path))))

    def heard(path: Path) -> dict:
        now, found = 0.0, {}
        for message in mido.MidiFile(path):
            now += message.time
            if message.type in ("note_on", "note_off"):
                found[message.type, message.note] = now, message.velocity
        return found

    before, after = heard(path), heard(tmp_path / "b.mid")
    assert before.keys() == after.keys() and len(before) == 160
    for key, (time, velocity) in before.items():
        assert abs(after[key][0] - time) <= 0.005 + 1e-9
        assert key[0] == "note_off" or abs(after[key][1] - velocity) < 4


def test_the_pedal_holds_notes(midi, tmp_path: Path) -> None:
    """Until it rises, or the key is struck again; each channel has its own."""
    first = [
        pedal(0, 127), on(0, 60), off(96, 60), on(0, 62), off(96, 62), on(96, 60, 100), off(96, 60), pedal(96, 0),
        on(0, 64), ("note_on", 96, {"note": 64, "velocity": 0}), pedal(0, 63), on(0, 65),
    ]  # fmt: skip
    second = [on(96, 70, channel=1), off(96, 70, channel=1), on(0, 40, channel=9), off(96, 40, channel=9)]
    path = saved(tmp_path / "a.mid", first, second)
    tick = 0.5 / 480
    expected = [
        (0, 288, 60, 64), (96, 480, 62, 64), (96, 192, 70, 64), (288, 480, 60, 100), (480, 576, 64, 64),
        (576, 576, 65, 64),
    ]  # fmt: skip
    found = [(round(n.start / tick), round(n.end / tick), n.pitch, n.velocity) for n in midi.read_notes(path)]
    assert found == sorted(expected)


def test_bad_files_are_one_line(midi, tmp_path: Path) -> None:
    good = saved(tmp_path / "good.mid", [on(0, 60), off(9, 60)]).read_bytes()
    for name, data, message in (
        ("a.mid", b"RIFF....", "is no MIDI file: it begins with b'RIFF'"),
        ("b.mid", b"", "is no MIDI file"),
        ("c.mid", good[:-9], "is not a whole MIDI file"),
        ("d.mid", good[:9] + b"\x02" + good[10:], "type 2"),
        ("e.mid", good[:12] + b"\xe7\x28" + good[14:], "frames of film"),
        ("f.mid", saved(tmp_path / "x.mid", [on(0, 60, channel=9)]).read_bytes(), "has no notes"),
    ):
        (tmp_path / name).write_bytes(data)
        (found,) = SourceFile(0, tmp_path / name, format="midi").read()
        assert isinstance(found, PolysemeError) and message in str(found) and name in str(found)


def test_mutated_files(midi, tmp_path: Path) -> None:
    tracks = [[on(0, 60), off(480, 60), ("set_tempo", 0, {"tempo": 400_000})], [pedal(0, 127), on(9, 61), off(9, 61)]]
    data = saved(tmp_path / "good.mid", *tracks).read_bytes()
    draw, counts = random.Random(0), [0, 0]
    for _ in range(1500):
        (tmp_path / "a.mid").write_bytes(mutated(data, draw))
        (found,) = SourceFile(0, tmp_path / "a.mid", format="midi").read()
        counts[isinstance(found, PolysemeError)] += 1
        assert "\n" not in str(found) and len(str(found)) < 2_000 if isinstance(found, PolysemeError) else found.text
    assert min(counts) > 100


def test_pieces_become_a_corpus(midi, tmp_path: Path) -> None:
    pieces = {seed: notes_to_events(random_performance(seed)) for seed in range(5)}
    folder = tmp_path / "pieces"
    folder.mkdir()
    for seed, events in pieces.items():
        midi.write_notes(folder / f"{seed}.mid", events_to_notes(events))
    (folder / "0.mid.gz").write_bytes(gzip.compress((folder / "0.mid").read_bytes()))  # a copy, which goes
    (folder / "5.MIDI").write_bytes((folder / "1.mid").read_bytes())
    tokenizer = Tokenizer.load("events")
    manifest = prepare([folder], tokenizer, tmp_path / "corpus", num_workers=1)
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
