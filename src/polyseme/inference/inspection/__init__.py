"""What a model computes on the way to its answer: attention, attribution."""
