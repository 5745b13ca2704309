"""Model folders and the conversion of published weights."""
