"""`polyseme generate`: continue a text, or generate a target for a source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def generate(
    model: Annotated[Path, typer.Argument(help="a model folder that generates text")],
    prompt: Annotated[
        str | None, typer.Option(help="the text to continue; for a sequence-to-sequence model (T5), the source")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="a file with one prompt per line")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="maximum number of generated tokens", min=1)] = 100,
    do_sample: Annotated[
        bool, typer.Option("--do-sample", help="sample tokens; without it, greedy decoding takes the most likely one")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="divides the logits before sampling; below 1 favors likely tokens")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="sample from the k most likely tokens")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="nucleus sampling: smallest set with cumulative probability ≥ p")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="above 1 lowers the probability of tokens that occur in the text already")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="random seed of sampling")] = None,
    num_beams: Annotated[int | None, typer.Option(help="width of the beam search; 0: no beam search", min=0)] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="beam search: scores are divided by length to this power")
    ] = None,
    num_return_sequences: Annotated[
        int | None, typer.Option(help="number of texts per prompt: samples, or the best of the beam", min=1)
    ] = None,
    prefix: Annotated[str, typer.Option(help="text that every generated text starts with")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per text")] = False,
) -> None:
    """Continue each prompt. A single text is printed while it is generated."""
    import json

    import polyseme
    from polyseme.cli.output import read_texts
    from polyseme.errors import ConfigError
    from polyseme.generation.config import GenerationConfig

    if (prompt is None) == (data is None):
        raise ConfigError("give either --prompt with a text, or --data with one prompt per line")
    options = {
        "max_new_tokens": max_new_tokens, "do_sample": do_sample or None, "temperature": temperature, "top_k": top_k,
        "top_p": top_p, "repetition_penalty": repetition_penalty, "seed": seed, "num_beams": num_beams,
        "length_penalty": length_penalty, "num_return_sequences": num_return_sequences,
    }  # fmt: skip
    config = GenerationConfig.from_options(None, {name: value for name, value in options.items() if value is not None})
    loaded = polyseme.load(model)
    if prompt is not None and not (as_json or config.num_beams or config.num_return_sequences > 1):
        chunks = loaded.stream(prompt, config, prefix=prefix)
        first_chunk = next(chunks, "")  # errors are raised before anything is printed
        print((prefix if loaded.is_seq2seq else prompt + prefix) + first_chunk, end="", flush=True)
        for chunk in chunks:
            print(chunk, end="", flush=True)
        print()
        return
    prompts = [prompt] if prompt is not None else read_texts(data or Path())
    for text, generated in zip(prompts, loaded.generate(prompts, config, prefix=prefix)):
        for each in generated:
            if as_json:
                row = {"prompt": text, "text": prefix + each.text, "log_prob": each.score,
                       "num_tokens": len(each.tokens), "is_finished": each.is_finished}  # fmt: skip
                print(json.dumps(row, ensure_ascii=False))
            else:
                full_text = prefix + each.text if loaded.is_seq2seq else text + prefix + each.text
                print(f"{each.score:10.4f}  {full_text}" if config.num_beams else full_text)
