"""Prints the table of docs/torch-models.md: models at their published sizes, without memory for them.

    /path/to/python tests/python/model_table.py
"""

import support
from support import torch

import peft
import timm
import torchvision.models as tv
import transformers as hf

from abar.torch._attention import find_values
from abar.torch._layers import find_layers


def lora():
    config = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(hf.LlamaForCausalLM(hf.LlamaConfig()), config)


MODELS = {
    "torchvision resnet18": tv.resnet18,
    "torchvision densenet121": tv.densenet121,
    "torchvision convnext_tiny": tv.convnext_tiny,
    "torchvision efficientnet_b0": tv.efficientnet_b0,
    "torchvision swin_t": tv.swin_t,
    "torchvision vit_b_16": tv.vit_b_16,
    "timm vit_small_patch16_224": lambda: timm.create_model("vit_small_patch16_224"),
    "timm deit_small_patch16_224": lambda: timm.create_model("deit_small_patch16_224"),
    "timm swin_tiny_patch4_window7_224": lambda: timm.create_model("swin_tiny_patch4_window7_224"),
    "timm convnext_tiny": lambda: timm.create_model("convnext_tiny"),
    "transformers GPT-2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config()),
    "transformers BERT base": lambda: hf.BertForMaskedLM(hf.BertConfig()),
    "transformers Llama 7B": lambda: hf.LlamaForCausalLM(hf.LlamaConfig()),
    "transformers T5 small": lambda: hf.T5ForConditionalGeneration(hf.T5Config()),
    "transformers ViT base": lambda: hf.ViTForImageClassification(hf.ViTConfig()),
    "transformers Mixtral 8x7B": lambda: hf.MixtralForCausalLM(hf.MixtralConfig()),
    "LoRA by PEFT on Llama 7B": lora,
}


def row(name, model):
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    layers, left = find_layers(model, params, ())
    layers = [layer for layer in layers if layer.weight.requires_grad]
    mine = {id(p): p.numel() for layer in layers for p in (layer.weight, layer.bias) if p is not None}
    sizes = {id(p): p.numel() for p in params}
    rest = {}
    for m in left:
        for p in m.module._parameters.values():
            if p is not None and id(p) in sizes and id(p) not in mine:
                kind = type(m.module).__name__
                rest[kind] = rest.get(kind, 0) + sizes.pop(id(p))
    total = sum(p.numel() for p in params)
    largest = ", ".join(f"{kind} {n / total:.1%}" for kind, n in sorted(rest.items(), key=lambda e: -e[1])[:2])
    values = len(find_values(model, layers, None))
    print(f"| {name} | {total / 1e6:.1f} | {len(layers)} | {values or ''} | {sum(mine.values()) / total:.1%} | {largest} |")


if __name__ == "__main__":
    print("| model | trained parameters (millions) | layers | of them with values of attention | preconditioned | largest of the rest |")
    print("|---|---|---|---|---|---|")
    for name, make in MODELS.items():
        with torch.device("meta"):
            row(name, make())
