"""The real executor: worker processes that obey a schedule on torch.distributed."""
