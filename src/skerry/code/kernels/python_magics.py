"""IPython's syntax."""
