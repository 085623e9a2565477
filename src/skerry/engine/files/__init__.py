"""Files of a sandbox: reading, writing, transfer of trees, and watching for changes."""
