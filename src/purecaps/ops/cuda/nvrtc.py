"""CUDA C++ compiled at run time by NVRTC, which comes with torch, and launched by the driver: both by their C calls."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from purecaps.errors import PurecapsError

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_OPTIONS = ("--std=c++17", "--device-as-default-execution-space")


class CudaError(PurecapsError):
    """NVRTC or the driver refused something."""


class Kernel:
    """A function of a compiled program, ready to be launched on the device that was current.

    Args:
        program: machine code, as `compile_program` gives it.
        name: of the function, declared extern "C".
        shared: bytes of shared memory that a block is given.
        threads: in a block.
    """

    def __init__(self, program: bytes, name: str, *, shared: int, threads: int) -> None:
        self._shared, self._threads = shared, threads
        self._context, self._module, self._function = (ctypes.c_void_p() for _ in range(3))
        driver = _driver()
        _check(driver.cuCtxGetCurrent(ctypes.byref(self._context)))
        _check(driver.cuModuleLoadData(ctypes.byref(self._module), program))
        _check(driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode()))
        _check(driver.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, shared))

    def __call__(self, blocks: int, *arguments: Tensor | int | float) -> None:
        """Launches it on torch's current stream; whole numbers are 32 bits wide, others float32."""
        values = [_as_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        # A thread that has asked torch for nothing yet has no context.
        _check(_driver().cuCtxSetCurrent(self._context))
        _check(
            _driver().cuLaunchKernel(
                self._function, blocks, 1, 1, self._threads, 1, 1, self._shared, stream, pointers, None
            )
        )


def missing() -> str | None:
    """What this machine lacks; None where programs can be compiled."""
    try:
        _nvrtc()
    except CudaError as error:
        return str(error)
    return None


def source_text(*names: str) -> str:
    """Texts of this folder, one after the other."""
    return "\n".join((resources.files(__package__) / name).read_text(encoding="utf-8") for name in names)


def compile_program(source: str, architecture: str) -> bytes:
    """Machine code for an architecture such as "sm_90".

    Raises:
        CudaError: with the compiler's log.
    """
    return _compile(source, (f"--gpu-architecture={architecture}", *_OPTIONS))


@functools.lru_cache(maxsize=32)
def _compile(source: str, options: Sequence[str]) -> bytes:
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"purecaps.cu", 0, None, None):
        raise CudaError("NVRTC could not begin a program")
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), given):
            raise CudaError(f"NVRTC could not compile a kernel:\n{_text(nvrtc, program)}")
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """NVRTC of the CUDA that torch was built with: its own, or the system's."""
    if torch.version.cuda is None:
        raise CudaError("torch is built without CUDA")
    if not sys.platform.startswith("linux"):
        raise CudaError(f"platform {sys.platform}, only Linux is covered")
    name = f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    packages = Path(torch.__file__).parents[1] / "nvidia"
    for path in (name, *map(str, sorted(packages.glob(f"*/lib/{name}")))):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CudaError(f"{name} is not found")


def driver_version() -> int:
    """The newest CUDA that the driver knows, 12040 for 12.4; 0 without a driver."""
    version = ctypes.c_int()
    try:
        _check(_driver().cuDriverGetVersion(ctypes.byref(version)))
    except (CudaError, OSError):
        return 0
    return version.value


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int) -> None:
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        raise CudaError(f"CUDA: {(text.value or b'unknown error').decode()} ({result})")


def _as_c(argument: Tensor | int | float) -> ctypes.c_void_p | ctypes.c_int32 | ctypes.c_float:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int32(argument) if isinstance(argument, int) else ctypes.c_float(argument)
