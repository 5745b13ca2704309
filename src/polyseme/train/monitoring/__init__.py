"""What is observed while a model is trained."""
