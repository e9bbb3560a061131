"""One hierarchy of errors; every message says what was asked, what was found, and the remedy.

::

    TandemError
    ├── UserError              exit code 2, one line, never a traceback
    │   ├── ModelNotFoundError     no such folder, file, repository or recipe
    │   ├── ModelDamagedError      truncated, missing shard, wrong SHA-256, wrong shapes
    │   ├── ModelUnsupportedError  unknown architecture, missing config field, unknown tensor type
    │   ├── DownloadError          offline, refused, interrupted, disk full
    │   ├── BudgetError            it does not fit the cards' bytes
    │   ├── ServeError             port in use, unsafe bind
    │   └── SettingsError          bad flag, environment variable or file key
    ├── RequestError           one HTTP request's fault; carries status, code and param
    │   ├── ContextLengthError     400 context_length_exceeded
    │   ├── QueueFullError         429 with retry_after_s
    │   └── NotReadyError          503 with retry_after_s
    └── EngineFault            the engine itself is broken: /health turns 503, waiting requests end with it
"""

from __future__ import annotations


class TandemError(Exception):
    """Base of everything Tandem raises on purpose.

    ``str(error)`` is one line: the message, then ``found`` and ``remedy`` where they are given.
    """

    exit_code = 1

    def __init__(self, message: str, *, found: str | None = None, remedy: str | None = None) -> None:
        self.message = message
        self.found = found
        self.remedy = remedy
        parts = [message]
        if found:
            parts.append(f"found: {found}")
        if remedy:
            parts.append(f"try: {remedy}")
        super().__init__("; ".join(parts))


class UserError(TandemError):
    """Something the user can put right; the command ends with this line and exit code 2."""

    exit_code = 2


class ModelNotFoundError(UserError):
    """No model, file or recipe is where the user said."""


class ModelDamagedError(UserError):
    """A file of the model is missing, cut short, or not what its hash or header says."""


class ModelUnsupportedError(UserError):
    """The model is whole, but of an architecture, field or tensor type that Tandem does not serve."""


class DownloadError(UserError):
    """A download could not be made or finished; what arrived is kept for resuming."""


class BudgetError(UserError):
    """The plan needs more bytes than a card may use."""


class ServeError(UserError):
    """The server cannot listen as asked."""


class SettingsError(UserError):
    """A flag, environment variable or settings file holds a value that cannot be used."""


class RequestError(TandemError):
    """One request's own fault, or a refusal to take it. Becomes the OpenAI error object.

    ``status`` is the HTTP status, ``code`` OpenAI's machine-readable code, ``param`` the field at fault.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message, found=found, remedy=remedy)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def type(self) -> str:
        """OpenAI's coarse error type for this status."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"


class ContextLengthError(RequestError):
    """The prompt (plus the tokens asked for) does not fit the served context."""

    def __init__(self, *, prompt_tokens: int, context_tokens: int, max_tokens: int | None = None) -> None:
        asked = f"{prompt_tokens} prompt tokens"
        if max_tokens is not None:
            asked += f" plus {max_tokens} tokens to generate"
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens; you asked for {asked}",
            code="context_length_exceeded",
            param="messages",
            remedy="shorten the messages"
            if max_tokens is None
            else "shorten the messages or lower max_tokens",
        )


class QueueFullError(RequestError):
    """The waiting queue is full, or a request waited longer than allowed."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message, status=429, code="queue_full", retry_after_s=retry_after_s)


class NotReadyError(RequestError):
    """The server is loading, shutting down, or its engine has failed."""

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message, status=503, code="not_ready", retry_after_s=retry_after_s)


class EngineFault(TandemError):  # noqa: N818 - a fault of the machine, not of a caller
    """The engine cannot go on. Its message is what ``/health`` and every waiting request report."""
