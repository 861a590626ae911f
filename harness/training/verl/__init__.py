"""The engine `verl`: the same methods on verl's trainer (Ray, FSDP, vLLM).

Nothing of verl, Ray or torch is imported with this package or with its modules `config`, `settings`, `sizes`, `cost`,
`planning` and `cluster`, which planning needs on machines that have none of them.
"""
