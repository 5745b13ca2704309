"""How long a batch takes, by its number of tokens, and which calls are accepted so that they are done in time."""

DECAY = 0.98  # weight of a batch relative to the next one
LATE_SHARE = 0.005  # of calls that may take longer than the bound
STEP = 0.05  # relative change of the limit by a late call
MIN_LIMIT = 0.1  # of the bound


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


class DelayLimit:
    """The expected delay up to which calls are accepted, such that nearly all are done within a bound.

    What is expected is a mean, and calls that come later join a batch. So the limit is lowered by each call that takes
    longer than the bound, and raised by each that does not; in equilibrium `LATE_SHARE` of the calls are late.
    """

    def __init__(self, bound: float):
        self.bound, self.seconds = bound, bound / 2

    def record(self, delay: float) -> None:
        """Take the delay of a call into account, in seconds."""
        factor = 1 - STEP * (1 - LATE_SHARE) if delay > self.bound else 1 + STEP * LATE_SHARE
        self.seconds = min(max(self.seconds * factor, MIN_LIMIT * self.bound), self.bound)
