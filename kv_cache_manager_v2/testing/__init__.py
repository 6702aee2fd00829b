"""Test tools for engines: `FakeEngine`, `SimulatedDevice`, and their devices and errors."""

from ..base.class_signature import give_signatures
from .fake_engine import FakeEngine as FakeEngine
from .kv_mismatch import KVMismatch as KVMismatch
from .race_error import RaceError as RaceError
from .simulated_device import SimulatedDevice as SimulatedDevice
from .step_batch import Step as Step

give_signatures([*globals().values()])
