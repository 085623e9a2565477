"""HTTP to a server: addresses, connections, retries, WebSockets, and one module of request builders per noun."""
