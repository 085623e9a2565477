"""The network worker: a process of its own, unprivileged. Judges, relays, names, previews."""

from __future__ import annotations

import re

import h11._readers as readers
from h11._abnf import field_name, field_value

# h11's own pattern gives the blanks before a value back one by one: 60 KB of them, from any server or program inside,
# would keep the loop, and so every sandbox, waiting for half a minute. What it matches is the same.
readers.header_field_re = re.compile(
    rf"(?P<field_name>{field_name}):[ \t]*+(?P<field_value>{field_value})[ \t]*".encode("ascii")
)
