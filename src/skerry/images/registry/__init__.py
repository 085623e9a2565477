"""Images from registries: the HTTP client, manifests, blobs, and the pull that puts them together."""
