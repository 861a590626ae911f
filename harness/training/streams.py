"""Random streams addressed by what they are for, not by when they are drawn.

A stream's key is (run seed, purpose, ...): the same key gives the same numbers whatever was drawn before, in whichever
batch, process or attempt. No generator has to be saved: resuming at step n needs the number n only.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

Key = tuple[int | str, ...]


def stream(*key: int | str) -> np.random.Generator:
    """The generator of `key`: Philox4x64 (Salmon et al. 2011) under 128 bits of SHA-256 over the JSON of the key."""
    digest = hashlib.sha256(json.dumps(key, ensure_ascii=True).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def derived_seed(*key: int | str) -> int:
    """A seed in [0, 2**63) for libraries that want an integer, e.g. torch.manual_seed."""
    return int(stream(*key).integers(0, 2**63))
