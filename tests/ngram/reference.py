"""Reference implementation of Chen & Goodman's equations with dictionaries, independent of the arrays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

Gram = tuple[int, ...]


class ReferenceKneserNey:
    """Interpolated modified Kneser-Ney over sentences, each enclosed in BOS and EOS."""

    def __init__(self, sentences: Sequence[Sequence[int]], order: int, bos: int, eos: int, events: Sequence[int]):
        self.order, self.bos, self.eos, self.events = order, bos, eos, list(events)
        raw: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
        for sentence in sentences:
            text = (bos, *sentence, eos)
            for n in range(1, order + 1):
                for i in range(len(text) - n + 1):
                    raw[n][text[i : i + n]] += 1
        self.counts: list[dict[Gram, int]] = [{} for _ in range(order + 1)]
        for n in range(1, order + 1):
            predecessors: dict[Gram, set[int]] = defaultdict(set)
            for gram in raw[n + 1] if n < order else ():
                predecessors[gram[1:]].add(gram[0])
            for gram, count in raw[n].items():
                is_raw = n == order or gram[0] == bos
                self.counts[n][gram] = count if is_raw else len(predecessors[gram])
        self.counts[1].pop((bos,))
        self.discounts = [(0.0, 0.0, 0.0)] + [self._discounts(self.counts[n]) for n in range(1, order + 1)]
        self.successors: dict[Gram, dict[int, int]] = defaultdict(dict)
        for n in range(1, order + 1):
            for gram, count in self.counts[n].items():
                self.successors[gram[:-1]][gram[-1]] = count
        self.sums = {}
        for history, successors in self.successors.items():
            discounts = self.discounts[len(history) + 1]
            discounted_mass = sum(discounts[min(c, 3) - 1] for c in successors.values())
            self.sums[history] = sum(successors.values()), discounted_mass

    def _discounts(self, counts: dict[Gram, int]) -> tuple[float, float, float]:
        n1, n2, n3, n4 = (sum(count == k for count in counts.values()) for k in (1, 2, 3, 4))
        if not (n1 and n2 and n3):
            return 0.5, 1.0, 1.5
        y = n1 / (n1 + 2 * n2)
        discounts = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
        return discounts if all(0 < d <= k for k, d in enumerate(discounts, start=1)) else (0.5, 1.0, 1.5)

    def prob(self, word: int, history: Sequence[int]) -> float:
        history = tuple(history)[-(self.order - 1) :] if self.order > 1 else ()
        lower = self.prob(word, history[1:]) if history else 1 / len(self.events)
        successors = self.successors.get(history)
        if not successors:
            return lower
        discounts = self.discounts[len(history) + 1]
        total, discounted_mass = self.sums[history]
        count = successors.get(word, 0)
        discounted_count = count - discounts[min(count, 3) - 1] if count else 0.0
        return discounted_count / total + discounted_mass / total * lower


def parse_arpa(text: str) -> tuple[dict[tuple[str, ...], tuple[float, float]], int]:
    """Parse an ARPA file without any checks; return its n-grams and its order."""
    table, order = {}, 0
    for line in text.split("\n"):
        fields = line.split("\t")
        if len(fields) > 1:
            words = tuple(fields[1].split(" "))
            order = max(order, len(words))
            table[words] = float(fields[0]), float(fields[2]) if len(fields) > 2 else 0.0
    return table, order


def score_by_backoff(table: dict[tuple[str, ...], tuple[float, float]], order: int, words: Sequence[str]) -> float:
    """Return the log10 probability of a sentence by the back-off rule."""

    def prob(history: tuple[str, ...], word: str) -> float:
        if (*history, word) in table:
            return table[*history, word][0]
        return table.get(history, (0.0, 0.0))[1] + prob(history[1:], word)

    text = ["<s>", *words, "</s>"]
    return sum(prob(tuple(text[max(i - order + 1, 0) : i]), text[i]) for i in range(1, len(text)))
