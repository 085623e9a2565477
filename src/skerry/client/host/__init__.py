"""Files, directories and git repositories on the client's machine."""
