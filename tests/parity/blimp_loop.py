"""Accuracy on minimal pairs by a short loop over `transformers`, to compare with ours.

    python tests/parity/blimp_loop.py MODEL BLIMP [--pairs N]

prints the accuracy by our evaluation and by the loop, and the paradigms that differ.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch
import transformers


@torch.no_grad()
def score(model, tokenizer, texts, is_masked, batch_size=32):
    """Return the log-probability of each text, or for a masked model its pseudo-log-likelihood."""
    encoded, scores, by_length = tokenizer(texts)["input_ids"], [0.0] * len(texts), defaultdict(list)
    if not is_masked:
        encoded = [[tokenizer.bos_token_id, *ids] for ids in encoded]
    for i, ids in enumerate(encoded):
        by_length[len(ids)].append(i)
    for length, members in by_length.items():  # texts of one length need no padding
        for batch in (members[k : k + batch_size] for k in range(0, len(members), batch_size)):
            ids = torch.tensor([encoded[i] for i in batch])
            if is_masked:  # one copy for each token between the two special ones
                num_copies = length - 2
                copies, index = ids.repeat_interleave(num_copies, 0), torch.arange(len(batch) * num_copies)
                position = torch.arange(1, length - 1).repeat(len(batch))
                targets, copies[index, position] = copies[index, position], tokenizer.mask_token_id
                logits = model(copies).logits[index, position]
            else:
                targets, logits = ids[:, 1:].flatten(), model(ids).logits[:, :-1].flatten(0, 1)
            log_probs = logits.double().log_softmax(-1).gather(1, targets[:, None])
            for i, total in zip(batch, log_probs.view(len(batch), -1).sum(1).tolist()):
                scores[i] = total
    return scores


def accuracies(folder, paradigms, tolerance=1e-5):
    """Return the accuracy on each paradigm, a list of pairs; a tie is half."""
    is_masked = "LMHead" not in json.loads((Path(folder) / "config.json").read_text())["architectures"][0]
    auto = transformers.AutoModelForMaskedLM if is_masked else transformers.AutoModelForCausalLM
    model, tokenizer = auto.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)
    results = {}
    for name, pairs in paradigms.items():
        good, bad = (score(model, tokenizer, [pair[side] for pair in pairs], is_masked) for side in (0, 1))
        points = [0.5 if abs(a - b) <= tolerance else float(a > b) for a, b in zip(good, bad)]
        results[name] = sum(points) / len(points)
    return results


def main():
    import polyseme
    from polyseme.datasets.minimal_pairs import MinimalPair
    from polyseme.evaluation.minimal_pairs import evaluate_minimal_pairs

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pairs", type=int, default=1000, help="of each paradigm")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {file.stem: list(map(json.loads, file.open())) for file in sorted((args.data / "data").glob("*.jsonl"))}
    rows = {name: paradigm[: args.pairs] for name, paradigm in rows.items()}
    theirs = accuracies(
        args.model, {name: [(r["sentence_good"], r["sentence_bad"]) for r in rows[name]] for name in rows}
    )
    examples = [MinimalPair(r["sentence_good"], r["sentence_bad"], name) for name in rows for r in rows[name]]
    ours = evaluate_minimal_pairs(polyseme.load(args.model, device="cpu"), examples)
    different = {name: (ours.paradigms[name], theirs[name]) for name in rows if ours.paradigms[name] != theirs[name]}
    mean = sum(theirs.values()) / len(theirs)
    print(f"{len(rows)} paradigms, {len(examples)} pairs, {ours.num_ties} ties")
    print(f"ours {100 * ours.accuracy:.3f}, the loop {100 * mean:.3f}; {len(different)} paradigms differ: {different}")


if __name__ == "__main__":
    main()
