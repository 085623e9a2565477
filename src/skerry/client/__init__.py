"""The SDK: describes requests, sends them to a server, makes values of the answers.

`_async` is written, `_sync` generated from it; what neither waits nor connects stands beside them. `address` and
`local` find a server or start this host's own; `landing` is where files from inside may be written on this host.
"""
