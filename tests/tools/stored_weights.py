"""Matrices as published folders store them, of 8 or 4 bits with scales. Used by make_parity_goldens.py."""

import torch

# Matrices of the layers as elements of 8 or 4 bits and scales: quantization_config, name of the scales, element type.
SCALED = {
    "block": ({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
              "_scale_inv", torch.float8_e4m3fn),
    "channel": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "_scale", torch.float8_e4m3fn),
    "int8": ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "_scale", torch.int8),
    "mxfp4": ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "_scales", torch.uint8),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True, "sym": False, "checkpoint_format": "gptq"}, "", torch.int32),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": True, "version": "gemm"}, "", torch.int32),
    "packed": ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights":
                {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 4}}}}, "", torch.int32),
    "nvfp4": ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "_scale", torch.uint8),
}  # fmt: skip


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def e2m1_codes(scaled):
    """The nearest codes of E2M1, two in a byte, and the numbers they stand for."""
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    values = E2M1[codes].copysign(scaled)
    codes = codes + 8 * values.signbit()
    return (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8), values


def as_mxfp4(tensors):
    """Stacks of experts [experts, inputs, outputs] as blocks of 32 inputs and their scales, and what these stand for."""
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        stored[name] = meant[name] = tensor
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        blocks = tensor.transpose(1, 2).unflatten(2, (-1, 32))
        exponents = blocks.abs().amax(3).log2().floor() - 2  # the greatest element becomes 4 to 8, which is limited to 6
        del stored[name]
        stored[name + "_blocks"], values = e2m1_codes(blocks / exponents.exp2()[..., None])
        stored[name + "_scales"] = (exponents + 127).to(torch.uint8)
        meant[name] = (values * exponents.exp2()[..., None]).flatten(2).transpose(1, 2).contiguous()
    return stored, meant


def as_nvfp4(tensors):
    """Matrices as blocks of 16 inputs with scales of F8_E4M3, which are divided by one number, and what these stand for."""
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        stored[name] = meant[name] = tensor
        if tensor.dim() != 2 or ".layers." not in name:
            continue
        blocks = tensor.unflatten(1, (-1, 16))
        common = (448 * 6 / tensor.abs().max()).reshape(1)
        scales = (blocks.abs().amax(2) / 6 * common).to(torch.float8_e4m3fn)
        spread = (scales.float() / common)[..., None]
        del stored[name]
        stored[name + "_packed"], values = e2m1_codes(blocks / spread)
        stored[name + "_packed"] = stored[name + "_packed"].flatten(1)
        stored[name + "_scale"], stored[name + "_global_scale"] = scales, common
        meant[name] = (values * spread).flatten(1)
    return stored, meant


def words(integers, order=range(8)):
    """Integers of 4 bits as words of 32, eight neighbours of the last dimension in each, the first of `order` lowest."""
    padded = torch.nn.functional.pad(integers, (0, -integers.shape[-1] % 8)).unflatten(-1, (-1, 8)).long()
    shifts = torch.tensor([list(order).index(i) * 4 for i in range(8)])
    return (padded << shifts).sum(-1).to(torch.int64).to(torch.uint32).view(torch.int32).contiguous()


def as_groups(tensors, scheme):
    """Matrices as integers of 4 bits with scales and zero points of groups of inputs, and what these stand for."""
    stored, meant = {}, {}
    generator = torch.Generator().manual_seed(5)
    for name, tensor in tensors.items():
        stored[name] = meant[name] = tensor
        if tensor.dim() != 2 or ".layers." not in name or name.endswith("mlp.gate.weight") or "sparse_moe.gate." in name:
            continue
        rows, columns = tensor.shape
        num_groups = columns // (4 if scheme == "packed" else 8)
        # Act-order: the groups' inputs are anywhere.
        order = torch.randperm(columns, generator=generator) if scheme == "gptq" else torch.arange(columns)
        group = torch.empty(columns, dtype=torch.int32)
        group[order] = torch.arange(num_groups, dtype=torch.int32).repeat_interleave(columns // num_groups)
        low = torch.stack([tensor[:, group == g].amin(1) for g in range(num_groups)], 1).clamp(max=0)
        high = torch.stack([tensor[:, group == g].amax(1) for g in range(num_groups)], 1).clamp(min=0)
        scales = ((high - low) / 15).to(torch.bfloat16 if scheme == "packed" else torch.float16)
        zeros = (-low / scales.float()).round().clamp(1, 15).int()
        spread, zero = scales.float()[:, group.long()], zeros[:, group.long()]
        integers = ((tensor / spread).round() + zero).clamp(0, 15).int()
        meant[name] = (integers - zero) * spread
        del stored[name]
        base = name.removesuffix("weight")
        if scheme == "packed":
            stored[name + "_packed"], stored[name + "_scale"] = words(integers), scales
            stored[name + "_zero_point"] = words(zeros.T).T.contiguous()
            stored[name + "_shape"] = torch.tensor(tensor.shape)
            continue
        stored[base + "scales"] = scales.T.contiguous()
        if scheme == "awq":
            places = (0, 2, 4, 6, 1, 3, 5, 7)
            stored[base + "qweight"], stored[base + "qzeros"] = words(integers.T, places), words(zeros.T, places)
        else:
            stored[base + "qweight"], stored[base + "qzeros"] = words(integers).T.contiguous(), words(zeros.T - 1)
            stored[base + "g_idx"] = group
    return stored, meant


def quantized(tensors, scheme):
    """`tensors` as the scheme stores them, and what these stand for."""
    if scheme == "mxfp4":
        return as_mxfp4(tensors)
    if scheme == "nvfp4":
        return as_nvfp4(tensors)
    if scheme in ("gptq", "awq", "packed"):
        return as_groups(tensors, scheme)
    _, suffix, dtype = SCALED[scheme]
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        stored[name] = meant[name] = tensor
        if tensor.dim() != 2 or ".layers." not in name or name.endswith("mlp.gate.weight"):
            continue
        rows, columns = tensor.shape
        edge = (128, 128) if scheme == "block" else (1, columns)
        grid = (-(-rows // edge[0]), -(-columns // edge[1]))
        padded = torch.zeros(grid[0] * edge[0], grid[1] * edge[1])
        padded[:rows, :columns] = tensor
        greatest = padded.view(grid[0], edge[0], grid[1], edge[1]).abs().amax(dim=(1, 3))
        scales = (greatest / (127 if dtype == torch.int8 else 448)).to(torch.bfloat16)
        spread = scales.float().repeat_interleave(edge[0], 0).repeat_interleave(edge[1], 1)[:rows, :columns]
        elements = (tensor / spread).round().clamp(-127, 127) if dtype == torch.int8 else (tensor / spread).clamp(-448, 448)
        stored[name], stored[name + suffix] = elements.to(dtype), scales
        meant[name] = elements.to(dtype).float() * spread
    return stored, meant
