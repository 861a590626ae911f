"""How the coefficients of a skill term change over training.

Sources: constant is what the OPID scripts run (arXiv:2606.26790, released code at 37a15a5: start and stop are null);
window is that code's `opd_start_after_steps` / `opd_stop_after_steps`; linear is our choice for small models.
"""

from __future__ import annotations

from core.names import require_known
from methods.interface import ScheduleConfig

KINDS = {"constant": (), "linear": ("length",), "window": ("start", "stop")}  # kind -> keys that it reads
_KEYS = tuple(key for keys in KINDS.values() for key in keys)


def check_schedule(config: ScheduleConfig) -> None:
    """Raise ValueError if the schedule cannot be followed, or holds a key that its kind would silently ignore."""
    require_known("method.schedule.kind", config.kind, tuple(KINDS))
    unread = ScheduleConfig()
    for key in _KEYS:
        given = getattr(config, key)
        if key not in KINDS[config.kind] and given != getattr(unread, key):
            other = next(kind for kind, keys in KINDS.items() if key in keys)
            default = "null" if getattr(unread, key) is None else getattr(unread, key)
            raise ValueError(
                f"method.schedule.{key}={given} is read by method.schedule.kind={other} only, but the kind is "
                f"{config.kind}; set it to {default}, or choose that kind"
            )
    if config.length is not None and config.length < 1:
        raise ValueError(
            f"method.schedule.length={config.length} must be at least 1 step, or null for the planned steps"
        )
    if config.start < 0:
        raise ValueError(f"method.schedule.start={config.start} must not be negative (0: on from the first step)")
    if config.stop is not None and config.stop <= config.start:
        raise ValueError(
            f"method.schedule.stop={config.stop} must be larger than method.schedule.start={config.start}, "
            "otherwise the skill term is never on; use null for no end"
        )


def coefficient_scale(config: ScheduleConfig, step: int, total_steps: int) -> float:
    """Factor in [0, 1] on the skill coefficients at training step `step` (numbered from 1).

    constant  1
    linear    1 - (step - 1) / L: 1 at step 1, 0 from step L + 1 on; L = `length` or the planned steps
    window    1 if start < step <= stop, else 0; no `stop` means no end
    """
    if step < 1:
        raise ValueError(f"training steps are numbered from 1, got step={step}")
    if config.kind == "constant":
        return 1.0
    if config.kind == "linear":
        length = config.length if config.length is not None else total_steps
        return max(0.0, 1.0 - (step - 1) / length)
    if config.kind == "window":
        return 1.0 if step > config.start and (config.stop is None or step <= config.stop) else 0.0
    check_schedule(config)  # says which kinds exist
    raise AssertionError(config.kind)
