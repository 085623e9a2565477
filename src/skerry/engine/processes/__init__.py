"""Programs that run in a sandbox.

process  a command under the keeper; its output is kept in a journal
run      a command with a caller that reads its output while it runs
session  a named shell that keeps its directory, environment and functions between commands
terminal a process with a pseudo-terminal
port     a TCP port inside the sandbox that a caller waits for or connects to
"""
