"""Launchers: how the fake engine runs a batch's kernels on a kind of device."""

from abc import ABCMeta, abstractmethod


from .layer_work import LayerWork


class BatchLaunch(metaclass=ABCMeta):
    """One batch in launch: layers are launched one by one, so that batches of several streams can interleave."""

    __slots__ = ()

    @abstractmethod
    def launch_layer(self, layer_index: int) -> None:
        """Enqueue that layer's work."""

    @abstractmethod
    def finish(self) -> None:
        """Called when all layers are enqueued."""


class KernelLauncher(metaclass=ABCMeta):
    """Runs layers' work on one device, and puts wrong bytes into the engine's log."""

    __slots__ = ()

    @abstractmethod
    def prepare(self, stream: int, layers: list[LayerWork]) -> BatchLaunch:
        """Copy to the device what the batch's kernels need."""

    @abstractmethod
    def collect(self) -> None:
        """Log the findings of finished batches, without waiting for others."""

    @abstractmethod
    def close(self) -> None:
        """Free the launcher's memory on the device. Its work is done."""
