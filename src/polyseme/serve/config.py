"""The settings of an application and of a server. This module needs neither torch nor the packages of the server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AppConfig:
    """The settings of an application: see `polyseme serve --help`."""

    max_wait: float = 5.0  # milliseconds
    max_batch_tokens: int = 0  # 0: what the model reads at once
    max_queue: int = 512
    max_delay: float = 0.0  # milliseconds; 0: none
    timeout: float = 60.0  # seconds
    token: str = ""
    hosts: tuple[str, ...] = ()
    metrics_folder: str = ""  # in which several processes share their metrics


@dataclass(frozen=True)
class ServerConfig(AppConfig):
    """Where the server listens, and the settings of its application."""

    host: str = "127.0.0.1"
    port: int = 8000
    drain_seconds: int = 30  # for requests in progress when the server is stopped
    num_workers: int = 1  # processes, each with its own models: see `serve_paths`
