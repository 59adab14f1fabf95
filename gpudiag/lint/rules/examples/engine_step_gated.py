# %% wrong
import deepspeed


def train(model, batches, config):
    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    for index, batch in enumerate(batches):
        loss = engine(batch)
        engine.backward(loss)
        if (index + 1) % 4 == 0:
            engine.step()


# %% right
import deepspeed


def train(model, batches, config):
    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    for index, batch in enumerate(batches):
        loss = engine(batch)
        engine.backward(loss)
        engine.step()


# %% near miss
import deepspeed


def train(model, batches, config):
    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    for index, batch in enumerate(batches):
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        if (index + 1) % 4 == 0:
            engine.save_checkpoint("checkpoints")
