"""Network access of sandboxes: egress under a policy, and previews of ports inside.

On the server's side, `gateway` puts listeners and rules into a sandbox's network namespace, and `supervisor` runs the
worker and exchanges `messages` with it over a `channel`. `worker` is that process: it is unprivileged and parses the
bytes that come from sandboxes. `policy` is pure and used by both sides; `ca` makes the certificates for TLS
interception.
"""
