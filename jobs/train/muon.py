"""Muon (Jordan et al. 2024) in fp32: the momentum of each matrix, orthogonalised, is its update.

torch.optim.Muon orthogonalises in bf16, which processors without bf16 instructions emulate slowly; here matrices of one
shape also go through the iteration together.
"""

import torch


def orthogonalise(g, steps=5):
    """Newton-Schulz, quintic: all singular values to about 1. g: [n, rows, columns]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                by_shape.setdefault(p.shape, []).append(p)
            for (rows, columns), params in by_shape.items():
                looked_ahead = [p.grad.lerp(self.state[p]["momentum"], group["momentum"]) for p in params]  # Nesterov
                updates = orthogonalise(torch.stack(looked_ahead))
                scale = 0.2 * max(rows, columns) ** 0.5  # root mean square of an AdamW update: one rate serves both
                for p, update in zip(params, updates):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update, alpha=-group["lr"] * scale)
