"""Real models in tiny versions: name -> (model, loss of a batch). What a package is needed for and is not there is left out."""

import importlib.util

import torch
import torch.nn.functional as F
from torch import nn


def has(*packages):
    return all(importlib.util.find_spec(package) for package in packages)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 49, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        other = x.flip(3).roll(1, 0)
        return self.head((self.encoder(x) - self.encoder(other)).abs())


class Encoder(nn.Module):
    """nn.TransformerEncoder: nn.MultiheadAttention with its packed projection."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
        self.embed = nn.Linear(48, 12)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(self.body(self.embed(x.reshape(x.shape[0], 16, 48))).mean(1))


def images(size=16, classes=4):
    """A loss on images."""

    def loss(model, k):
        draw = torch.Generator().manual_seed(k)
        p = next(model.parameters())
        x = torch.randn(4, 3, size, size, generator=draw, dtype=torch.float64) + 0.5
        y = torch.randint(classes, (4,), generator=draw)
        out = model(x.to(p.dtype))
        return F.cross_entropy(getattr(out, "logits", out), y)

    return loss


def text(model, k):
    """A language model's loss on its own input."""
    ids = torch.randint(40, (3, 7), generator=torch.Generator().manual_seed(k))
    return model(input_ids=ids, labels=ids).loss


def masked_text(model, k):
    """... with padding at the end of some sequences."""
    ids = torch.randint(40, (3, 7), generator=torch.Generator().manual_seed(k))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return model(input_ids=ids, attention_mask=mask, labels=ids).loss


def torchvision_models():
    import torchvision.models as tv

    return {
        "torchvision resnet18": (lambda: tv.resnet18(num_classes=4), images(32)),
        "torchvision densenet121": (lambda: tv.DenseNet(4, (2, 2), 8, num_classes=4), images(32)),
        "torchvision convnext_tiny": (
            lambda: tv.ConvNeXt([tv.convnext.CNBlockConfig(8, 16, 1), tv.convnext.CNBlockConfig(16, None, 1)], num_classes=4),
            images(16),
        ),
        "torchvision efficientnet_b0": (lambda: tiny_efficientnet(), images(32)),
        "torchvision swin_t": (
            lambda: tv.SwinTransformer([2, 2], 12, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=4),
            images(16),
        ),
        "torchvision vit_b_16": (lambda: tv.VisionTransformer(16, 4, 2, 3, 12, 24, num_classes=4), images(16)),
    }


def tiny_efficientnet():
    import torchvision.models as tv
    from torchvision.models.efficientnet import MBConvConfig

    settings = [MBConvConfig(1, 3, 1, 8, 8, 1, 1, 1), MBConvConfig(4, 5, 2, 8, 12, 1, 1, 1)]
    return tv.EfficientNet(settings, 0.0, stochastic_depth_prob=0.0, num_classes=4, last_channel=24)


def timm_models():
    import timm.models as tm

    vit = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 4}
    return {
        "timm ViT": (lambda: tm.vision_transformer.VisionTransformer(**vit), images(16)),
        "timm DeiT": (lambda: tm.deit.VisionTransformerDistilled(**vit), images(16)),
        "timm Swin": (
            lambda: tm.swin_transformer.SwinTransformer(
                16, 2, embed_dim=12, depths=(2, 2), num_heads=(2, 4), window_size=4, num_classes=4, drop_path_rate=0.0
            ),
            images(16),
        ),
        "timm ConvNeXt": (lambda: tm.convnext.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), num_classes=4), images(32)),
    }


GPT = {"vocab_size": 40, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3, "bos_token_id": 0, "eos_token_id": 0}
GPT.update(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, loss_type="ForCausalLM")


def hf_models():
    import transformers as hf

    small = {"vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    grouped = {**small, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "max_position_embeddings": 16}
    vit = {k: v for k, v in small.items() if k != "vocab_size"}
    t5 = {"vocab_size": 40, "d_model": 12, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_heads": 3, "dropout_rate": 0.0}
    return {
        "HF GPT-2": (
            lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT)),
            text,
        ),
        "HF BERT": (lambda: hf.BertForMaskedLM(hf.BertConfig(**small, **quiet, max_position_embeddings=16)), masked_text),
        "HF Llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**grouped)), masked_text),
        "HF T5": (lambda: hf.T5ForConditionalGeneration(hf.T5Config(**t5, decoder_start_token_id=0)), masked_text),
        "HF ViT": (
            lambda: hf.ViTForImageClassification(hf.ViTConfig(**vit, **quiet, image_size=16, patch_size=4, num_labels=4)),
            images(16),
        ),
        "HF Mixtral": (
            lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**grouped, num_local_experts=3, num_experts_per_tok=2, experts_implementation="eager")),
            text,
        ),
    }


def peft_models():
    import peft
    import transformers as hf

    def lora():
        config = peft.LoraConfig(r=2, target_modules=["c_attn", "c_fc"], lora_dropout=0.0, fan_in_fan_out=True)
        model = peft.get_peft_model(hf.GPT2LMHeadModel(hf.GPT2Config(**GPT)), config)
        for name, p in model.named_parameters():
            if "lora_B" in name:  # zero at the start, and A would have no gradient
                nn.init.normal_(p, std=0.1)
        return model

    return {"PEFT LoRA": (lora, text)}


def all_models():
    """The models, and a line for each package that is missing."""
    found = {"siamese": (Siamese, images(16, 2)), "nn.TransformerEncoder": (Encoder, images(16))}
    missing = []
    makers = {
        torchvision_models: ("torchvision",),
        timm_models: ("timm",),
        hf_models: ("transformers",),
        peft_models: ("peft", "transformers"),
    }
    for make, packages in makers.items():
        if has(*packages):
            found.update(make())
        else:
            missing.append(f"{make.__name__}: {' and '.join(packages)} not installed")
    return found, missing
