"""Image archives: tar in both directions, and the confined child processes that pack and unpack file trees."""
