"""The life of a sandbox: creation, start, stop, pause, resume, deletion, and recovery after a crash of the server.

SandboxRecord  a sandbox as stored in the database
SandboxSpec    a resolved request: image, limits, network and options, checked against the maxima
Sandbox        a sandbox that the server holds in memory: its lock, its keeper client, its running processes
Lifecycle      moves sandboxes between states, one named step after another
"""
