"""The Llama architecture, as small as it can be said, with yarn-scaled rotary embedding exactly as transformers computes it."""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Config:
    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_factor: float = 16.0
    original_max_position_embeddings: int = 8192

    @property
    def max_position_embeddings(self):
        return int(self.rope_factor * self.original_max_position_embeddings)


SIZES = {
    "target": Config(),
    # An eighth of the target's parameters, three fifths of them in the embedding.
    "draft": Config(hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2),
}


def yarn(config):
    """Inverse frequencies and the factor on cos and sin (Peng et al. 2023; transformers' _compute_yarn_parameters)."""
    dim, base, original = config.head_dim, config.rope_theta, config.original_max_position_embeddings
    beta_fast, beta_slow = 32, 1

    def dimension_of(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension_of(beta_fast)), 0)
    high = min(math.ceil(dimension_of(beta_slow)), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    frequencies = base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    inverse = ramp / (config.rope_factor * frequencies) + (1 - ramp) / frequencies
    return inverse, 0.1 * math.log(config.rope_factor) + 1.0


def rotary(config, positions):
    """cos and sin, [..., length, head_dim], of integer positions [..., length]."""
    inverse, scale = yarn(config)
    angles = positions[..., None].float() * inverse
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, c.hidden_size, bias=False)

    def forward(self, x, cos, sin, cache=None):
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mask = None
        if cache is not None:
            k, v, mask = cache.append(self, k, v)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and length > 1)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.mlp = FeedForward(c)

    def forward(self, x, cos, sin, cache=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Parameter names are those of transformers' LlamaForCausalLM without the leading "model."."""

    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)
        for name, p in self.named_parameters():
            if "embed" in name:
                nn.init.normal_(p, std=0.02)
            elif "o_proj" in name or "down_proj" in name:
                nn.init.zeros_(p)  # each layer begins as the identity
            elif p.dim() == 2:
                nn.init.normal_(p, std=0.5 * p.shape[1] ** -0.5)

    def hidden(self, tokens, cos, sin, cache=None):
        """The residual stream behind the last layer, before the final norm."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, cache)
        return x

    def head(self, normed):
        """Logits of hidden states that a norm has passed."""
        return F.linear(normed, self.embed_tokens.weight)

    def forward(self, tokens, cos, sin, cache=None):
        return self.head(self.norm(self.hidden(tokens, cos, sin, cache)))

    def loss(self, tokens, targets, cos, sin):
        return F.cross_entropy(self(tokens, cos, sin).flatten(0, 1), targets.flatten())

    def divergence(self, tokens, teacher_logits, cos, sin):
        """KL divergence of this model's next token from the teacher's, nats a token."""
        p, q = (F.log_softmax(x.flatten(0, 1), -1) for x in (teacher_logits, self(tokens, cos, sin)))
        return F.kl_div(q, p, log_target=True, reduction="batchmean")


class Cache:
    """Keys and values of what was already read, for reading in chunks and for generating."""

    def __init__(self, capacity):
        self.capacity, self.length, self.store = capacity, 0, {}

    def append(self, owner, k, v):
        start, end = self.length, self.length + k.shape[2]
        if owner not in self.store:
            shape = (k.shape[0], k.shape[1], self.capacity, k.shape[3])
            self.store[owner] = (k.new_empty(shape), v.new_empty(shape))
        keys, values = self.store[owner]
        keys[:, :, start:end], values[:, :, start:end] = k, v
        mask = None
        if k.shape[2] > 1:
            mask = torch.arange(end) <= torch.arange(start, end)[:, None]
        return keys[:, :, :end], values[:, :, :end], mask
