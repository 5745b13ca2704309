"""`polyseme generate`: continue a text, or generate a target for a source."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from polyseme.cli import options
from polyseme.cli.output import print_json, read_texts
from polyseme.errors import ConfigError
from polyseme.io.limits import MAX_INTEGER

PROMPT_HELP = "Text to continue; for a sequence-to-sequence model (T5), the source."
SAMPLE_HELP = "Sample tokens instead of taking the most likely one; --temperature, --top-k or --top-p imply it."
PENALTY_HELP = "Values above 1 lower the probability of tokens that the text already contains."
TemperatureOption = Annotated[
    float | None, Option(help="Divides the logits; below 1 favors likely tokens. Default: 1.")
]
TopPOption = Annotated[float | None, Option(help="Nucleus sampling: smallest set with cumulative probability ≥ p.")]
SequencesOption = Annotated[int | None, Option(help="Texts per prompt: samples, or the best of the beam.", min=1)]


def generate(
    model: Annotated[Path, Argument(help="Folder of a model that generates text.")],
    prompt: Annotated[str | None, Option(help=PROMPT_HELP)] = None,
    data: Annotated[Path | None, Option(help=f"Prompts: {options.INPUT_HELP}")] = None,
    max_new_tokens: Annotated[int, Option(help="Maximum number of generated tokens.", min=1)] = 100,
    do_sample: Annotated[bool, Option("--do-sample", help=SAMPLE_HELP)] = False,
    temperature: TemperatureOption = None,
    top_k: Annotated[int | None, Option(help="Sample from the k most likely tokens.")] = None,
    top_p: TopPOption = None,
    repetition_penalty: Annotated[float | None, Option(help=PENALTY_HELP)] = None,
    seed: Annotated[int | None, Option(help="Random seed of sampling.", min=0, max=MAX_INTEGER)] = None,
    num_beams: Annotated[int | None, Option(help="Width of the beam search; 0: no beam search.", min=0)] = None,
    length_penalty: Annotated[float | None, Option(help="Divide beam scores by length to this power.")] = None,
    num_return_sequences: SequencesOption = None,
    prefix: Annotated[str, Option(help="Text that every generated text starts with.")] = "",
    as_json: options.JsonLinesOption = False,
) -> None:
    """Continue each prompt. A single text is printed while it is generated."""
    import polyseme

    if (prompt is None) == (data is None):
        raise ConfigError("give either --prompt with a text, or --data with a file of prompts")
    settings = {
        "max_new_tokens": max_new_tokens, "do_sample": do_sample or None, "temperature": temperature, "top_k": top_k,
        "top_p": top_p, "repetition_penalty": repetition_penalty, "seed": seed, "num_beams": num_beams,
        "length_penalty": length_penalty, "num_return_sequences": num_return_sequences,
    }  # fmt: skip
    config = polyseme.GenerationConfig.from_options(None, {n: v for n, v in settings.items() if v is not None})
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
                counts = {"num_tokens": len(each.tokens), "is_finished": each.is_finished}
                print_json({"prompt": text, "text": prefix + each.text, "log_prob": each.score, **counts}, indent=None)
            else:
                full_text = prefix + each.text if loaded.is_seq2seq else text + prefix + each.text
                print(f"{each.score:10.4f}  {full_text}" if config.num_beams else full_text)
