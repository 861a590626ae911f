"""Download of WebShop's own files, for machines with internet.

The code of WebShop is MIT-licensed; its product data were collected from a shop and carry no licence. They are
therefore never part of this project: whoever runs `fetch` downloads them, for their own use and on their own judgement.
"""

from __future__ import annotations

import http.client
import logging
import os
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

log = logging.getLogger(__name__)

_DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
_TIMEOUT = 60.0  # seconds without an answer
_CHUNK = 1 << 20
NOTICE = (
    "The product data of WebShop were collected from an online shop and come without a licence. You download them "
    "yourself, from the place its authors name; do not pass them on, and see that your use is lawful where you are."
)


@dataclass(frozen=True, slots=True)
class Source:
    """name: of the file; url: where princeton-nlp/WebShop's setup.sh gets it; full: only of the full catalogue."""

    name: str
    url: str
    full: bool = False


SOURCES = (
    Source("items_shuffle_1000.json", f"{_DRIVE}1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib"),
    Source("items_ins_v2_1000.json", f"{_DRIVE}1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu"),
    Source("items_human_ins.json", f"{_DRIVE}14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O"),
    Source("items_shuffle.json", f"{_DRIVE}1A2whVgOO0euk5O13n2iYDM0bQRkkRduB", full=True),
    Source("items_ins_v2.json", f"{_DRIVE}1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi", full=True),
)


def download(url: str, target: Path) -> int:
    """Fetch one file over http or https; returns its size in bytes. It appears whole or not at all.

    Raises OSError with advice if it cannot be reached, ValueError for another kind of address or an answer that is a
    web page where a JSON file was expected.
    """
    if urlparse(url).scheme not in ("http", "https"):
        raise ValueError(f"--url {url!r} is neither http nor https")
    target.parent.mkdir(parents=True, exist_ok=True)
    log.info("downloading %s from %s", target.name, url)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    size, first = 0, b""
    try:
        with os.fdopen(descriptor, "wb") as file, urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            promised = answer.headers.get("Content-Length")
            while chunk := answer.read(_CHUNK):
                first = first or chunk[:64]
                file.write(chunk)
                size += len(chunk)
        if promised is not None and size != int(promised):
            raise OSError(f"{url} broke off after {size} of {promised} bytes; try again")
        if first.lstrip()[:1] not in (b"[", b"{"):
            raise ValueError(
                f"{url} answered with something that is no JSON file (it begins {first[:40]!r}); large files may "
                f"need a confirmation in a browser: download it there and put it at {target}"
            )
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise OSError(
            f"cannot download {url} ({getattr(error, 'reason', error)}). On a machine without internet, download the "
            "files elsewhere (`python -m envs.webshop fetch --list` prints them), put them into one folder, and give "
            "that folder as env.data"
        ) from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    return size
