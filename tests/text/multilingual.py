"""Deterministic lines of text in many scripts, for tests of tokenizers."""

from __future__ import annotations

import functools
import json
import lzma
import random
from pathlib import Path
from pydoc_data.topics import topics

SHARED = Path(__file__).parents[3] / "shared"
_WORDS = {
    "english": "The quick brown fox isn't jumping; they've SEEN naïve cafés — re-entry “quoted” it's",
    "chinese": "东京 我们 学习 自然语言 处理 中国 人民 银行 今天 天气 很好 「引号」 ，。 龍 繁體字 漢",
    "japanese": "これは 日本語 です カタカナ ﾊﾝｶｸ が 東京 。 ー",
    "arabic": "مرحبا بالعالم اللُّغَةُ العربية كِتَاب ١٢٣ ، ؟ في على",
    "hebrew": "שלום עולם בְּרֵאשִׁית ״ספר״ של",
    "hindi": "नमस्ते दुनिया हिन्दी क्षत्रिय श्री कि की । १२३ में ज़िंदगी",
    "bengali": "বাংলা ভাষা কো ড়",
    "thai": "สวัสดีชาวโลก ภาษาไทย กำลัง น้ำ ที่ ๑๒๓ ก็",
    "russian": "Привет МИР ёлка Ёж съешь ещё этих мягких французских булок, да!",
    "greek": "Ωμέγα λόγος ΆΛΦΑ και εἶναι",
    "korean": "안녕하세요 세계 한국어 값 ㅎㅎ 안녕",
    "vietnamese": "tiếng Việt được nghiêng Ðường",
    "turkish": "İstanbul ılık IŞIK çağ",
    "code": 'def f(x): return x[1:-2]**2 # a_b snake_case camelCase __init__ 0x1F != <tag/> {"k": null} \\n && ||',
    "digits": "1 22 3.14 1,000,000 2023-01-02 ½ ² ① Ⅷ ٣ 1e-5 50%",
    "emoji": "🙂 👩‍👩‍👧 🏳️‍🌈 👍🏽 🇩🇪 ❤️ ☺ 👨‍💻 ✨",
    "latin": "straße Œuvre ﬁn Å Å ﬀ ǆ Ĳ ŉ ſ µ ™ № ℃ Ａｂｃ １２ ¨ ´",
}
WORDS = {script: words.split() for script, words in _WORDS.items()}
MARKS = ["\u200d", "\u200e", "\u200f", "\u202a", "\u202e", "\u2066", "\ufffd", "\u0301", "e\u0301", "a\u0308\u0304"]
MARKS += ["\ufeff", "\u00ad", "\u200b", "\x00", "\x07", "\x7f", "\x85", "\u2581", "\ue000", "\U0001f9ff", "ก\u0e33"]
SPACES = [" ", " ", " ", " ", " ", " ", "  ", "   ", "\t", "\u00a0", "\u3000", "\u2009", "\u202f", "\r", "\x0b", ""]


def generate_lines(count: int, seed: int = 1, marks: list[str] = MARKS, spaces: list[str] = SPACES) -> list[str]:
    """Generate lines of the words above, mostly of one script each, with unusual marks and spaces."""
    rng = random.Random(seed)
    everything = [word for words in WORDS.values() for word in words]
    lines = []
    for _ in range(count):
        words = everything if rng.random() < 0.3 else WORDS[rng.choice(sorted(WORDS))]
        line = rng.choice(["", "", "", " ", "  "])
        for _ in range(rng.randint(1, 14)):
            word = rng.choice(words)
            if rng.random() < 0.08:
                position = rng.randint(0, len(word))
                word = word[:position] + rng.choice(marks) + word[position:]
            if rng.random() < 0.03:
                word = "".join(rng.sample(word, len(word)))
            line += word + rng.choice(spaces)
        lines.append(line)
    return lines


@functools.cache
def english_lines(count: int) -> list[str]:
    """Return lines of Python's documentation and, if available, of the pre-training text."""
    lines = [line for _, text in sorted(topics.items()) for line in text.splitlines() if line.strip()]
    novels = SHARED / "data" / "pretrain" / "heldout-wiki.jsonl.xz"
    if novels.is_file():
        with lzma.open(novels, "rt", encoding="utf-8") as file:
            more = [line for _, row in zip(range(200), file) for line in json.loads(row)["text"].split("\n") if line]
        lines = lines[: count // 2] + more
    return lines[:count]


@functools.cache
def mixed_lines(count: int = 10_000) -> list[str]:
    """Return lines of which two fifths are English and the rest generated."""
    lines = english_lines(count * 2 // 5)
    return lines + generate_lines(count - len(lines))
