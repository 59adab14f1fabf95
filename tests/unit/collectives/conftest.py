"""What the unit tests of collectives share."""

import torch

# Of two processors, two threads for tensors this small wait for each other: twice the processor time.
torch.set_num_threads(1)
