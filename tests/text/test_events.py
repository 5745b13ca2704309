"""Conversion of performances to events and back, and the event tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyseme.corpus.sources.midi import (
    EVENTS,
    MAX_SHIFT_STEPS,
    NUM_PITCHES,
    NUM_VELOCITY_BINS,
    SECONDS_PER_STEP,
    VELOCITY_BIN_WIDTH,
    Note,
    events_to_notes,
    notes_to_events,
)
from polyseme.text.inspection import describe_vocabulary
from polyseme.text.tokenizer import Tokenizer
from tests.support.music import random_performance


def test_vocabulary_size() -> None:
    assert len(EVENTS) == len(set(EVENTS)) == NUM_PITCHES + NUM_PITCHES + MAX_SHIFT_STEPS + NUM_VELOCITY_BINS == 388


def test_events_of_a_small_piece() -> None:
    notes = [Note(0.0, 0.5, 60, 80), Note(0.0, 0.5, 64, 80), Note(0.5, 2.734, 60, 20), Note(0.5, 0.5, 67, 22)]
    events = "vel21 on60 on64 shift50 off60 off64 vel6 on60 on67 shift1 off67 shift100 shift100 shift22 off60"
    assert notes_to_events(notes) == events.split()
    back = events_to_notes(events.split())
    assert [tuple(note) for note in back] == [
        (0.0, 0.5, 60, 82), (0.0, 0.5, 64, 82), (0.5, pytest.approx(0.51), 67, 22), (0.5, pytest.approx(2.73), 60, 22),
    ]  # fmt: skip
    assert notes_to_events([]) == [] and events_to_notes([]) == []
    assert notes_to_events([Note(1.5, 2, 1, 999)]) == ["shift100", "shift50", "vel32", "on1", "shift50", "off1"]


def test_invalid_event_sequences_are_decoded() -> None:
    events = "off60 on60 shift5 on60 <s> nonsense vel3 shift2 off61 shift1 off60 off60 on10 vel9"
    heard = [
        (round(n.start / SECONDS_PER_STEP), round(n.end / SECONDS_PER_STEP), n.pitch, n.velocity)
        for n in events_to_notes(events.split())
    ]
    assert heard == [(0, 5, 60, 62), (5, 8, 60, 62), (8, 9, 10, 10)]


@pytest.mark.parametrize("seed", range(30))
def test_round_trip(seed: int) -> None:
    notes = random_performance(seed)
    events = notes_to_events(notes)
    assert set(events) <= set(EVENTS)
    heard = events_to_notes(events)
    assert notes_to_events(heard) == events  # the events are canonical
    assert heard == events_to_notes(notes_to_events(heard))
    rest = list(heard)
    for pitch, start in {(n.pitch, round(n.start / SECONDS_PER_STEP)) for n in notes}:
        note = [n for n in sorted(notes) if (n.pitch, round(n.start / SECONDS_PER_STEP)) == (pitch, start)][-1]
        again = min(
            (n.start for n in notes if n.pitch == pitch and round(n.start / SECONDS_PER_STEP) > start), default=1e9
        )
        (heard_note,) = [n for n in heard if (n.pitch, round(n.start / SECONDS_PER_STEP)) == (pitch, start)]
        assert abs(heard_note.start - note.start) <= SECONDS_PER_STEP / 2 + 1e-9
        until = min(max(note.end, note.start + SECONDS_PER_STEP), again)
        assert abs(heard_note.end - until) <= SECONDS_PER_STEP / 2 + 1e-9 or note.end - note.start < SECONDS_PER_STEP
        assert abs(heard_note.velocity - note.velocity) < VELOCITY_BIN_WIDTH
        rest.remove(heard_note)
    assert not rest


def test_event_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load("events")
    assert (
        tokenizer.kind == "events"
        and tokenizer.vocab_size == 392
        and tokenizer.special_token_ids.eos == 2
        and tokenizer.special_token_ids.bos == 1
    )
    text = " ".join(notes_to_events(random_performance(0)))
    assert tokenizer.decode(tokenizer.encode(text)) == text and len(tokenizer.encode(text)) == len(text.split())
    encoded = tokenizer.encode_corpus([text, "vel1 <s> </s> word"])
    assert encoded.word_starts.all() and encoded.lengths[0] == len(text.split())
    unknown = tokenizer.special_token_ids.unk
    assert set(encoded.ids[encoded.lengths[0] + 1 :].tolist()) == {unknown}  # special tokens in a corpus are plain text
    tokenizer.validate([text])
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (
        again.hash == tokenizer.hash
        and again.special_token_ids == tokenizer.special_token_ids
        and again.kind == "events"
    )
    transformers = pytest.importorskip("transformers")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == tokenizer.encode(text)
    facts = describe_vocabulary(tokenizer)
    assert facts["kind"] == "events" and facts["continuation pieces"] is None


def test_existing_folder_named_events_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tokenizer.train("characters", ["a text of letters"], 60).save(tmp_path / "events")
    monkeypatch.chdir(tmp_path)
    assert Tokenizer.load("events").kind == "characters"
