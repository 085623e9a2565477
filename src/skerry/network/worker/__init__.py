"""The network worker: a process of its own, unprivileged. Judges, relays, names, previews."""
