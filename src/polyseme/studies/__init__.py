"""Studies: pre-training experiments as data, with arms, metrics, and the sign that a paper predicts."""
