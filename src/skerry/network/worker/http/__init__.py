"""HTTP of egress connections: request parsing, per-request decisions, forwarding, filters."""
