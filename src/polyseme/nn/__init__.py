"""Building blocks of models: layers, attention, trunks, heads."""
