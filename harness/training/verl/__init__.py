"""The engine `verl`: the same methods on verl's trainer (Ray, FSDP, vLLM).

Nothing of verl, Ray or torch is imported with this package or with its modules `config`, `settings`, `sizes`, `cost`,
`planning` and `cluster`, which planning needs on machines that have none of them.
"""

# Raised whenever the same run would get other numbers from this engine; ENGINE_VERSION stands for what it shares with
# the local one. Part of the fingerprint of runs with engine=verl.
VERL_VERSION = 2
