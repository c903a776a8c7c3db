"""Kernels in CUDA C++, compiled when they are first needed: a whole small network in one."""
