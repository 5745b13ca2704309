"""Requests that are generated together by continuous batching: they join and leave between two steps."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby

from polyseme.errors import PolysemeError, is_out_of_memory
from polyseme.generation.continuous import ContinuousBatch, SequenceRequest
from polyseme.generation.sample import GeneratedToken
from polyseme.generation.text import TextGenerator
from polyseme.nn.model import Model
from polyseme.serve.api.responses import TokenLogProb
from polyseme.serve.batching.generation import GeneratedSequence, TextGeneration, deliver_events

logger = logging.getLogger(__name__)
MAX_PROMPT_TOKENS = 4096  # read between two steps, during which the other texts wait


class ContinuousRequests:
    """The requests of a model, whatever their options; each text has a row of the batch when there is room for it."""

    def __init__(self, first: TextGeneration, max_cells: int):
        model = first.generator.model
        assert isinstance(model, Model)
        self.generator: TextGenerator = first.generator
        special = self.generator.eos_token_ids, self.generator.suppress_tokens
        self.batch = ContinuousBatch(model, *special, max_cells)
        self.members = [first]
        self.waiting: deque[GeneratedSequence] = deque(first.sequences)  # of the members, without a row
        self.sequences: dict[int, GeneratedSequence] = {}  # with a row, by their number in the batch

    def add(self, other: TextGeneration) -> bool:
        """Add a request if there is room for one of its texts; the others get rows as they become free."""
        if other.generator is not self.generator:
            return False
        max_lens = [_to_request(each).max_len for each in (*self.waiting, other.sequences[0]) if not each.has_ended]
        if self.batch.count_fitting(max_lens) < len(max_lens):
            return False
        self.members.append(other)
        self.waiting.extend(other.sequences)
        return True

    def step(self) -> bool:
        """Let waiting texts join, and generate a token of each text; return whether more follow."""
        self._join()
        if self.sequences:
            tokens = self.batch.sample()
            self._report(tokens, self._find_top_tokens())
            deliver_events(self.members)
            self.batch.advance(lambda number: self.sequences[number].has_ended)
            self.sequences = {number: self.sequences[number] for number in self.batch.sequences}
        self.members = [each for each in self.members if not each.is_cancelled and not each.is_complete]
        return bool(self.members)

    def _join(self) -> None:
        self.waiting = deque(each for each in self.waiting if not each.has_ended)
        num_fitting = self.batch.count_fitting(_to_request(each).max_len for each in self.waiting)
        num_tokens = 0
        newcomers: list[GeneratedSequence] = []
        for _ in range(num_fitting):
            if newcomers and num_tokens + len(self.waiting[0].prompt_ids) > MAX_PROMPT_TOKENS:
                break
            newcomers.append(self.waiting.popleft())
            num_tokens += len(newcomers[-1].prompt_ids)
        if not newcomers:
            return
        try:
            self._add_rows(newcomers)
        except Exception as first_error:
            if is_out_of_memory(first_error) and self.sequences:  # wait until texts have ended
                self.waiting.extendleft(reversed(newcomers))
                self.batch.max_cells = self.batch.num_cells
                return
            for request, sequences in groupby(newcomers, key=lambda each: each.request):  # an error reaches its own
                try:
                    self._add_rows(list(sequences))
                except Exception as error:
                    self._fail(request, error)

    def _add_rows(self, sequences: Sequence[GeneratedSequence]) -> None:
        numbers = self.batch.join([_to_request(each) for each in sequences])
        self.sequences |= dict(zip(numbers, sequences))

    def _fail(self, request: TextGeneration, error: Exception) -> None:
        if not isinstance(error, PolysemeError) and not is_out_of_memory(error):
            logger.error(f"the generation of a text failed: {type(error).__name__}", exc_info=error)
        request.fail(error)

    def _find_top_tokens(self) -> dict[int, list[TokenLogProb]]:
        """Return the most likely tokens of the texts that ask for them."""
        rows = list(self._rows_with_top_tokens())
        if not rows:
            return {}
        assert self.batch.log_probs is not None
        requests = {number: self.sequences[number].request for _, number in rows}
        num_tokens = max(request.num_top_tokens for request in requests.values())
        log_probs = self.batch.log_probs[[row for row, _ in rows]]
        best = log_probs.topk(min(num_tokens, log_probs.shape[-1]))
        tops = zip(rows, best.indices.tolist(), best.values.tolist())
        return {number: requests[number].name_top_tokens(ids, values) for (_, number), ids, values in tops}

    def _rows_with_top_tokens(self) -> Iterator[tuple[int, int]]:
        for row, number in enumerate(self.batch.sequences):
            if self.sequences[number].request.num_top_tokens:
                yield row, number

    def _report(self, tokens: Sequence[GeneratedToken], top_tokens: dict[int, list[TokenLogProb]]) -> None:
        for number, token, log_prob in tokens:
            sequence = self.sequences[number]
            if sequence.has_ended:
                continue
            try:
                sequence.push(token, log_prob, top_tokens.get(number))
                if sequence.finish_reason and sequence.request.is_complete:
                    sequence.request.finish()
            except Exception as error:
                self._fail(sequence.request, error)


def _to_request(sequence: GeneratedSequence) -> SequenceRequest:
    """Return what the batch needs to know of a text."""
    request = sequence.request
    sample_index = sequence.index % request.config.num_return_sequences
    return SequenceRequest(sequence.prompt_ids, request.max_new_tokens, request.config.sampling, sample_index)
