"""Download of the official ALFWorld games, for machines with internet."""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath
from urllib.parse import urlparse

log = logging.getLogger(__name__)

_BASE = "https://github.com/alfworld/alfworld/releases/download"
# what `alfworld-download` of alfworld 0.4.2 takes: trajectories, initial states, games
RELEASE = (
    f"{_BASE}/0.2.2/json_2.1.1_json.zip",
    f"{_BASE}/0.2.2/json_2.1.1_pddl.zip",
    f"{_BASE}/0.4.0/json_2.1.2_tw-pddl.zip",
)
_TIMEOUT = 60.0  # seconds without an answer
_CHUNK = 1 << 20


def download_and_unpack(url: str, folder: Path) -> tuple[int, str]:
    """Unpack the archive at `url` (http or https) below `folder`; returns its size in bytes and its sha256.

    Nothing is unpacked unless the whole archive arrived and all its paths stay inside `folder`. Raises OSError with
    advice if it cannot be reached, ValueError for an archive that is broken or reaches outside.
    """
    if urlparse(url).scheme not in ("http", "https"):
        raise ValueError(f"--url {url!r} is neither http nor https")
    folder.mkdir(parents=True, exist_ok=True)
    log.info("downloading %s", url)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".download-", suffix=".zip") as file:
        checksum, size = hashlib.sha256(), 0
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
                promised = answer.headers.get("Content-Length")
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    checksum.update(chunk)
                    size += len(chunk)
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise OSError(
                f"cannot download {url} ({reason}). On a machine without internet, download the archives elsewhere "
                "(`python -m envs.alfworld fetch --list --out .` prints them), unpack them into one folder, and give "
                "that folder as env.data"
            ) from error
        if promised is not None and size != int(promised):
            raise OSError(f"{url} broke off after {size} of {promised} bytes; try again")
        file.flush()
        _unpack(Path(file.name), url, folder)
    return size, checksum.hexdigest()


def _unpack(archive: Path, url: str, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as zipped:
            members = [m for m in zipped.infolist() if not m.is_dir()]
            for member in members:
                path = PurePosixPath(member.filename.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts:
                    raise ValueError(
                        f"{url} contains {member.filename!r}, which reaches outside the folder; not unpacked"
                    )
            for member in members:
                target = folder / member.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with zipped.open(member) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{url} is no zip archive: {error}") from error
