"""MAC under the Hugging Face Trainer: a small BERT that learns which half of the vocabulary a sentence is from.

    python3 examples/torch_hf_trainer.py [--steps 50]

The Trainer makes the optimizer from ``optimizer_cls_and_kwargs``; ``"model"`` among the keywords tells it to pass the model.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import transformers

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # where abar is not installed
import abar.torch  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    if args.steps < 1:
        parser.error("--steps: at least 1")
    torch.manual_seed(0)
    labels = torch.randint(2, (16 * args.steps,))
    tokens = torch.randint(4, 32, (len(labels), 9)) + 32 * labels[:, None]
    data = [{"input_ids": t, "labels": label} for t, label in zip(tokens, labels)]
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=16
    )
    model = transformers.BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            max_steps=args.steps,
            save_strategy="no",
            logging_steps=max(1, args.steps // 5),
            report_to=[],
            disable_tqdm=True,
        )
        given = abar.torch.MAC, {"model": model, "rule": "adamw", "lr": 2e-3, "weight_decay": 0.01}
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, optimizer_cls_and_kwargs=given)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {float(losses[0]):.3f} -> {float(losses[-1]):.3f}")
    print(getattr(trainer.optimizer, "optimizer", trainer.optimizer).report())


if __name__ == "__main__":
    main()
