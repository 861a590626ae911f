"""The method-agnostic training loop and its local engine: torch and transformers in one process."""
