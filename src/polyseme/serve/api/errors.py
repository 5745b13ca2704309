"""Errors of the server: a status, a type for programs, and a message for people."""

from polyseme.errors import (
    ConfigError,
    DataError,
    ModelError,
    PolysemeError,
    TextTooLongError,
    UnsupportedError,
    is_out_of_memory,
)

# Every type of error, with its status.
ERROR_STATUS = {
    "invalid_json": 400,
    "invalid_header": 400,
    "unauthorized": 401,
    "invalid_host": 403,
    "not_found": 404,
    "model_not_found": 404,
    "method_not_allowed": 405,
    "too_large": 413,
    "too_long": 413,
    "unsupported_media_type": 415,
    "invalid_request": 422,
    "unsupported": 422,
    "overloaded": 429,
    "internal": 500,
    "unavailable": 503,
    "deadline_exceeded": 503,
    "out_of_memory": 503,
}


class RequestError(PolysemeError):
    """A request that is not answered; `headers` are added to the response."""

    def __init__(self, error_type: str, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.error_type, self.status, self.headers = error_type, ERROR_STATUS[error_type], headers or {}

    def to_json(self) -> dict[str, dict[str, str]]:
        """Return the body of the response."""
        return {"error": {"type": self.error_type, "message": str(self)}}


def to_request_error(error: BaseException) -> RequestError:
    """Return what a client is told about an error of the library; anything unexpected has no details."""
    if isinstance(error, RequestError):
        return error
    if is_out_of_memory(error) or (error.__cause__ is not None and is_out_of_memory(error.__cause__)):
        return RequestError("out_of_memory", "out of memory: send fewer or shorter texts, or try again later")
    if isinstance(error, UnsupportedError):
        return RequestError("unsupported", str(error))
    if isinstance(error, TextTooLongError):
        return RequestError("too_long", str(error))
    if isinstance(error, ConfigError | DataError):
        return RequestError("invalid_request", str(error))
    if isinstance(error, ModelError):
        return RequestError("unsupported", f"the model cannot answer: {error}")
    return RequestError("internal", "an internal error occurred; the server's log has the details")
