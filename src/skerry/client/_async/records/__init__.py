"""Records of a sandbox: its trace, and replays of it."""
