"""The engine: what a sandbox is, from its making to its last trace.

Engine      the one place through which every effect on a sandbox passes
Row, Live   what is known of a sandbox on disk; what the server holds for one that runs
step        one named piece of create, start, stop or delete, and a fault point
News, Event what happened, before and after it has its number
Run         a command under way, whose output is being read
"""
