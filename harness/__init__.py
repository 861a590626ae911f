"""Benchmark harness for agentic reinforcement learning."""
