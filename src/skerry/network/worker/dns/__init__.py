"""Name resolution: the DNS server that a sandbox sees, fake IPs, and the upstream resolver."""
