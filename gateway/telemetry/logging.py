"""
Structured logs: one JSON object a line, and nothing secret in any of them.

Redaction is by construction first (nobody logs a body or a header), and by a last processor that blanks whatever still
looks like one of our keys or like a URL with a password.
"""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET = re.compile(r"\b((?:sk|ak)-wb-[0-9A-Za-z]{12})[0-9A-Za-z]+|(?<=://)[^/\s:@]+:[^/\s@]*@")


def set_up_logging(log_format: str, level: str) -> None:
    """Send structlog's and the standard library's records to stdout as *log_format* ("json" or "console")."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redact,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if log_format == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn", "uvicorn.error", "httpx", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Blank secrets in every text of *event*; the public part of a key stays."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _SECRET.sub(lambda found: f"{found[1]}…" if found[1] else "…@", value)
    return event
