"""Loss functions that need their own implementation."""
