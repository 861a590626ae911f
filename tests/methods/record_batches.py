"""Writes the recorded batches of `data/` (run it only to change them): python tests/methods/record_batches.py"""

from __future__ import annotations

import numpy as np
from methods_helpers import DATA, LAYOUTS, make_arrays

SEED = 20240607
CHANNELS = ("routed", "additive")


def main() -> None:
    DATA.mkdir(exist_ok=True)
    for layout in LAYOUTS:
        for channels in CHANNELS:
            np.savez_compressed(DATA / f"{layout}_{channels}.npz", **make_arrays(SEED, layout, channels=channels))


if __name__ == "__main__":
    main()
