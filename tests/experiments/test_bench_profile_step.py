"""benchmarks/profile_step.py: kernels of a step, by how long they run and how long nothing runs beside them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("profile_step", FOLDER / "profile_step.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["profile_step"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


def test_a_step_lasts_from_one_tally_to_the_next_and_its_kernels_are_numbered(script):
    def launch(name, start, stream=7):
        return script.Launch(name, start, 1.0, stream)

    part = [launch("adam", 0), launch("tally_kernel", 2)]
    whole = [launch("forward", 5), launch("forward", 7), launch("copy", 6, 8), launch("tally_kernel", 9)]
    begun = [launch("forward", 12)]
    (step,) = script.steps_of([*begun, *whole, *part])
    assert [(each.name, each.start) for each in step] == [
        ("forward 1", 2.0), ("copy", 3.0), ("forward 2", 4.0), ("tally_kernel", 6.0)
    ]  # fmt: skip


def test_time_alone_is_what_nothing_else_ran_beside(script):
    one, other = script.Launch("one", 0.0, 10.0, 7), script.Launch("other", 4.0, 3.0, 8)
    assert script.alone([one, other]) == {"one": 7.0, "other": 0.0}
    assert script.alone([one, script.Launch("after", 12.0, 2.0, 7)]) == {"one": 10.0, "after": 2.0}


def test_the_table_has_medians_over_steps_the_longest_first(script):
    steps = [[script.Launch("a", 0.0, us, 7), script.Launch("b", 100.0, 5.0, 7)] for us in (1.0, 2.0, 30.0)]
    assert script.table(steps) == [
        {"kernel": "b", "us": 5.0, "alone_us": 5.0}, {"kernel": "a", "us": 2.0, "alone_us": 2.0}
    ]  # fmt: skip


def test_kernels_of_torch_are_named_by_what_they_do(script, tmp_path):
    path = tmp_path / "trace.json"
    copy = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
    events = [
        {"cat": "kernel", "name": copy, "ts": 1.0, "dur": 2.0, "args": {"stream": 3}},
        {"cat": "kernel", "name": "forward_kernel", "ts": 4.0, "dur": 2.0, "args": {"stream": 7}},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 5.0, "dur": 1.0},
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    assert [(each.name, each.stream) for each in script.launches_in(path)] == [
        ("torch: direct_copy", 3),
        ("forward_kernel", 7),
    ]
