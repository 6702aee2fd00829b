"""`default_device`: CUDA where it can be used, the host otherwise, and what the user asks for or an error."""

import logging
from pathlib import Path

import pytest

from kv_cache_manager_v2.base.errors import CudaError
from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle
from kv_cache_manager_v2.device.selection import VISIBLE_DEVICES_VARIABLE, find_gpu_absence
from kv_cache_manager_v2.device.selection import DEVICE_VARIABLE, default_device

from .fake_cuda_driver import FakeCudaDriver
from .fake_cuda_types import CUresult


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    monkeypatch.delenv(VISIBLE_DEVICES_VARIABLE, raising=False)


def chosen_name(driver: FakeCudaDriver) -> str:
    device = default_device(driver)
    name = device.name
    device.close()
    return name


def test_a_usable_driver_is_taken_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeCudaDriver()
    with caplog.at_level(logging.INFO):
        assert chosen_name(driver) == "cuda:0 Fake"
    assert "cuda:0 Fake" in caplog.text
    assert driver.live() == {}


def test_without_a_gpu_it_is_the_host_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert chosen_name(FakeCudaDriver(num_devices=0)) == "host"
    assert "host" in caplog.text and "no GPU" in caplog.text


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_driver_that_does_not_start_is_no_usable_driver(caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that is there and not used costs the user its memory and bandwidth: a warning, with the way out."""
    driver = FakeCudaDriver()
    driver.fail_call(1, CUresult.CUDA_ERROR_UNKNOWN)
    assert "cuInit" in find_cuda_obstacle(driver)
    driver.fail_call(1, CUresult.CUDA_ERROR_UNKNOWN)
    assert chosen_name(driver) == "host"
    (warning,) = warnings(caplog)
    assert "cuInit" in warning and f"{DEVICE_VARIABLE}=host" in warning


@pytest.mark.parametrize("fails_in_init", [False, True])
def test_a_driver_that_sees_no_gpu_is_no_reason_to_warn(fails_in_init: bool, caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeCudaDriver(num_devices=0)
    if fails_in_init:
        driver.fail_call(1, CUresult.CUDA_ERROR_NO_DEVICE)
    assert chosen_name(driver) == "host"
    assert warnings(caplog) == []


@pytest.mark.parametrize("choice", ["", "cuda"])
def test_the_first_of_several_gpus_taken_unasked_is_a_warning(
    choice: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, choice)
    assert chosen_name(FakeCudaDriver(num_devices=8)) == "cuda:0 Fake"
    (warning,) = warnings(caplog)
    assert "cuda:0" in warning and "8 GPUs" in warning and f"{DEVICE_VARIABLE}=cuda:N" in warning
    caplog.clear()
    # Named, current, or the only one: nothing to warn of.
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda:0")
    assert chosen_name(FakeCudaDriver(num_devices=8)) == "cuda:0 Fake"
    monkeypatch.setenv(DEVICE_VARIABLE, choice)
    assert chosen_name(FakeCudaDriver(num_devices=1)) == "cuda:0 Fake"
    driver = FakeCudaDriver(num_devices=8)
    driver.is_initialised = True
    driver.retained[0x77] = 1
    driver.context_stack.append(0x77)
    assert chosen_name(driver) == "cuda:0 Fake"
    assert warnings(caplog) == []


def test_where_there_is_no_gpu_the_driver_is_not_initialised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that called `cuInit` cannot use CUDA in children that it forks; one without a GPU stays free to fork."""
    driver = FakeCudaDriver()
    for name in ("null", "nvidia-caps", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    device = default_device(driver, gpu_folder=str(tmp_path))
    assert device.name == "host" and driver.calls == []
    device.close()
    assert "nvidia0" in find_gpu_absence(str(tmp_path)) and warnings(caplog) == []
    (tmp_path / "nvidia3").touch()
    assert find_gpu_absence(str(tmp_path)) == ""
    device = default_device(driver, gpu_folder=str(tmp_path))
    assert device.name == "cuda:0 Fake"
    device.close()
    for hidden in ("", " ", "-1", "-1,0"):
        monkeypatch.setenv(VISIBLE_DEVICES_VARIABLE, hidden)
        driver = FakeCudaDriver()
        device = default_device(driver, gpu_folder=str(tmp_path))
        assert device.name == "host" and driver.calls == []
        device.close()
    # Who asks for a GPU by name gets the driver's own answer.
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda")
    device = default_device(driver, gpu_folder=str(tmp_path))
    assert device.name == "cuda:0 Fake"
    device.close()


def test_where_such_files_are_unknown_the_driver_is_asked() -> None:
    assert find_gpu_absence("/no such folder") == ""


@pytest.mark.parametrize("choice", ["host", " HOST "])
def test_the_host_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, choice)
    driver = FakeCudaDriver()
    assert chosen_name(driver) == "host"
    assert driver.calls == []


@pytest.mark.parametrize(("choice", "ordinal"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2), ("", 0)])
def test_a_gpu_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, choice: str, ordinal: int) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, choice)
    assert chosen_name(FakeCudaDriver(num_devices=3)) == f"cuda:{ordinal} Fake"


def test_the_threads_current_gpu_is_taken_when_none_is_named() -> None:
    driver = FakeCudaDriver(num_devices=3)
    driver.is_initialised = True
    # As an engine leaves it that serves GPU 1.
    driver.retained[0x77 + 1] = 1
    driver.context_stack.append(0x77 + 1)
    assert chosen_name(driver) == "cuda:1 Fake"
    assert driver.live() == {"contexts": 1, "current contexts": 1}


def test_asking_for_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda")
    with pytest.raises(CudaError):
        default_device(FakeCudaDriver(num_devices=0))
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda:3")
    with pytest.raises(ValueError):
        default_device(FakeCudaDriver(num_devices=3))


@pytest.mark.parametrize("choice", ["gpu", "cuda:", "cuda:-1", "cuda:one", "cuda:1.0", "cuda0", "tpu:0", "cuda:²"])
def test_other_values_are_refused_and_the_choices_named(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, choice)
    with pytest.raises(ValueError) as caught:
        default_device(FakeCudaDriver())
    for part in (DEVICE_VARIABLE, "host", "cuda", "cuda:N"):
        assert part in str(caught.value)
