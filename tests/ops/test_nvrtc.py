"""Compiling and launching CUDA C++: what is said to NVRTC and to the driver, by stand-ins for both."""

import ctypes
import shutil
import subprocess
import threading

import pytest
import torch

from purecaps.ops.cuda import nvrtc
from purecaps.ops.cuda.nvrtc import CudaError, Kernel, compile_program

# Writes down what it is asked, and refuses what is called "bad".
STAND_IN = r"""
#include <cstdio>
#include <cstring>
#include <string>
static std::string told, options;
static bool bad;
static void tell(const std::string& text) { told += text + ";"; }
extern "C" {
const char* all_told() { return told.c_str(); }
void forget() { told.clear(); }
int nvrtcCreateProgram(void** program, const char* source, const char*, int, void*, void*) {
    bad = !std::strcmp(source, "bad");
    *program = (void*)7;
    return 0;
}
int nvrtcCompileProgram(void* program, int count, const char** given) {
    std::string text = program == (void*)7 ? "compile" : "compile another";
    for (int i = 0; i < count; i++) text += std::string(" ") + given[i];
    tell(text);
    return bad ? 6 : 0;
}
int nvrtcGetCUBINSize(void*, size_t* size) { *size = 5; return 0; }
int nvrtcGetCUBIN(void*, char* code) { std::memcpy(code, "a\0b\0c", 5); return 0; }
int nvrtcGetProgramLogSize(void*, size_t* size) { *size = 14; return 0; }
int nvrtcGetProgramLog(void*, char* log) { std::strcpy(log, "line 1: wrong"); return 0; }
int nvrtcDestroyProgram(void**) { tell("destroy"); return 0; }
int cuDriverGetVersion(int* version) { *version = 12040; return 0; }
int cuCtxGetCurrent(void** context) { *context = (void*)11; return 0; }
int cuCtxSetCurrent(void* context) { tell(context == (void*)11 ? "context" : "another context"); return 0; }
int cuModuleLoadData(void** module, const char* code) { *module = (void*)12; tell(std::string("load ") + code); return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = (void*)13;
    tell(std::string("function ") + name);
    return std::strcmp(name, "bad") ? 0 : 500;
}
int cuFuncSetAttribute(void*, int which, int value) {
    tell("attribute " + std::to_string(which) + " " + std::to_string(value));
    return 0;
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared,
                   void* stream, void** given, void** extra) {
    char text[200];
    std::snprintf(text, sizeof text, "launch %d %u %u %u %u %u %u %u %d, %d %d %g", function == (void*)13, x, y, z, a, b, c,
                  shared, stream == (void*)99, **(int**)given[0], *(int*)given[1], *(float*)given[2]);
    tell(text);
    return extra ? 1 : 0;
}
int cuGetErrorString(int, const char** text) { *text = "named symbol not found"; return 0; }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = tmp_path_factory.mktemp("stand-in") / "cuda.cpp"
    path.write_text(STAND_IN)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path.with_suffix(".so"), path], check=True)
    made = ctypes.CDLL(str(path.with_suffix(".so")))
    made.all_told.restype = ctypes.c_char_p
    return made


@pytest.fixture
def told(library, monkeypatch):
    class Stream:
        cuda_stream = 99

    monkeypatch.setattr(nvrtc, "_nvrtc", lambda: library)
    monkeypatch.setattr(nvrtc, "_driver", lambda: library)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    nvrtc._compile.cache_clear()
    library.forget()
    yield lambda: library.all_told().decode().split(";")[:-1]
    nvrtc._compile.cache_clear()


def test_a_program_is_compiled_once_for_an_architecture_with_all_its_bytes(told):
    assert compile_program("good", "sm_90") == b"a\0b\0c"
    assert compile_program("good", "sm_90") == b"a\0b\0c"
    assert told() == ["compile --gpu-architecture=sm_90 --std=c++17 --device-as-default-execution-space", "destroy"]


def test_what_the_compiler_refuses_is_told_with_its_log(told):
    with pytest.raises(CudaError, match="NVRTC could not compile a kernel:\nline 1: wrong"):
        compile_program("bad", "sm_90")
    assert told()[-1] == "destroy"


@pytest.mark.parametrize("from_another_thread", [False, True])
def test_a_launch_names_context_grid_memory_stream_and_arguments(told, from_another_thread):
    kernel = Kernel(b"code", "network", shared=1000, threads=64)
    numbers = torch.tensor([5], dtype=torch.int32)

    def launch():
        kernel(3, numbers, 8, 0.25)

    if from_another_thread:
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
    else:
        launch()
    assert told() == [
        "load code", "function network", "attribute 8 1000", "context", "launch 1 3 1 1 64 1 1 1000 1, 5 8 0.25"
    ]  # fmt: skip


def test_what_the_driver_refuses_is_an_error_with_its_words(told):
    with pytest.raises(CudaError, match=r"CUDA: named symbol not found \(500\)"):
        Kernel(b"code", "bad", shared=0, threads=32)


def test_a_machine_without_a_driver_has_version_zero(told, monkeypatch):
    assert nvrtc.driver_version() == 12040
    monkeypatch.setattr(nvrtc, "_driver", lambda: ctypes.CDLL("a library that is not there"))
    assert nvrtc.driver_version() == 0


def test_a_build_without_cuda_says_so(monkeypatch):
    nvrtc._nvrtc.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert nvrtc.missing() == "torch is built without CUDA"
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    assert nvrtc.missing() == "libnvrtc.so.99 is not found"
