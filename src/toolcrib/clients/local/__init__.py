"""The embedded model: small, in this process, without a key or a network."""

from toolcrib.clients.local.client import LocalClient
from toolcrib.clients.local.model import NEEDLE, Step, install, is_installed, model_path

__all__ = ["NEEDLE", "LocalClient", "Step", "install", "is_installed", "model_path"]
