import lightning as L
import torch
from torch import nn


class Contrast(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(128, 32)
        self.outputs, self.clusters = [], []

    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.outputs.append(self.net(batch[0]))
        self.clusters.append(batch[1])

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero:
            points = torch.cat(self.outputs)
            labels = torch.cat(self.clusters)
            self.outputs.clear()
            self.clusters.clear()
            score = (points.mean(dim=1) > labels.float().mean()).float().mean()
            self.log("val_score", score, sync_dist=True)  # expect: collective_on_one_rank

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    trainer = L.Trainer(accelerator="gpu", devices=4, strategy="ddp", max_epochs=3)
    trainer.fit(Contrast(), datamodule=None)
