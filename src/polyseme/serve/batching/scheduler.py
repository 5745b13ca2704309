"""The batches of text generation of a model: which requests they admit, and what happens when a step fails."""

import logging
from collections import deque
from collections.abc import Sequence

from polyseme.errors import PolysemeError, is_out_of_memory
from polyseme.generation.continuous import supports_joining
from polyseme.serve.batching.continuous import ContinuousRequests
from polyseme.serve.batching.fixed import FixedRequests
from polyseme.serve.batching.generation import TextGeneration

logger = logging.getLogger(__name__)
RequestBatch = ContinuousRequests | FixedRequests


class GenerationScheduler:
    """Admits requests in the order of their arrival, while rows × columns of all buffers are at most `max_cells`."""

    def __init__(self, name: str, max_cells: int):
        self.name, self.max_cells = name, max_cells
        self.batches: list[RequestBatch] = []

    @property
    def num_generations(self) -> int:
        """The number of requests whose text is being generated."""
        return sum(len(batch.members) for batch in self.batches)

    def admit(self, queue: deque[TextGeneration]) -> None:
        """Let waiting requests join a batch, or start one; stop at the first for which there is no room."""
        while queue:
            try:
                if not self._admit(queue[0]):
                    return
            except Exception as error:
                self._fail([queue[0]], error)
            queue.popleft()

    def _admit(self, generation: TextGeneration) -> bool:
        if supports_joining(generation.generator.model):  # so all requests of the model can
            if self.batches:
                return self.batches[0].add(generation)
            self.batches.append(ContinuousRequests(generation, self.max_cells))
            return True
        num_cells = sum(member.num_cells for batch in self.batches for member in batch.members)
        if self.batches and num_cells + generation.num_cells > self.max_cells:
            return False
        if not any(batch.add(generation) for batch in self.batches):
            self.batches.append(FixedRequests(generation))
        return True

    def step(self) -> None:
        """Run a step of each batch."""
        self.batches = [rest for batch in self.batches for rest in self._step(batch)]

    def _step(self, batch: RequestBatch) -> list[RequestBatch]:
        """Run a step of a batch, and return it if more follow. If it fails, its members do.

        Members of a fixed batch that could not start run by themselves, so that an error reaches its own request.
        """
        try:
            return [batch] if batch.step() else []
        except Exception as error:
            if isinstance(batch, FixedRequests) and batch.num_steps == 1 and len(batch.members) > 1:
                return [FixedRequests(member) for member in batch.members]
            self._fail(batch.members, error)
            return []

    def _fail(self, members: Sequence[TextGeneration], error: Exception) -> None:
        if not isinstance(error, PolysemeError) and not is_out_of_memory(error):
            logger.error(f"generation by the model {self.name} failed: {type(error).__name__}", exc_info=error)
        for member in members:
            member.fail(error)
