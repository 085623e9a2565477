"""The gateway in a sandbox's network namespace: routes, nftables rules, listening sockets."""
