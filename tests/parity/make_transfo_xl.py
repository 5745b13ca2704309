"""Write transfo_xl.safetensors: outputs of two tiny models by the last `transformers` with Transformer-XL.

Run once, with transformers 4.57.6 in a separate folder (it is not a dependency):
    pip install --target OLD --no-deps transformers==4.57.6 "huggingface_hub<1" "tokenizers<0.23"
    PYTHONPATH=OLD python tests/parity/make_transfo_xl.py
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.models.deprecated.transfo_xl.configuration_transfo_xl import TransfoXLConfig
from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

SHARED = {"vocab_size": 50, "cutoffs": [6, 14, 30], "n_layer": 2, "dropout": 0.0, "dropatt": 0.0}
CONFIGS = {
    "layer": SHARED | {"d_model": 24, "d_embed": 24, "n_head": 3, "d_head": 8, "d_inner": 28, "div_val": 2,
                       "untie_r": True, "mem_len": 9, "clamp_len": 6, "same_length": True},
    "shared": SHARED | {"d_model": 20, "d_embed": 20, "n_head": 2, "d_head": 6, "d_inner": 24, "div_val": 1,
                        "untie_r": False, "mem_len": 5, "clamp_len": -1, "same_length": False},
}  # fmt: skip
SIZES = {
    "large": {},
    "base": {"div_val": 1, "n_layer": 16, "d_model": 410, "d_embed": 410, "n_head": 10, "d_head": 41,
             "d_inner": 2100, "untie_r": False},
}  # fmt: skip


def type_as(self: torch.Tensor, other: torch.Tensor | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Replacement for `type_as(dtype=…)`, which releases since 4.38 call although torch lacks it."""
    return self.to(other.dtype if dtype is None else dtype)


def main() -> None:
    torch.Tensor.type_as = type_as
    tensors = {}
    for name, settings in CONFIGS.items():
        torch.manual_seed(0)
        model = TransfoXLLMHeadModel(TransfoXLConfig(**settings)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        tokens = torch.randint(0, settings["vocab_size"], (2, 14))
        first, second = tokens[:, :7], tokens[:, 7:]
        empty = [torch.zeros(0, 2, settings["d_model"])] * settings["n_layer"]  # empty as in the paper, not zeros
        record = {"tokens": tokens}
        before = model(first, mems=empty, output_hidden_states=True)
        after = model(second, mems=before.mems, output_hidden_states=True)
        for key, output in (("before", before), ("after", after)):
            record |= {f"{key}.hidden.{i}": h for i, h in enumerate(output.hidden_states)}
            record |= {f"{key}.log_probabilities": output.prediction_scores}
            record |= {f"{key}.memory.{i}": m.transpose(0, 1) for i, m in enumerate(output.mems)}
        loss = model(second, mems=before.mems, labels=second).losses
        loss.sum().backward()
        record |= {"losses": loss, "loss_sum": loss.sum()}
        tied = {p.data_ptr() for p in model.transformer.parameters()}
        for key, parameter in model.named_parameters():
            if key.startswith("transformer.") or parameter.data_ptr() not in tied:
                record |= {f"weight.{key}": parameter, f"gradient.{key}": parameter.grad}
        tensors |= {f"{name}/{key}": t.detach().clone().contiguous() for key, t in record.items()}
    with torch.device("meta"):
        counts = {
            size: sum(p.numel() for p in TransfoXLLMHeadModel(TransfoXLConfig(**settings)).transformer.parameters())
            for size, settings in SIZES.items()
        }
    metadata = {"configs": json.dumps(CONFIGS), "counts": json.dumps(counts)}
    save_file(tensors, Path(__file__).with_name("transfo_xl.safetensors"), metadata)


if __name__ == "__main__":
    main()
