"""The method-agnostic training loop and its local engine: torch and transformers in one process."""

# Raised whenever the same run would get other numbers: rollout, batches, losses, scoring, update, evaluation, order
# of random streams. Part of every run's fingerprint.
ENGINE_VERSION = 2
