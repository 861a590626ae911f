"""The method-agnostic training loop and its local engine: torch and transformers in one process."""

# Raised whenever the same run would get other numbers: rollout, batches, losses, scoring, update, evaluation, order
# of random streams. Part of every run's fingerprint.
ENGINE_VERSION = 2
# Raised whenever engine=vllm would get other numbers from the same server; part of the fingerprints of its runs only.
VLLM_VERSION = 1
