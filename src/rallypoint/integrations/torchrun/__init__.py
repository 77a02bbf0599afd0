"""The plug-in for torchrun: `torchrun --rdzv-backend rallypoint --rdzv-endpoint HOST:PORT`.

torch loads each entry point of its group `torchrun.handlers` when its elastic package is
imported, calls it, and registers what it returns. Nothing of torch is imported until a
handler is asked for: an import error would otherwise be a warning in every torchrun.
"""

from typing import Any


def entry_point() -> Any:
    """Return the creator that torch registers under the name of the entry point."""
    return create_handler


def create_handler(params: Any) -> Any:
    """Make a handler for torch's RendezvousParameters (see `TorchrunHandler`)."""
    from rallypoint.integrations.torchrun.handler import TorchrunHandler

    return TorchrunHandler(params)
