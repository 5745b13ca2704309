"""A server of small models of every kind, for all tests of a worker."""

import pytest

import polyseme

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from tests.serve.models import running_server, save_models


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Loaded models by name."""
    folder = tmp_path_factory.mktemp("served")
    return {name: polyseme.load(path) for name, path in save_models(folder).items()}


@pytest.fixture(scope="session")
def url(models):
    """The address of a server of all models."""
    with running_server(models) as address:
        yield address
