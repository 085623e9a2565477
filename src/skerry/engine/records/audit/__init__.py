"""The audit log, which proves the effects of callers and the security events inside sandboxes.

A *line* is one record as bytes: a JSON object that carries the SHA-256 hash of the line before it. The lines are a
*chain* in append-only files, the *segments*. A *seal* is a line with an Ed25519 signature over the hash of its
predecessor, and so over everything before it. A *checkpoint* is a copy of the newest seal, outside of the data
directory. An *action* is written before its effect and a *result* after it; an *event* happens inside a sandbox.
"""
