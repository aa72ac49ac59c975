from __future__ import annotations

import pytest
import torch

from lmlab.core.devices import cpu_threads, find_device, find_precision
from lmlab.core.errors import UserError

CPU = torch.device("cpu")
HAS_CUDA = torch.cuda.is_available()
HAS_MPS = torch.backends.mps.is_available()


def test_cpu_is_found_by_name():
    assert find_device("cpu") == CPU
    assert find_device(None) == find_device("auto")


@pytest.mark.skipif(HAS_CUDA, reason="there is a CUDA device")
def test_auto_is_the_cpu_without_a_gpu():
    assert find_device("auto") == CPU


@pytest.mark.skipif(HAS_CUDA, reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_cuda_is_refused_where_there_is_none(name):
    with pytest.raises(UserError, match=f"no CUDA device here for {name}; use --device cpu"):
        find_device(name)


@pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device")
def test_cuda_devices_are_found_by_number():
    assert find_device("auto").type == "cuda"
    assert find_device("cuda:0") == torch.device("cuda", 0)
    count = torch.cuda.device_count()
    with pytest.raises(UserError, match=f"there is no device cuda:{count}"):
        find_device(f"cuda:{count}")


@pytest.mark.skipif(HAS_MPS, reason="there is an MPS device")
def test_mps_is_refused_where_there_is_none():
    with pytest.raises(UserError, match="no MPS device here; use --device cpu"):
        find_device("mps")


@pytest.mark.skipif(not HAS_MPS, reason="there is no MPS device")
def test_mps_is_found_but_not_automatic():
    assert find_device("mps").type == "mps"
    assert find_device("auto").type != "mps"


@pytest.mark.parametrize("name", ["gpu", "", "xpu:1", "cuda:x", "cuda:-1", "cpu:0", "CPU"])
def test_wrong_names_are_refused(name):
    with pytest.raises(UserError, match=r"there is no device called|a device must be auto, cpu"):
        find_device(name)


def test_precisions():
    assert find_precision(None, CPU) == torch.float32
    assert find_precision("bfloat16", CPU) == torch.bfloat16
    assert find_precision("float16", torch.device("cuda")) == torch.float16
    with pytest.raises(UserError, match="float16 needs a GPU, and the device is cpu"):
        find_precision("float16", CPU)
    with pytest.raises(UserError, match="no precision called 'float8'"):
        find_precision("float8", CPU)


def test_threads_are_restored():
    before = torch.get_num_threads()
    with cpu_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(UserError, match="threads must be at least 1, got 0"), cpu_threads(0):
        pass
