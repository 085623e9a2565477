"""TLS of egress connections: reading the client hello, and interception for hosts that policy inspects."""
