"""sentence-transformers behind a plain starlette app that batches arriving requests: the peer of `benchmarks/serve.py`.

    python benchmarks/serve_peer.py MODEL --port 8001 [--device cpu] [--max-batch 64] [--max-wait 5]

It answers `/v1/embeddings` as OpenAI does. While a batch is computed, requests collect in a queue; the next batch takes
up to `max-batch` of them, at the latest `max-wait` milliseconds after the first. There are no limits and no checks.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import uvicorn
from sentence_transformers import SentenceTransformer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def create_app(model: SentenceTransformer, max_batch: int, max_wait: float) -> Starlette:
    """Return the application."""
    queue: asyncio.Queue[tuple[list[str], asyncio.Future[Any]]] = asyncio.Queue()
    thread = ThreadPoolExecutor(1)

    async def run_batches() -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await queue.get()]
            deadline = loop.time() + max_wait
            while sum(len(texts) for texts, _ in batch) < max_batch:
                try:
                    batch.append(await asyncio.wait_for(queue.get(), deadline - loop.time()))
                except TimeoutError:
                    break
            texts = [text for group, _ in batch for text in group]
            vectors = await loop.run_in_executor(thread, lambda texts=texts: model.encode(texts, batch_size=max_batch))
            for group, future in batch:
                if not future.done():
                    future.set_result(vectors[: len(group)])
                vectors = vectors[len(group) :]

    async def embeddings(request: Request) -> Response:
        body = json.loads(await request.body())
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await queue.put((texts, future))
        rows = await future
        is_base64 = body.get("encoding_format") == "base64"
        encoded = [base64.b64encode(row.tobytes()).decode() if is_base64 else row.tolist() for row in rows]
        return JSONResponse({"data": [{"index": i, "embedding": row} for i, row in enumerate(encoded)]})

    async def ready(request: Request) -> Response:
        return JSONResponse({"status": "ready"})

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(run_batches())
        yield
        task.cancel()

    routes = [Route("/v1/embeddings", embeddings, methods=["POST"]), Route("/ready", ready)]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    """Serve a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16"])
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--max-wait", type=float, default=5.0)
    args = parser.parse_args()
    options = {"model_kwargs": {"dtype": torch.bfloat16}} if args.precision == "bf16" else {}
    model = SentenceTransformer(args.model, device=args.device, **options)
    if args.precision == "bf16":
        encode = model.encode
        model.encode = lambda texts, **kw: encode(texts, convert_to_tensor=True, **kw).float().cpu().numpy()
    app = create_app(model, args.max_batch, args.max_wait / 1000)
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
