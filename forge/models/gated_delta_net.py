"""Gated delta nets: token mixers with a state of fixed size for texts of any length."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.flash_linear import kernels_lack
from forge.config.model.mixers.gated_delta_net import GatedDeltaNet as GatedDeltaNetConfig
from forge.models.attention import KEPT_NAMES as OF_ATTENTION
from forge.models.cache import LayerCache
from forge.models.delta_rule import DeltaInputs, chunked, empty, l2_norm, recurrent
from forge.models.mixers.causal_conv import ConvolutionMixer, wide
from forge.models.norm import RMSNorm
from forge.models.rope import Rotation

FORGOTTEN = -30.0
"""Logarithm of the state's factor where a document begins, for a kernel without an option to empty
the state: below the precision of fp32 beside any other summand.
"""

HOPPER = 9
"""Compute capability of an H100 and an H200, without its second number."""

REFERENCE_CHUNK = 64
"""Tokens of a chunk where torch computes the operator."""

KEPT_NAMES = OF_ATTENTION | dict.fromkeys(("wz", "wb", "wa"), "gdn_gates")
"""Names of the modules' outputs in `train.recompute`."""


class GatedDeltaNet(ConvolutionMixer):
    """The gated delta rule (arXiv:2412.06464) over short convolutions of queries, keys and values,
    with normalised and gated output, as in Qwen3-Next.
    """

    kept_names = KEPT_NAMES

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        mixer, dim = section.mixer, section.dim
        assert isinstance(mixer, GatedDeltaNetConfig)
        self.section, heads = mixer, mixer.gdn_num_value_heads
        self.fla_lacks = of_fla(mixer)  # not in a compiled block: a look for a package breaks it
        keys = mixer.gdn_num_key_heads * mixer.gdn_key_head_dim
        values = heads * mixer.gdn_value_head_dim
        self.conv_q, self.conv_k, self.conv_v = (
            nn.Parameter(torch.ones(width, mixer.gdn_conv_kernel_dim))
            for width in (keys, keys, values)
        )
        self.a_log, self.dt_bias = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.ones(heads))
        self.wq = nn.Linear(dim, keys, bias=False)
        self.wk = nn.Linear(dim, keys, bias=False)
        self.wv = nn.Linear(dim, values, bias=False)
        self.wz = nn.Linear(dim, values, bias=False)
        self.wb = nn.Linear(dim, heads, bias=False)
        self.wa = nn.Linear(dim, heads, bias=False)
        self.norm = RMSNorm(mixer.gdn_value_head_dim, eps=section.norm_eps)
        self.wo = nn.Linear(values, dim, bias=False)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]; `cache` has the state after the earlier
        tokens. places: [batch, seq], positions of tokens in documents that share rows.
        """
        section = self.section
        # A tail of each convolution, for q, k and v, then the state of the rule.
        *tails, state = cache.held if cache is not None and cache.held else (None,) * 4
        convolved = self.convolve(
            [self.wq(x), self.wk(x), self.wv(x)],
            [self.conv_q, self.conv_k, self.conv_v],
            [None] * 3,
            tails,
            places,
        )
        q, k, v = (channels for channels, _ in convolved)
        q, k = (channels.unflatten(-1, (-1, section.gdn_key_head_dim)) for channels in (q, k))
        if section.use_qk_norm_in_gdn:
            q, k = l2_norm(q), l2_norm(k)
        fed = DeltaInputs(
            q=q,
            k=k,
            v=v.unflatten(-1, (-1, section.gdn_value_head_dim)),
            decay=-wide(self.a_log).exp() * softplus(wide(self.wa(x)) + wide(self.dt_bias)),
            beta=wide(self.wb(x)).sigmoid(),
            begins=None if places is None else places == 0,
        )
        heads, state = self.read(fed, state, x)
        if cache is not None:
            cache.keep(x.shape[1], *(tail for _, tail in convolved), state)
        z = self.wz(x).unflatten(-1, (-1, section.gdn_value_head_dim))
        return self.wo((self.norm(heads) * F.silu(z)).flatten(2))

    def read(self, fed: DeltaInputs, state: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of all heads, [batch, seq, heads, value], and the last state."""
        if fed.v.shape[1] == 1:
            return recurrent(fed, state)
        if self.by_kernel(x):
            return by_fla(fed, state, x.dtype)
        return chunked(fed, self.section.gdn_chunk_size, state)

    def by_kernel(self, x: Tensor) -> bool:
        """Whether flash-linear-attention computes the rule: on request, or with `auto` where its
        kernels can. They are for 16 bits.
        """
        chosen = self.section.gdn_kernel
        if chosen != "auto":
            return chosen == "fla"
        if x.device.type != "cuda" or x.element_size() != 2:
            return False
        return not self.fla_lacks


def of_fla(mixer: GatedDeltaNetConfig) -> str:
    """Why this process cannot use flash-linear-attention, or ''; ValueError where it must."""
    if mixer.gdn_kernel == "torch":
        return ""
    cuda = torch.cuda.is_available()
    hopper = cuda and torch.cuda.get_device_capability()[0] == HOPPER
    reason = kernels_lack(hopper)
    if reason and cuda and mixer.gdn_kernel == "fla":
        message = "the kernels of flash-linear-attention cannot be used"
        raise ValueError(f"mixer.gdn_kernel=fla: {message}: {reason}; mixer.gdn_kernel=torch")
    if reason and hopper and not kernels_lack():  # a rule has told what is known without a GPU
        warnings.warn(f"mixer.gdn_kernel=auto is torch's chunks: {reason}", stacklevel=2)
    return reason


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), elementwise."""
    # In a compiled block the gradient of torch's softplus has strides the compiler does not expect
    # (torch 2.13).
    return torch.logaddexp(x, x.new_zeros(()))


def by_fla(fed: DeltaInputs, state: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute `forge.models.delta_rule.chunked` by flash-linear-attention's kernels, with q, k and
    v in `dtype`.
    """
    decay = fed.decay
    if fed.begins is not None:
        decay = decay.masked_fill(fed.begins.unsqueeze(-1), FORGOTTEN)
    state = empty(fed) if state is None else state
    return delta_rule(fed.q.to(dtype), fed.k.to(dtype), fed.v.to(dtype), decay, fed.beta, state)


def _rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The rule by flash-linear-attention; on a CPU without it, by torch's products."""
    try:
        kernels: Any = importlib.import_module("fla.ops.gated_delta_rule")
    except ImportError:
        if q.is_cuda:
            raise
        output, last = chunked(DeltaInputs(q, k, v, decay, beta), REFERENCE_CHUNK, state)
    else:
        output, last = kernels.chunk_gated_delta_rule(
            q, k, v, g=decay, beta=beta, initial_state=state, output_final_state=True
        )
    return output.to(v.dtype), last.to(state.dtype)


# Operators, opaque to a compiler: it cannot trace the kernels, and a block is one graph.
@torch.library.custom_op("forge::delta_rule", mutates_args=())
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs as v, and the last state; arguments as in `DeltaInputs`."""
    output, last = _rule(q, k, v, decay, beta, state)
    return output.contiguous(), last.contiguous()


@delta_rule.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), state.new_empty(state.shape)


@torch.library.custom_op("forge::delta_rule_backward", mutates_args=())
def delta_rule_backward(d_output: Tensor, d_last: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of the inputs of `delta_rule`, of which the forward pass is made again."""
    guard: Any = torch._C._SetExcludeDispatchKeyGuard
    keys: Any = torch._C.DispatchKey
    # Inside an operator autograd is switched off; here it is what computes the gradients.
    with (
        guard(keys.AutogradFunctionality, False),
        guard(keys.ADInplaceOrView, False),
        torch.enable_grad(),
    ):
        leaves = [values.detach().requires_grad_() for values in inputs]
        outputs = _rule(*leaves)
        gradients = torch.autograd.grad(outputs, leaves, (d_output, d_last))
    return [gradient.contiguous() for gradient in gradients]


@delta_rule_backward.register_fake
def _(d_output: Tensor, d_last: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [values.new_empty(values.shape) for values in inputs]


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, d_output: Tensor, d_last: Tensor) -> tuple[Tensor, ...]:
    return tuple(delta_rule_backward(d_output, d_last, list(ctx.saved_tensors)))


delta_rule.register_autograd(_differentiate, setup_context=_keep)
