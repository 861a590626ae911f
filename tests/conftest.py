"""Before anything heavy is imported: one thread, no network, and Ctrl-C as in a terminal."""

import os
import signal
import tempfile
from collections import Counter

import pytest

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
# Importing the alfworld package makes a folder: not in the home of whoever runs the tests.
os.environ.setdefault("ALFWORLD_DATA", os.path.join(tempfile.gettempdir(), "alfworld-package"))  # noqa: PTH118
# A command in the background of a shell script is started with Ctrl-C ignored, and so would be all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most slow tests first: one that is begun last keeps a process busy while all others wait."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])  # stable: a file stays together, in its order
