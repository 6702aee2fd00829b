"""Test tools for engines: `FakeEngine`, `SimulatedDevice`, their devices and errors, and a reader of published events."""

from ..base.class_signature import give_signatures
from .fake_engine import FakeEngine as FakeEngine
from .kv_mismatch import KVMismatch as KVMismatch
from .race_error import RaceError as RaceError
from .simulated_device import SimulatedDevice as SimulatedDevice
from .step_batch import Step as Step
from .wire_reader import WireBatch as WireBatch
from .wire_reader import read_batch as read_batch

give_signatures([*globals().values()])
