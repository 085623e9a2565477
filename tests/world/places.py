"""The names and addresses of the tests' world."""

from __future__ import annotations

from world import model_apis, oauth

HOST_SIDE, FAR_SIDE = "192.0.2.1", "192.0.2.2"
HOST_SIDE_6, FAR_SIDE_6 = "2001:db8:1::1", "2001:db8:1::2"
RESOLVER = "192.0.2.53"
API, API_6 = "198.51.100.10", "2001:db8:2::10"
FILES = "198.51.100.20"
INDEX, NPM, APT, GIT = "198.51.100.31", "198.51.100.32", "198.51.100.33", "198.51.100.34"
MODELS = "198.51.100.40"
OAUTH = "198.51.100.50"
EVIL, EVIL_6 = "203.0.113.66", "2001:db8:3::66"
METADATA, PRIVATE, CARRIER = "169.254.169.254", "10.20.0.5", "100.64.0.5"
PRIVATE_6 = "fd00:20::5"

# The answers of the world's name server: one list of addresses for each look-up in turn, the last one for ever.
NAMES: dict[str, list[list[str]]] = {
    "api.example.test": [[API]],
    "both.example.test": [[API, API_6]],
    "six.example.test": [[API_6]],
    "paths.example.test": [[API]],
    "inspected.example.test": [[API]],
    "secret.example.test": [[API]],
    "db.internal.test": [[PRIVATE]],
    "files.example.test": [[FILES]],
    "*.files.example.test": [[FILES]],
    "index.example.test": [[INDEX]],
    "npm.example.test": [[NPM]],
    "apt.example.test": [[APT]],
    "git.example.test": [[GIT]],
    "evil.test": [[EVIL]],
    "*.evil.test": [[EVIL]],
    "six.evil.test": [[EVIL_6]],
    "private.example.test": [[PRIVATE]],
    "metadata.example.test": [[METADATA]],
    "loopback.example.test": [["127.0.0.1"]],
    "unspecified.example.test": [["0.0.0.0"]],
    "own.example.test": [[HOST_SIDE]],
    "mixed.example.test": [[API, PRIVATE]],
    "mapped.example.test": [[f"::ffff:{METADATA}"]],
    "nat64.example.test": [["64:ff9b::a9fe:a9fe"]],
    "ula.example.test": [[PRIVATE_6]],
    "gone.example.test": [],
    # hosts of the documentation's examples
    "example.com": [[API]],
    "example.org": [[FILES]],
    "httpbin.org": [[API]],
    "git.example.com": [[GIT]],
    **{name: [[OAUTH]] for name in oauth.HOSTS},
    # model providers, for coding agents
    **{name: [[MODELS]] for name in model_apis.HOSTS},
}
# These serve; a packet to any other address is a breach.
SERVING = (RESOLVER, API, API_6, FILES, INDEX, NPM, APT, GIT, MODELS, OAUTH)
# These serve as well, so that a breach is visible, but no rule of a test names them.
CANARIES = (EVIL, EVIL_6, METADATA, PRIVATE, PRIVATE_6, CARRIER)
HTTP, HTTPS = (80, 8080), (443, 8443)
ECHO, BANNER, DATABASE = 7, 2525, 5432
HOST_CANARY_PORTS = (22, 53, 80, 443, 2525, 3128, 5432, 8080)
ABSTRACT = "skerry-test-world-canary"
