"""`python benchmarks/estimates/recompute.py`: what each policy of recomputation keeps of
llama3_8b, and what it computes again, as the table of docs/layouts.md.
"""

from __future__ import annotations

import forge
from forge.config.model.decoder import Decoder
from forge.config.recompute import CUSTOM, OFFLOADED, POLICIES, SAVED
from forge.planning.activations import Activations, Stage, flops_again

OVERRIDES = ["model=llama3_8b", "plan.device=h200", "plan.world_size=1", "precision=bf16"]
OVERRIDES += ["train.seq_len=4096", "train.batch_size=1"]


def main() -> None:
    """Bytes of a token in all blocks, and FLOPs in those of its forward and backward pass."""
    print(
        "| `train.activation_checkpointing` | on the device, KB a token | in host memory | FLOPs |"
    )
    print("| --- | ---: | ---: | ---: |")
    for policy in POLICIES:
        if policy == CUSTOM:
            continue
        mode = f"train.activation_checkpointing={policy}"
        config = forge.compose([*OVERRIDES, mode]).validate().config
        assert isinstance(config.model, Decoder)
        stage = Stage(layers=range(config.model.n_layers), first=True, last=False)
        held = Activations(config, config.model).held(stage)
        assert held is not None
        more = flops_again(config) / config.model.flops_per_token(4096)
        sizes = (f"{bytes / 4096 / 1000:,.0f}" for bytes in (held.device, held.host))
        print(f"| {policy} | {' | '.join(sizes)} | +{more:.1%} |")


if __name__ == "__main__":
    assert {*SAVED, *OFFLOADED} < set(POLICIES)
    main()
