"""Option groups that several commands share, and the requests that they build."""
