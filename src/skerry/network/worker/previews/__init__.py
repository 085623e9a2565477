"""Previews: ports inside a sandbox, served to browsers outside by a separate listener.

An *address* is a request's destination, from its Host or its path (`address`). A *preview* has a port, a token and an
expiry (`listener`). An *exchange* is one request and its response (`exchange`), over an *upstream*: a connection to the
port inside, kept for the next request (`upstream`). `listener` connects them.
"""
