"""Generate text with a folder that `polyseme export --to onnx` wrote, with onnxruntime and tokenizers alone.

    polyseme export MODEL --to onnx --cache --out FOLDER      # or an encoder-decoder, without --cache
    python examples/generate_onnx.py FOLDER "a text" [NUMBER OF TOKENS]

Keys and values, or the states of a recurrent model, are passed from one step to the next.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder, text, num_tokens = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 20
about = json.loads((folder / "export.json").read_text())
tokenizer = target_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
if (folder / "target").is_dir():
    target_tokenizer = Tokenizer.from_file(str(folder / "target" / "tokenizer.json"))


def open_graph(name):
    return onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])


ids = tokenizer.encode(text, add_special_tokens=False).ids
sizes = {"batch": 1, "past": 0}
memory = {c["input"]: np.zeros([sizes.get(n, n) for n in c["shape"]], np.float32) for c in about["cache"]}
decoder, tokens = open_graph("decoder_model" if "graphs" in about else "model"), about["start_ids"]
source_mask = np.ones((1, len(ids) + len(about["source_suffix_ids"])), np.int64)
if "graphs" in about:
    encoder = open_graph("encoder_model")
    states = encoder.run(
        None, {"input_ids": np.array([ids + about["source_suffix_ids"]]), "attention_mask": source_mask}
    )
    outputs = dict(zip([output.name for output in encoder.get_outputs()], states))
    memory |= {
        c["input"]: outputs[c["output"]] for c in about["cache"] + about["source_cache"] if c["output"] in outputs
    }
else:
    tokens = tokens + ids

generated, num_read = [], 0
has_past = any("past" in c["shape"] for c in about["cache"])  # a recurrent model has no past tokens
for _ in range(num_tokens):
    num_read += len(tokens)
    mask = np.ones((1, num_read if has_past else len(tokens)), np.int64)
    masks = {"encoder_attention_mask": source_mask} if "graphs" in about else {"attention_mask": mask}
    logits, *present = decoder.run(None, {"input_ids": np.array([tokens], np.int64), **masks, **memory})
    memory |= {c["input"]: values for c, values in zip(about["cache"], present)}
    scores = logits[0, -1]
    scores[about["suppressed_ids"]] = -np.inf
    tokens = [int(scores.argmax())]
    if tokens[0] in about["eos_ids"]:
        break
    generated += tokens
print(target_tokenizer.decode(generated if "graphs" in about else ids + generated))
