"""`polyseme generate`: let a model write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def generate(
    model: Annotated[Path, typer.Argument(help="a model folder that can write")],
    prompt: Annotated[str | None, typer.Option(help="what to go on with; for T5 and its like, the source")] = None,
    data: Annotated[Path | None, typer.Option(help="prompts, one a line")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="how many tokens at most", min=1)] = 100,
    do_sample: Annotated[bool, typer.Option("--do-sample", help="draw tokens; else the likeliest is taken")] = False,
    temperature: Annotated[float | None, typer.Option(help="below 1 what is likely gets likelier")] = None,
    top_k: Annotated[int | None, typer.Option(help="draw from the k likeliest")] = None,
    top_p: Annotated[float | None, typer.Option(help="draw from the likeliest that have this share")] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="above 1: what was said is less likely to be said again")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="of the draws")] = 0,
    num_samples: Annotated[int, typer.Option(help="how many texts to draw", min=1)] = 1,
    num_beams: Annotated[int, typer.Option(help="the width of a beam search; 0 is none", min=0)] = 0,
    length_penalty: Annotated[float, typer.Option(help="scores of a beam are divided by length to this power")] = 1.0,
    num_return_sequences: Annotated[int, typer.Option(help="how many texts of the beam to show", min=1)] = 1,
    prefix: Annotated[str, typer.Option(help="how the text that is written has to begin")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object a text")] = False,
) -> None:
    """Go on with a text, token by token; a single text is shown while it is written."""
    import json

    import polyseme
    from polyseme.cli.output import read_texts
    from polyseme.errors import ConfigError
    from polyseme.generation.sample import SamplingConfig
    from polyseme.generation.text import GenerationConfig

    if (prompt is None) == (data is None):
        raise ConfigError("give --prompt with a text to go on with, or --data with one a line")
    is_sampling = do_sample or any(value is not None for value in (temperature, top_k, top_p)) or num_samples > 1
    effective_top_p = 1.0 if top_p is None else top_p
    effective_temperature = (1.0 if is_sampling else 0.0) if temperature is None else temperature
    generation_config = GenerationConfig(
        max_new_tokens,
        SamplingConfig(effective_temperature, top_k or 0, effective_top_p, repetition_penalty, seed),
        num_samples,
        num_beams,
        length_penalty,
        num_return_sequences,
    )
    language_model = polyseme.load(model)
    if prompt is not None and not (as_json or num_beams or num_samples > 1):
        chunks = language_model.stream(prompt, generation_config, prefix)
        first_chunk = next(chunks, "")  # what cannot be done is said before anything is shown
        print((prefix if language_model.is_seq2seq else prompt + prefix) + first_chunk, end="", flush=True)
        for chunk in chunks:
            print(chunk, end="", flush=True)
        print()
        return
    prompts = [prompt] if prompt is not None else read_texts(data or Path())
    for text, hypotheses in zip(prompts, language_model.generate(prompts, generation_config, prefix)):
        for hypothesis in hypotheses:
            if as_json:
                row = {"prompt": text, "text": prefix + hypothesis.text, "log_prob": hypothesis.score,
                       "num_tokens": len(hypothesis.tokens), "is_finished": hypothesis.is_finished}  # fmt: skip
                print(json.dumps(row, ensure_ascii=False))
            else:
                full_text = prefix + hypothesis.text if language_model.is_seq2seq else text + prefix + hypothesis.text
                print(f"{hypothesis.score:10.4f}  {full_text}" if num_beams else full_text)
