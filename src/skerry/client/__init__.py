"""The SDK: describes requests, sends them to a server, and returns values.

`_async` is written by hand, `_sync` is generated from it; code that neither waits nor connects is beside them.
`transport` finds and calls a server, or starts this host's; `results` holds the values of calls; `host` and `apply`
read and write files of this host; `build` describes images; `presets` and `repository` read this host's settings.
"""
