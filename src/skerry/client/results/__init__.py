"""Results of SDK calls that are more than decoded JSON."""
