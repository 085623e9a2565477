"""Route handlers, one file per noun. Each decodes a request, makes one call of the engine and encodes the result."""
