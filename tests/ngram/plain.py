"""Chen & Goodman's equations as they stand in the paper, with dictionaries: slow, and written apart from the arrays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

Gram = tuple[int, ...]


class PlainKneserNey:
    """Interpolated modified Kneser-Ney over sentences, each between one start and one end."""

    def __init__(self, sentences: Sequence[Sequence[int]], order: int, start: int, end: int, events: Sequence[int]):
        self.order, self.start, self.end, self.events = order, start, end, list(events)
        raw: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
        for sentence in sentences:
            text = (start, *sentence, end)
            for n in range(1, order + 1):
                for i in range(len(text) - n + 1):
                    raw[n][text[i : i + n]] += 1
        self.counts: list[dict[Gram, int]] = [{} for _ in range(order + 1)]
        for n in range(1, order + 1):
            before: dict[Gram, set[int]] = defaultdict(set)
            for gram in raw[n + 1] if n < order else ():
                before[gram[1:]].add(gram[0])
            for gram, count in raw[n].items():
                whole = n == order or gram[0] == start
                self.counts[n][gram] = count if whole else len(before[gram])
        self.counts[1].pop((start,))
        self.discounts = [(0.0, 0.0, 0.0)] + [self._discounts(self.counts[n]) for n in range(1, order + 1)]
        self.behind: dict[Gram, dict[int, int]] = defaultdict(dict)
        for n in range(1, order + 1):
            for gram, count in self.counts[n].items():
                self.behind[gram[:-1]][gram[-1]] = count
        self.sums = {}
        for history, behind in self.behind.items():
            taken = self.discounts[len(history) + 1]
            given_back = sum(taken[min(c, 3) - 1] for c in behind.values())
            self.sums[history] = sum(behind.values()), given_back

    def _discounts(self, counts: dict[Gram, int]) -> tuple[float, float, float]:
        n1, n2, n3, n4 = (sum(count == k for count in counts.values()) for k in (1, 2, 3, 4))
        if not (n1 and n2 and n3):
            return 0.5, 1.0, 1.5
        y = n1 / (n1 + 2 * n2)
        found = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
        return found if all(0 < d <= k for k, d in enumerate(found, start=1)) else (0.5, 1.0, 1.5)

    def chance(self, word: int, history: Sequence[int]) -> float:
        history = tuple(history)[-(self.order - 1) :] if self.order > 1 else ()
        lower = self.chance(word, history[1:]) if history else 1 / len(self.events)
        behind = self.behind.get(history)
        if not behind:
            return lower
        taken = self.discounts[len(history) + 1]
        total, given_back = self.sums[history]
        count = behind.get(word, 0)
        own = count - taken[min(count, 3) - 1] if count else 0.0
        return own / total + given_back / total * lower


def read_plain_arpa(text: str) -> tuple[dict[tuple[str, ...], tuple[float, float]], int]:
    """An ARPA file to a dictionary, and its order; nothing is checked."""
    found, order = {}, 0
    for line in text.split("\n"):
        fields = line.split("\t")
        if len(fields) > 1:
            words = tuple(fields[1].split(" "))
            order = max(order, len(words))
            found[words] = float(fields[0]), float(fields[2]) if len(fields) > 2 else 0.0
    return found, order


def plain_score(table: dict[tuple[str, ...], tuple[float, float]], order: int, words: Sequence[str]) -> float:
    """Log10 of the probability of a sentence by the back-off rule."""

    def chance(history: tuple[str, ...], word: str) -> float:
        if (*history, word) in table:
            return table[*history, word][0]
        return table.get(history, (0.0, 0.0))[1] + chance(history[1:], word)

    text = ["<s>", *words, "</s>"]
    return sum(chance(tuple(text[max(i - order + 1, 0) : i]), text[i]) for i in range(1, len(text)))
