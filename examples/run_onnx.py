"""Run a folder that `polyseme export --to onnx` wrote, with onnxruntime and tokenizers alone.

    python examples/run_onnx.py FOLDER "a text" "another text"

It prints the label of each text, the tokens for its masks, or its similarity to the first text.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder, texts = Path(sys.argv[1]), sys.argv[2:]
about = json.loads((folder / "export.json").read_text())
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_padding(pad_id=about["pad_id"])
tokenizer.enable_truncation(about["max_length"])
session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])

encodings = tokenizer.encode_batch([text.lower() for text in texts] if about["lowercase"] else texts)
columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
inputs = {name: np.array([getattr(e, columns[name]) for e in encodings], np.int64) for name in about["inputs"]}
names = [output["name"] for output in about["outputs"]]
outputs = dict(zip(names, session.run(names, inputs)))

if "sentence_embedding" in outputs:
    vectors = outputs["sentence_embedding"]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for text, cosine in zip(texts, vectors @ vectors[0]):
        print(f"{cosine:.4f}  {text}")
elif labels := about["outputs"][0]["labels"]:
    for text, logits in zip(texts, outputs["logits"]):
        print(f"{labels[logits.argmax()] if logits.ndim == 1 else [labels[i] for i in logits.argmax(-1)]}  {text}")
elif "logits" in outputs and about["mask_id"] is not None:
    for row, column in np.argwhere(inputs["input_ids"] == about["mask_id"]):
        print(f"{tokenizer.id_to_token(int(outputs['logits'][row, column].argmax()))}  {texts[row]}")
else:
    print({name: values.shape for name, values in outputs.items()})
