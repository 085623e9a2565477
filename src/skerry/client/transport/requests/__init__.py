"""Request builders, one module per noun. Pure: arguments in, a request out."""
