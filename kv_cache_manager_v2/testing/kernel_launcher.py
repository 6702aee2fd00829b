"""How the fake engine gets a batch's kernels onto a device: one implementation per way of running them."""

from abc import ABCMeta, abstractmethod

from mypy_extensions import mypyc_attr

from .layer_work import LayerWork


@mypyc_attr(native_class=True)
class BatchLaunch(metaclass=ABCMeta):
    """One batch on its way: layers are launched one by one, so that batches of several streams can take turns."""

    __slots__ = ()

    @abstractmethod
    def launch_layer(self, layer_index: int) -> None:
        """Enqueue that layer's work."""

    @abstractmethod
    def finish(self) -> None:
        """All layers are enqueued."""


@mypyc_attr(native_class=True)
class KernelLauncher(metaclass=ABCMeta):
    """Runs layers' work on one device, and puts wrong bytes into the engine's log."""

    __slots__ = ()

    @abstractmethod
    def prepare(self, stream: int, layers: list[LayerWork]) -> BatchLaunch:
        """Bring to the device what the batch's kernels need."""

    @abstractmethod
    def collect(self) -> None:
        """Put into the log what finished batches found, without waiting for others."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the launcher keeps on the device. Its work is done."""
