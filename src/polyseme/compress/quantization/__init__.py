"""Models with weights of 8 bits: int8 graphs for onnxruntime, and folders of int8 or bfloat16 weights."""
