"""How long a batch takes, by its number of tokens."""

DECAY = 0.98  # weight of a batch relative to the next one


class BatchTimeEstimate:
    """The time of a batch as a line over its tokens, fitted to recent batches by weighted least squares."""

    def __init__(self) -> None:
        self.weight = self.tokens = self.seconds = self.squares = self.products = 0.0  # weighted sums

    def add(self, num_tokens: int, seconds: float) -> None:
        """Take the time of a batch into account."""
        self.weight = DECAY * self.weight + 1
        self.tokens = DECAY * self.tokens + num_tokens
        self.seconds = DECAY * self.seconds + seconds
        self.squares = DECAY * self.squares + num_tokens * num_tokens
        self.products = DECAY * self.products + num_tokens * seconds

    def __call__(self, num_tokens: float) -> float:
        """Return the expected seconds of a batch; 0 before the first one."""
        if not self.weight:
            return 0.0
        mean_tokens, mean_seconds = self.tokens / self.weight, self.seconds / self.weight
        variance = self.squares / self.weight - mean_tokens**2
        covariance = self.products / self.weight - mean_tokens * mean_seconds
        slope = max(covariance / variance, 0.0) if variance > 1e-9 else 0.0
        slope = min(slope, mean_seconds / max(mean_tokens, 1.0))  # no batch takes less than no time
        return mean_seconds + slope * (num_tokens - mean_tokens)
