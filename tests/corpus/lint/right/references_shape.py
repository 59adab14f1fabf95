"""The shape of torchvision's references: helpers in another file, samplers for both sets, one who saves."""

import os

import torch
import torch.utils.data
import utils
from torch import nn


def train_one_epoch(model, criterion, optimizer, loader, device, epoch, args, scaler=None):
    model.train()
    logger = utils.MetricLogger(delimiter="  ")
    for images, target in logger.log_every(loader, args.print_freq, f"Epoch: [{epoch}]"):
        images, target = images.to(device), target.to(device)
        with torch.cuda.amp.autocast(enabled=scaler is not None):
            loss = criterion(model(images), target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            if args.clip_grad_norm is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            if args.clip_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
            optimizer.step()
        logger.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])


def main(args):
    utils.init_distributed_mode(args)
    device = torch.device(args.device)
    dataset, dataset_test, train_sampler, test_sampler = utils.load_data(args)
    loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, sampler=train_sampler)
    model = utils.build(args.model).to(device)
    if args.distributed and args.sync_bn:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    model_without_ddp = model
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    for epoch in range(args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, loader, device, epoch, args)
        if args.output_dir:
            checkpoint = {"model": model_without_ddp.state_dict(), "epoch": epoch}
            utils.save_on_master(checkpoint, os.path.join(args.output_dir, "checkpoint.pth"))


if __name__ == "__main__":
    main(utils.get_args_parser().parse_args())
