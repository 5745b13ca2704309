"""The page of attention weights: views of every head, one head, and one word across all heads."""
