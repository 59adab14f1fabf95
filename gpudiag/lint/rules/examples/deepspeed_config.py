# %% wrong
import deepspeed


def build(model, settings):
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, ds_config=settings
    )
    return engine


# %% right
import deepspeed


def build(model, settings):
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, config=settings
    )
    return engine


# %% near miss
from mylib import deepspeed_wrapper


def build(model, settings):
    return deepspeed_wrapper.initialize(model=model, ds_config=settings)
