"""Replay: the pure parts. `normalise` has the table of values that may differ between two runs, `compare` compares two
runs of one step."""
