"""Coding agents in sandboxes. A *kit* describes one agent: its image, hosts, credentials, files and commands, in the
vocabulary of Docker's Sandbox Kit specification, version 3. The built-in kits are the YAML files in `presets`."""
