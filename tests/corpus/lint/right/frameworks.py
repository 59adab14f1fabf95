"""Frameworks that own the loop: Lightning and the Trainer of transformers."""

import lightning as L
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from transformers import Trainer, TrainingArguments


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(784, 10)

    def training_step(self, batch, index):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), labels)
        self.log("loss", loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def fit():
    data = datasets.MNIST("data", download=True, transform=transforms.ToTensor())
    trainer = L.Trainer(devices=4, strategy="ddp", max_epochs=3)
    trainer.fit(Module(), DataLoader(data, batch_size=32, shuffle=True))


def finetune(model, data):
    trainer = Trainer(model=model, args=TrainingArguments("out"), train_dataset=data)
    trainer.train()
    trainer.save_model()


fit()
