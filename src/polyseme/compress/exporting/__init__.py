"""Models in the formats of other programs: ONNX, torch.export, and tables of static vectors."""
