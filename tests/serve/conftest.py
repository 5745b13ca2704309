"""A server of small models of every kind, for all tests of a worker."""

from importlib.util import find_spec

import pytest

import polyseme
from tests.serve.models import running_server, save_models

collect_ignore_glob = [] if find_spec("starlette") and find_spec("uvicorn") else ["test_*.py"]


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
