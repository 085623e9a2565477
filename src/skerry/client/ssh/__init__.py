"""SSH to a sandbox: an SSH server that OpenSSH starts as its ProxyCommand, on this machine. It runs commands, files and
forwarding over the client's connections.

No SSH server runs in the sandbox or on the host, no port is opened, and no key leaves this machine. A *login* is one
SSH connection; its *sessions* are commands, shells and SFTP.
"""

from skerry.client.ssh.channels import Session
from skerry.client.ssh.login import Login, LoginOptions, serve

__all__ = ["Login", "LoginOptions", "Session", "serve"]
