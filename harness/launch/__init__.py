"""Launchers: they start `harness.worker` on run directories and see each one through to a state."""
