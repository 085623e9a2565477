"""Images: where base file systems come from.

base      the image that everyone starts with: Debian or Ubuntu, whatever the host's own apt installs from
sources   which archive that is, read from /etc/apt
"""

from skerry.images.base import build_base

__all__ = ["build_base"]
