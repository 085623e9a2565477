"""Images: where base file systems come from.

base      the image that everyone starts with: Debian or Ubuntu, whatever the host's own apt installs from
recipe    what it is made of, and how a record tells that it was made otherwise
sources   which archive that is, read from /etc/apt
"""

from skerry.images.base import build_base
from skerry.images.recipe import recipe_digest

__all__ = ["build_base", "recipe_digest"]
