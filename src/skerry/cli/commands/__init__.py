"""Commands of `skerry`, one file per noun. Each parses options, makes one call of the SDK and renders the result."""
