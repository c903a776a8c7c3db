"""The demo as files: what is in it, and that a folder gets all of it or nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from demo_serving import FAKE_RUNTIME

from purecaps.cli import main
from purecaps.demo import site as building
from purecaps.demo.runtime import VERSION
from purecaps.demo.site import NETWORKS, build, make_manifest
from purecaps.errors import ConfigError
from purecaps.models.store import load_model, pretrained_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder).as_posix()): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everything_that_the_manifest_and_the_page_name_is_there(site):
    manifest = json.loads(site["manifest.json"])
    named = set(manifest["runtime"].values())
    for network in manifest["networks"]:
        named |= {network["direction"], network["weights"]}
        named |= {variant[key] for variant in network["variants"] for key in ("reading", "weights")}
    page = site["index.html"].decode()
    named |= set(re.findall(r'(?:href|src)="([^"]+)"', page))
    for name in [name for name in site if name.endswith(".js")]:
        named |= {path.removeprefix("./") for path in re.findall(r'from "([^"]+)"', site[name].decode())}
    assert named <= site.keys()
    assert "//" not in page  # nothing is loaded from elsewhere
    assert f"onnxruntime-web {VERSION}," in site["onnxruntime-license.txt"].decode()


def test_the_manifest_says_what_the_packaged_networks_are():
    networks = make_manifest()["networks"]
    assert [network["name"] for network in networks] == list(NETWORKS)
    for network in networks:
        record = load_model(pretrained_path(network["name"]))[1].record
        assert network["parameters"] == record["parameters"]
        in_float, in_bytes = network["variants"]
        assert (in_float["precision"], in_float["bytes"]) == ("float32", 4 * record["parameters"])
        assert in_float["test_error"] == record["test_error"]
        assert in_bytes["precision"] == "int8"
        assert record["parameters"] < in_bytes["bytes"] < in_float["bytes"] / 2


@pytest.mark.parametrize("there", [False, True])
def test_a_new_or_empty_folder_gets_every_file(site, tmp_path, there):
    folder = tmp_path / "deep" / "site"
    if there:
        folder.mkdir(parents=True)
    build(site, folder)
    assert contents(folder) == site
    assert folder.stat().st_mode & 0o500 == 0o500
    assert [path.name for path in folder.parent.iterdir()] == ["site"]


def test_what_is_there_is_not_overwritten(site, tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match=rf"--build: expected a new or empty folder, got {re.escape(str(tmp_path))}"):
        build(site, tmp_path)
    with pytest.raises(ConfigError, match=r"letter\.txt, which is there already"):
        build(site, tmp_path / "letter.txt")
    assert contents(tmp_path) == {"letter.txt": b"mine"}


def test_a_fault_half_way_leaves_nothing(site, tmp_path, monkeypatch):
    written = []
    write = Path.write_bytes

    def fail_at_the_fifth(path: Path, data: bytes) -> int:
        written.append(path)
        if len(written) == 5:
            raise OSError(28, "No space left on device", str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", fail_at_the_fifth)
    with pytest.raises(OSError, match="No space left on device"):
        build(site, tmp_path / "site")
    assert list(tmp_path.iterdir()) == []


def test_a_full_folder_is_refused_before_anything_is_fetched(tmp_path, monkeypatch):
    def forbidden(root):
        raise AssertionError("expected the folder to be refused first")

    monkeypatch.setattr(sys.modules["purecaps.cli.demo"], "load_runtime", forbidden)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--build", str(tmp_path)])
    assert stop.value.code == 1


def test_the_command_builds_a_folder(site, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["purecaps.cli.demo"], "load_runtime", lambda root: FAKE_RUNTIME)
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--build", str(tmp_path / "site")])
    assert stop.value.code == 0
    assert contents(tmp_path / "site") == site
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'site'}: {len(site)} files, ")
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--build", str(tmp_path / "site")])
    assert stop.value.code == 1
    assert capsys.readouterr().err == (
        f"purecaps: error: --build: expected a new or empty folder, got {tmp_path / 'site'}, which is there already\n"
    )


def test_the_packaged_folders_hold_nothing_else():
    package = Path(building.__file__).parent
    graphs = {f"{name}{kind}.onnx" for name in NETWORKS for kind in ("", "-direction", "-int8")}
    assert {path.name for path in (package / "networks").iterdir()} == graphs
