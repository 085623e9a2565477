"""A replacement for h11's pattern of a header line. h11 parses HTTP for httpx2 and in the network worker."""

from __future__ import annotations

import re

import h11._readers as readers
from h11._abnf import field_name, field_value


def harden() -> None:
    """Replace the pattern in this process. Call it before a byte from another party is parsed.

    h11's own pattern backtracks over the blanks before a value: 60 KB of them would hold the interpreter, and so every
    thread and the event loop, for half a minute. This pattern matches the same text in linear time.
    """
    readers.header_field_re = re.compile(
        rf"(?P<field_name>{field_name}):[ \t]*+(?P<field_value>{field_value})[ \t]*".encode("ascii")
    )
