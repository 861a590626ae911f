"""The harness in any Hydra application: hydra/sweeper=harness, hydra/launcher=harness_local | harness_slurm.

Hydra imports every module of this package whenever any of its applications starts, so that nothing is imported here but
what Hydra itself has loaded; the work is in harness.hydra_jobs. It executes modules before they are in sys.modules, so
that dataclasses here must do without `from __future__ import annotations`.
"""
