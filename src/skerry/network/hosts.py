"""Host names and addresses, as every part of the network takes them: by `parse_host` and `parse_authority`, never by
hand. The parser itself is in `skerry.types.hosts`, since the client needs it too."""

from skerry.types.hosts import Address, BadHost, Host, Name, carried, parse_authority, parse_host, plain, show_host

__all__ = ["Address", "BadHost", "Host", "Name", "carried", "parse_authority", "parse_host", "plain", "show_host"]
