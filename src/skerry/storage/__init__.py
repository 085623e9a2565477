"""Storage: everything on the host's disk that belongs to sandboxes.

layer     a read-only file tree, named by its digest; or a snapshot            (LayerStore)
image     a name for a stack of layers and its defaults                        (ImageStore)
upper     the writable top of one sandbox: upper/ and work/, with a limit      (Driver: btrfs, loop, plain)
snapshot  a copy of an upper at one moment                                     (Driver)
"""

from skerry.storage.driver import Driver
from skerry.storage.images import Image, ImageStore, check_image_name, image_digest
from skerry.storage.layers import LayerStore, new_snap, snap_name
from skerry.storage.pick import checks, pick_driver

__all__ = [
    "Driver",
    "Image",
    "ImageStore",
    "LayerStore",
    "check_image_name",
    "checks",
    "image_digest",
    "new_snap",
    "pick_driver",
    "snap_name",
]
