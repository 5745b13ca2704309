"""`polyseme serve`: answer requests over HTTP."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

MODELS_HELP = (
    "Folders of models or runs, files of word vectors, or names from `polyseme models`; NAME=PATH to name one."
)
BATCH_HELP = "Most tokens of a batch; default: what the model reads at once, 2,048 on a CPU and 65,536 on a GPU."
WORKERS_HELP = "Processes that answer requests, each with its own models and queues; on a CPU under Linux."
DELAY_HELP = "Milliseconds in which nearly all accepted requests are done; more get status 429. 0: no limit."
ENGINE_HELP = "torch, or onnx: folders that `quantize` or `export --to onnx --head vectors` wrote."


def serve(
    models: Annotated[list[str], Argument(help=MODELS_HELP)],
    host: Annotated[str, Option(help="Address to listen at; 0.0.0.0 is all of this machine.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen at; 0 chooses a free one.", min=0, max=65535)] = 8000,
    workers: Annotated[int, Option(help=WORKERS_HELP, min=1, max=256)] = 1,
    max_wait: Annotated[float, Option(help="Milliseconds that a request waits for others.", min=0, max=10_000)] = 5.0,
    max_batch_tokens: Annotated[int | None, Option(help=BATCH_HELP, min=1)] = None,
    max_queue: Annotated[int, Option(help="Most requests that wait in a process; more get status 429.", min=1)] = 512,
    max_delay: Annotated[float, Option(help=DELAY_HELP, min=0)] = 0.0,
    timeout: Annotated[float, Option(help="Seconds until a request fails with status 503.", min=0.001)] = 60.0,
    token_file: Annotated[Path | None, Option(help="File with a token that requests must have.")] = None,
    allow_host: Annotated[list[str], Option(help="Name of this server in addresses, besides localhost.")] = [],
    engine: Annotated[str, Option(help=ENGINE_HELP)] = "torch",
    device: Annotated[str | None, Option(help="cpu or cuda; default: a GPU if there is one.")] = None,
    precision: Annotated[str, Option(help="float32, or bf16 on a GPU.")] = "float32",
) -> None:
    """Serve models over HTTP, also in OpenAI's format.

    Requests fill masks, embed, classify, generate, and more; the page /docs describes them.
    """
    from polyseme.errors import require_packages
    from polyseme.serve.config import ServerConfig
    from polyseme.serve.processes.supervisor import ModelSources, serve_paths

    require_packages({"starlette": "the server", "uvicorn": "the server"})
    token = ""
    if token_file is not None:
        from polyseme.serve.security import read_token

        token = read_token(token_file)
    options = max_wait, max_batch_tokens or 0, max_queue, max_delay, timeout, token, (host, *allow_host)
    config = ServerConfig(*options, host=host, port=port, num_workers=workers)
    serve_paths(ModelSources(tuple(models), device, precision, engine), config)
