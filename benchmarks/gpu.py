"""What the local engine does on this machine's GPU: `python benchmarks/gpu.py [--size 0.5b|tiny] [--seconds 480]`.

Makes a random Qwen2-architecture model of half a billion parameters (no download), then measures, each for a share of
the time: rollout (prefill, then decoding with a key-value cache), scoring, and training steps (forward, backward,
AdamW), in bfloat16 and float32. Prints tokens per second, peak memory, and the fraction of the device's peak that the
multiply-adds of the model come to: the figure that docs/paper_scale.md assumes as `efficiency`. Within ten minutes.

On a machine without a GPU it says so, and runs the same code with a tiny model on the CPU: a smoke test whose figures
say nothing about GPUs. Exit status 0 if everything ran.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":  # from a checkout, without being installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.training.forward import marked_logprobs
from harness.training.network import Network

# Dense bfloat16 multiply-adds x 2 per second, from the makers' data sheets; float32 with TF32 is half of it at most.
PEAKS = {"H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12, "4090": 165e12}
SHARE = {"rollout": 0.35, "scoring": 0.15, "training": 0.5}


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the model and of its batches. prompt, response: tokens; rows: sequences at a time."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    prompt: int
    response: int
    rows: int
    train_rows: int


SIZES = {
    # Widths of Qwen2.5-0.5B (its config.json), on ALFWorld's usual lengths.
    "0.5b": Size(896, 24, 14, 2, 4864, 151_936, prompt=1024, response=128, rows=64, train_rows=8),
    "tiny": Size(64, 2, 4, 2, 128, 512, prompt=48, response=8, rows=4, train_rows=4),
}


def make_network(size: Size, dtype: torch.dtype, device: str) -> Network:
    """A random model on the device; attention is torch's scaled dot product."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    with torch.device(device):
        return Network(Qwen2ForCausalLM(config).to(dtype), device)


class Clock:
    """Runs something again and again for so many seconds, once before without counting."""

    def __init__(self, device: str, seconds: float) -> None:
        self.device, self.seconds = device, seconds

    def wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def per_call(self, work: Callable[[], None]) -> float:
        """Seconds of one call, on average."""
        work()
        self.wait()
        begin, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - begin < self.seconds:
            work()
            calls += 1
            self.wait()
        return (time.perf_counter() - begin) / calls


def sequences(size: Size, rows: int, length: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(size.vocabulary, (rows, length), generator=generator).tolist()


def parameters(network: Network) -> int:
    return sum(p.numel() for p in network.model.parameters())


def rollout(network: Network, size: Size, clock: Clock) -> dict[str, float]:
    """A prompt is read, then `response` tokens are sampled one by one, as harness.training.rollout does it."""
    prompts = sequences(size, size.rows, size.prompt)

    @torch.inference_mode()
    def read() -> None:
        network.decoder(size.rows).feed(prompts)

    @torch.inference_mode()
    def play() -> None:
        decoder = network.decoder(size.rows)
        logits = decoder.feed(prompts)
        for _ in range(size.response):
            logits = decoder.feed([[token] for token in logits.argmax(-1).tolist()])

    prefill, whole = clock.per_call(read), clock.per_call(play)
    decoding = max(whole - prefill, 1e-9)
    return {
        "prefill_tokens_per_s": size.rows * size.prompt / prefill,
        "decode_tokens_per_s": size.rows * size.response / decoding,
        "decode_tokens_per_s_and_sequence": size.response / decoding,
        "flops_prefill": 2.0 * parameters(network) * size.rows * size.prompt / prefill,
        "flops_decode": 2.0 * parameters(network) * size.rows * size.response / decoding,
    }


def scoring(network: Network, size: Size, clock: Clock) -> dict[str, float]:
    """Log-probs of the response tokens of full rows."""
    length = size.prompt + size.response
    rows = sequences(size, size.train_rows, length)
    marked = [list(range(size.prompt, length)) for _ in rows]

    @torch.no_grad()
    def score() -> None:
        marked_logprobs(network, rows, marked, 0, 1.0, with_entropy=False)

    seconds = clock.per_call(score)
    tokens = size.train_rows * length
    return {"tokens_per_s": tokens / seconds, "flops": 2.0 * parameters(network) * tokens / seconds}


def training(network: Network, size: Size, clock: Clock) -> dict[str, float]:
    """One optimiser step on full rows; the loss is the response's log-probs."""
    length = size.prompt + size.response
    rows = sequences(size, size.train_rows, length)
    marked = [list(range(size.prompt, length)) for _ in rows]
    optimizer = torch.optim.AdamW(network.model.parameters(), lr=1e-6, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        found = marked_logprobs(network, rows, marked, 0, 1.0)
        (-found.logprobs.mean()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    seconds = clock.per_call(step)
    tokens = size.train_rows * length
    return {"tokens_per_s": tokens / seconds, "flops": 6.0 * parameters(network) * tokens / seconds}


def measure(size: Size, device: str, seconds: float, dtypes: tuple[str, ...]) -> dict[str, Any]:
    """Everything, for each dtype. seconds: to be spent in all, about."""
    works = {"rollout": rollout, "scoring": scoring, "training": training}
    found: dict[str, Any] = {}
    for name in dtypes:
        network = make_network(size, getattr(torch, name), device)
        of_dtype: dict[str, Any] = {"parameters": parameters(network)}
        for what, work in works.items():
            calls = 2 if what == "rollout" else 1
            if device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            share = seconds / len(dtypes) * SHARE[what] / calls / 2  # half is left for warming up
            try:
                of_dtype[what] = work(network, size, Clock(device, share))
            except torch.cuda.OutOfMemoryError as error:
                of_dtype[what] = {"error": str(error).splitlines()[0]}
            if device != "cpu":
                of_dtype[what]["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found[name] = of_dtype
        del network
        if device != "cpu":
            torch.cuda.empty_cache()
    return found


def peak_of(name: str) -> float | None:
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def report(found: dict[str, Any], device: str, peak: float | None) -> list[str]:
    lines = [f"device: {device}"]
    for dtype, parts in found.items():
        lines.append(f"{dtype}, {parts['parameters'] / 1e6:.1f} million parameters")
        for what, figures in parts.items():
            if not isinstance(figures, dict):
                continue
            for key, value in figures.items():
                if not isinstance(value, float):
                    lines.append(f"  {what}: {value}")
                elif key.startswith("flops"):
                    share = f"{value / peak:.1%} of the peak in bfloat16" if peak else "of no known peak"
                    lines.append(
                        f"  {what} {key.replace('flops', 'multiply-adds x 2')}: {value / 1e12:.3f} T/s, {share}"
                    )
                else:
                    lines.append(f"  {what} {key}: {value:,.1f}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=sorted(SIZES), help="default: 0.5b on a GPU, tiny on a CPU")
    parser.add_argument("--seconds", type=float, help="to spend in all; default: 480 on a GPU, 5 on a CPU")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args(arguments)
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    if not on_gpu:
        print("no GPU here: NO GPU WAS MEASURED. The figures below are of a CPU and say nothing about any GPU.")
    size = SIZES[given.size or ("0.5b" if on_gpu else "tiny")]
    found = measure(
        size, device, given.seconds or (480.0 if on_gpu else 5.0), ("bfloat16", "float32") if on_gpu else ("float32",)
    )
    print("\n".join(report(found, name, peak_of(name) if on_gpu else None)))
    if given.out is not None:
        content = {"gpu_measured": on_gpu, "device": name, "size": dataclasses.asdict(size), "found": found}
        given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
