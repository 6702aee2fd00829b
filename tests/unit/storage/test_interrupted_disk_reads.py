"""The device tells each failed read once: interrupted before it is recorded, the manager must not go on as if all were well."""

from collections.abc import Sequence

import pytest
from forwarding_device import ForwardingDevice
from tiered_models import Bench, tiered_config

from kv_cache_manager_v2 import CorruptedError, StorageIOError



class InterruptedDevice(ForwardingDevice):
    is_interrupted = False

    def take_failed_reads(self) -> Sequence[StorageIOError]:
        if self.is_interrupted:
            raise KeyboardInterrupt
        return super().take_failed_reads()


def test_a_manager_that_may_have_missed_a_failure_is_broken() -> None:
    device = InterruptedDevice()
    bench = Bench(tiered_config(8, [("disk", 12)]), device)
    first = bench.suspended(1, 24)
    second = bench.suspended(2, 24)  # drives pages of the first to the disk
    second.close()
    assert first.resume(wait=False)
    device.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        while not first.ready:
            device.synchronize_stream(first.cuda_stream)
        first.resize(25)
    device.is_interrupted = False
    with pytest.raises(CorruptedError, match="interrupted"):
        bench.manager.probe_reuse(None, [1, 2, 3])
