"""Run a folder that `polyseme export --to onnx` wrote, with onnxruntime and tokenizers alone.

    python examples/run_onnx.py FOLDER "a text" "another text"

It prints the label or the number of each text, the tag of each word, the tokens for its masks, or its similarity to the
first text. A folder that continues or translates texts is run by generate_onnx.py.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder, texts = Path(sys.argv[1]), sys.argv[2:]
about = json.loads((folder / "export.json").read_text())
if "outputs" not in about:
    sys.exit(f"{folder} continues or translates texts: run generate_onnx.py")
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_padding(pad_id=about["pad_id"])
tokenizer.enable_truncation(about["max_length"])
session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
labels, axes = about["outputs"][0]["labels"], about["outputs"][0]["axes"]
has_tags = bool(labels) and "length" in axes

prepared = [text.lower() if about["lowercase"] else text for text in texts]
encodings = tokenizer.encode_batch([text.split() for text in prepared] if has_tags else prepared, has_tags)
columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
inputs = {name: np.array([getattr(e, columns[name]) for e in encodings], np.int64) for name in about["inputs"]}
outputs = dict(zip([each["name"] for each in about["outputs"]], session.run(None, inputs)))


def best_tags(rows, transitions=0.0, start=0.0, end=0.0):
    """Return the best sequence of labels, under the transitions of a CRF if there are any (Viterbi)."""
    if not len(rows):
        return []
    scores, paths = rows[0] + start, [[tag] for tag in range(len(labels))]
    for row in rows[1:]:
        candidates = scores[:, None] + np.zeros_like(row) + transitions
        paths = [[*paths[previous], tag] for tag, previous in enumerate(candidates.argmax(0))]
        scores = candidates.max(0) + row
    return paths[np.argmax(scores + end)]


if "sentence_embedding" in outputs:
    vectors = outputs["sentence_embedding"] / np.linalg.norm(outputs["sentence_embedding"], axis=1, keepdims=True)
    answers = [f"{cosine:.4f}" for cosine in vectors @ vectors[0]]
elif has_tags:
    step = 1 if about["predicted_piece"].get("logits") == "last" else -1  # the last or first token of a word is tagged
    words = [dict([(word, i) for i, word in enumerate(e.word_ids) if word is not None][::step]) for e in encodings]
    crf = {name: np.array(scores) for name, scores in about["crf"].get("logits", {}).items()}
    rows = [outputs["logits"][i, sorted(indices.values())] for i, indices in enumerate(words)]
    answers = [" ".join(labels[tag] for tag in best_tags(each, **crf)) for each in rows]
elif "length" not in axes:
    answers = [labels[row.argmax()] if labels else f"{row.item():.4f}" for row in outputs["logits"]]
else:
    is_mask, best = inputs["input_ids"] == about["mask_id"], outputs["logits"].argmax(-1)
    answers = [tokenizer.decode(best[row, is_mask[row]]) for row in range(len(texts))]
for text, answer in zip(texts, answers):
    print(f"{answer}\t{text}")
