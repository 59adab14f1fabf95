"""Accelerate, with results thrown away."""

import torch
from accelerate import Accelerator


def main():
    accelerator = Accelerator()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    accelerator.prepare(model, optimizer)  # expect: result_discarded
    for _ in range(10):
        loss = model(torch.randn(2, 4)).sum()
        accelerator.backward(loss)
        optimizer.step()  # expect: zero_grad_missing
    accelerator.gather(loss)  # expect: result_discarded
    if accelerator.is_main_process():  # expect: function_not_called
        print("done")
    if accelerator.is_main_process:
        accelerator.wait_for_everyone()  # expect: collective_on_one_rank


if __name__ == "__main__":
    main()
