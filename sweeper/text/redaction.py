"""Keep secrets out of everything that is written: passwords in addresses, tokens in arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A password may hold an @ or, after a user name and a colon, a slash, though an address should not.
_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?:[^/\s]+|[^/:@\s]+:[^@\s]+)@")
_SECRET_VALUE = re.compile(
    r"(?i)(?P<name>[A-Za-z0-9_.-]*"
    r"(?:token|secret|password|passwd|api[-_]?key|access[-_]?key|credential|authorization)[A-Za-z0-9_-]*)"
    r"(?P<sign>[\"']?\s*[=:]\s*[\"']?(?:bearer |basic )?)(?P<value>[^\s&,;\"']+)"
)

# A server that refuses somebody may repeat the header it was sent, without the header's name.
_SENT_HEADER = re.compile(r"(?i)\b(?P<kind>basic|bearer) [A-Za-z0-9+/=_.~-]{16,}")


def redact(text: str) -> str:
    """Return `text` with users and passwords in addresses, sent credentials and values of secret-like names starred."""
    text = _USER_INFO.sub(r"\g<scheme>***@", text)
    text = _SENT_HEADER.sub(r"\g<kind> ***", text)
    return _SECRET_VALUE.sub(r"\g<name>\g<sign>***", text)


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line's arguments redacted; a secret may follow its name as an argument of its own."""
    names = ["", *(argument if argument.startswith("-") and "=" not in argument else "" for argument in arguments)]
    return [
        "***" if name and not argument.startswith("-") and redact(f"{name}=x") != f"{name}=x" else redact(argument)
        for name, argument in zip(names, arguments, strict=False)
    ]
