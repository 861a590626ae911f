"""What to say where the project is called by a Python that lacks what it needs."""

from __future__ import annotations

# Modules of the dependencies in pyproject.toml that no extra brings, and of what Hydra brings; a test compares.
MODULES = frozenset(
    {"hydra", "httpx", "matplotlib", "mlflow", "numpy", "omegaconf", "optuna", "pandas", "psutil", "pyarrow", "rich"}
    | {"scipy", "seaborn", "submitit", "yaml", "zstandard"}
)


def advice(error: ModuleNotFoundError) -> str | None:
    """One sentence for a missing module that every installation has; None for any other module."""
    name = (error.name or "").partition(".")[0]
    if name not in MODULES:
        return None
    return (
        f"this Python has no module {name}, which the project needs: run `make install`, then call it as "
        "`.venv/bin/python -m ...`, or activate the environment first (`source .venv/bin/activate`)"
    )
