"""What a kernel is compiled for: every compiler beside every GPU."""

import random

import pytest

from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.device.cuda_kernel import CudaCompiler

from .fake_nvrtc import FakeNvrtc

CAPABILITIES = (50, 52, 60, 61, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)


def architecture(known: tuple[int, ...], capability: int) -> str:
    nvrtc = FakeNvrtc(capabilities=known)
    image = CudaCompiler(nvrtc, capability).compile("code", [])
    (option,) = nvrtc.options
    name = option.decode().removeprefix("--gpu-architecture=")
    assert image == (b"cubin:code" if name.startswith("sm_") else b"ptx:code")
    assert nvrtc.num_live == 0
    return name


def test_a_gpu_between_two_that_the_compiler_knows() -> None:
    """A compiler of CUDA 12.8 knows 10.0 and 12.0, not 10.3; nothing made for 12.0 runs on 10.3."""
    known = (75, 80, 86, 87, 89, 90, 100, 101, 120)
    assert architecture(known, 103) == "compute_101"
    assert architecture(known, 121) == "compute_120"
    assert architecture(known, 88) == "compute_87"
    assert architecture(known, 90) == "sm_90"


@pytest.mark.parametrize("seed", range(20))
def test_the_target_is_the_highest_that_the_compiler_knows_and_the_gpu_has(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(100):
        known = tuple(generator.sample(CAPABILITIES, generator.randint(1, len(CAPABILITIES))))
        capability = generator.choice(CAPABILITIES)
        # By brute force, from the GPU's own downwards.
        expected = capability
        while expected > 0 and expected not in known:
            expected -= 1
        if expected == 0:
            with pytest.raises(CudaError) as caught:
                architecture(known, capability)
            assert str(capability) in str(caught.value) and "nvidia-cuda-nvrtc" in str(caught.value)
        elif expected == capability:
            assert architecture(known, capability) == f"sm_{expected}"
        else:
            assert architecture(known, capability) == f"compute_{expected}"
