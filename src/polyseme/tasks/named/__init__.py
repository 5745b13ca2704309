"""Named data sets, by kind."""
