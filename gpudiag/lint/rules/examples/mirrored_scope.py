# %% wrong
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
model = tf.keras.Sequential([tf.keras.layers.Dense(4)])
model.compile(optimizer="adam", loss="mse")
model.fit(tf.random.normal((32, 4)), tf.random.normal((32, 4)))


# %% right
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(4)])
    model.compile(optimizer="adam", loss="mse")
model.fit(tf.random.normal((32, 4)), tf.random.normal((32, 4)))


# %% near miss
import tensorflow as tf


def build():
    return tf.keras.Sequential([tf.keras.layers.Dense(4)])


strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = build()
model.compile(optimizer="adam", loss="mse")
model.fit(tf.random.normal((32, 4)), tf.random.normal((32, 4)))
