"""Requests that are generated together from the start to the end of the longest text.

For models whose texts cannot join a running batch (see `polyseme.generation.continuous`): encoder-decoders and n-grams.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from polyseme.generation.sample import GeneratedToken, stream_tokens
from polyseme.serve.api.responses import TokenLogProb
from polyseme.serve.batching.generation import TextGeneration, deliver_events


class FixedRequests:
    """Requests that sample in the same way; they join before the first step only. An observer of the steps."""

    def __init__(self, first: TextGeneration):
        self.members, self.num_steps = [first], 0
        self.sequences = list(first.sequences)
        self.top_tokens: dict[int, list[TokenLogProb]] = {}
        self._steps = self._run()

    def add(self, other: TextGeneration) -> bool:
        """Add a request if it samples in the same way; limits and stop strings may differ."""
        first = self.members[0]
        if (
            self.num_steps
            or other.generator is not first.generator
            or (first.sources is None) != (other.sources is None)
        ):
            return False
        if replace(first.config, max_new_tokens=0) != replace(other.config, max_new_tokens=0):
            return False
        self.members.append(other)
        self.sequences += other.sequences
        return True

    def step(self) -> bool:
        """Generate a token of each text; return whether more follow."""
        self.num_steps += 1
        has_more = not all(member.is_cancelled for member in self.members) and next(self._steps, None) is not None
        deliver_events(self.members)
        return has_more

    def observe(self, log_probs: Tensor, sequences: Sequence[int | None]) -> None:
        """Keep the most likely tokens of each text."""
        num_top_tokens = max(member.num_top_tokens for member in self.members)
        if not num_top_tokens:
            return
        best = log_probs.topk(min(num_top_tokens, log_probs.shape[-1]))
        for sequence, ids, values in zip(sequences, best.indices.tolist(), best.values.tolist()):
            if sequence is not None:
                self.top_tokens[sequence] = self.sequences[sequence].request.name_top_tokens(ids, values)

    def has_ended(self, sequence: int) -> bool:
        """Whether a text is complete, or nobody waits for it."""
        return self.sequences[sequence].has_ended

    def _run(self) -> Iterator[bool]:
        """Yield after every step; the first one starts the session."""
        first = self.members[0]
        copies = first.config.num_return_sequences
        prompts = [ids for member in self.members for ids in member.prompt_ids for _ in range(copies)]
        sources = None
        if first.sources is not None:
            sources = [ids for member in self.members for ids in member.sources or () for _ in range(copies)]
        limits = [member.max_new_tokens for member in self.members for _ in member.sequences]
        steps = stream_tokens(
            first.generator.model,
            prompts,
            limits,
            first.config.sampling,
            sources,
            first.generator.eos_token_ids,
            first.generator.suppress_tokens,
            sample_indices=[i % copies for i in range(len(prompts))],
            observer=self,
        )
        unfinished = list(self.members)
        for step in steps:
            self._report(step)
            for member in [each for each in unfinished if each.is_complete]:
                member.finish()
                unfinished.remove(member)
            yield True
        for member in unfinished:
            member.finish()

    def _report(self, step: Sequence[GeneratedToken]) -> None:
        for sequence, token, log_prob in step:
            state = self.sequences[sequence]
            if not state.has_ended:
                top_tokens = self.top_tokens.get(sequence) if state.request.num_top_tokens else None
                state.push(token, log_prob, top_tokens)
