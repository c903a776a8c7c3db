"""Tensor files: written whole, checked when read, never a pickle."""

import pickle

import pytest
import torch

from purecaps.errors import CheckpointError
from purecaps.tensorfile import read_tensors, write_tensors

TENSORS = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(3, dtype=torch.int64)}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "new" / "state.safetensors"
    write_tensors(path, "checkpoint", TENSORS, {"step": 7, "names": ["x", "y"]})
    return path


def test_what_was_written_is_read_back(file):
    tensors, meta = read_tensors(file, "checkpoint")
    assert meta == {"step": 7, "names": ["x", "y"]}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_files_of_every_header_length_are_read_back(tmp_path):
    for padding in range(0, 256, 3):
        write_tensors(tmp_path / "f.safetensors", "model", {"a": torch.zeros(2)}, {"padding": "x" * padding})
        assert read_tensors(tmp_path / "f.safetensors", "model")[1]["padding"] == "x" * padding


def test_a_flipped_bit_is_noticed(file):
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state\.safetensors: corrupt: .* digest"):
        read_tensors(file, "checkpoint")


@pytest.mark.parametrize("size", [0, 5, 60, -1])
def test_a_truncated_file_is_noticed(file, size):
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"state\.safetensors: .* corrupt"):
        read_tensors(file, "checkpoint")


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize(
    "write", [lambda path: torch.save(Evil(), path), lambda path: path.write_bytes(pickle.dumps(Evil()))]
)
def test_a_pickle_in_disguise_is_refused(file, write):
    write(file)
    with pytest.raises(CheckpointError, match=r"state\.safetensors: refused: this is a pickle"):
        read_tensors(file, "checkpoint")


def test_a_file_of_another_kind_is_refused(file):
    with pytest.raises(CheckpointError, match="expected a model file, got a checkpoint file"):
        read_tensors(file, "model")


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(CheckpointError, match="expected a file written by purecaps"):
        read_tensors(tmp_path / "foreign.safetensors", "model")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.safetensors: expected a model file, found no such file"):
        read_tensors(tmp_path / "none.safetensors", "model")


def test_a_full_disk_leaves_the_old_file(file, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    before = file.read_bytes()
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_tensors(file, "checkpoint", {"a": torch.zeros(3)}, {})
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["state.safetensors"]
