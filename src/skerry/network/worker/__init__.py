"""The network worker: an unprivileged process that applies policies, relays connections, answers DNS and serves
previews."""

from __future__ import annotations

from skerry.codecs import h11_headers

h11_headers.harden()
