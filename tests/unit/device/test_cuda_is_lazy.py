"""The device folder imports without CUDA: neither cuda-python nor a driver is needed, nor touched before it is used."""

import subprocess
import sys

PROGRAM = """
import sys
sys.path[:] = {path!r}
# The bindings of CUDA 12 load a part of themselves when Python starts.
for name in [name for name in sys.modules if name == "cuda" or name.startswith("cuda.")]:
    del sys.modules[name]
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "cuda" or name.startswith("cuda."):
            raise ModuleNotFoundError("No module named " + repr(name))
        return None
if {is_absent}:
    sys.meta_path.insert(0, Absent())
from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.device import cuda_device, cuda_driver, cuda_kernel, selection
assert not any(name == "cuda" or name.startswith("cuda.") for name in sys.modules)
if {is_absent}:
    assert "cuda" in cuda_driver.find_cuda_obstacle()
    assert selection.default_device().name == "host"
    for make in (cuda_device.CudaDevice, cuda_kernel.load_nvrtc_module):
        try:
            make()
        except CudaError as error:
            assert "install cuda-python" in str(error)
        else:
            raise AssertionError("CUDA without cuda-python")
print("fine")
"""


def run(is_absent: bool) -> None:
    program = PROGRAM.format(path=sys.path, is_absent=is_absent)
    result = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "fine", result.stderr


def test_importing_touches_no_cuda() -> None:
    run(is_absent=False)


def test_everything_but_cuda_works_without_cuda_python() -> None:
    run(is_absent=True)
