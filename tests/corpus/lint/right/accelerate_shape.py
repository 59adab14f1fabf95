"""The shape of Accelerate's examples: prepare, gather_for_metrics, checkpoints."""

import argparse
import os

import evaluate
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup, set_seed


def get_dataloaders(accelerator, batch_size=16):
    tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
    datasets = load_dataset("glue", "mrpc")

    def tokenize(examples):
        return tokenizer(examples["sentence1"], examples["sentence2"], truncation=True)

    with accelerator.main_process_first():
        tokenized = datasets.map(tokenize, batched=True)
    train = DataLoader(tokenized["train"], shuffle=True, batch_size=batch_size, drop_last=True)
    valid = DataLoader(tokenized["validation"], shuffle=False, batch_size=32)
    return train, valid


def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision, log_with="all")
    if accelerator.is_main_process:
        accelerator.init_trackers("run", config)
    metric = evaluate.load("glue", "mrpc")
    set_seed(config["seed"])
    train, valid = get_dataloaders(accelerator, config["batch_size"])
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased", return_dict=True)
    model = model.to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    schedule = get_linear_schedule_with_warmup(optimizer, 100, len(train) * config["num_epochs"])
    model, optimizer, train, valid, schedule = accelerator.prepare(model, optimizer, train, valid, schedule)
    for epoch in range(config["num_epochs"]):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if step % 100 == 0:
                accelerator.save_state(os.path.join("out", f"step_{step}"))
        model.eval()
        for batch in valid:
            with torch.no_grad():
                outputs = model(**batch)
            predictions, references = accelerator.gather_for_metrics((outputs.logits.argmax(dim=-1), batch["labels"]))
            metric.add_batch(predictions=predictions, references=references)
        accelerator.print(f"epoch {epoch}:", metric.compute())
    accelerator.wait_for_everyone()
    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained("out", is_main_process=accelerator.is_main_process, save_function=accelerator.save)
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", type=str, default=None)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    training_function({"lr": 2e-5, "num_epochs": 3, "seed": 42, "batch_size": 16}, args)


if __name__ == "__main__":
    main()
