"""A model of a class of its own, outside the scope."""

import tensorflow as tf
import os
class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.d = tf.keras.layers.Dense(1)
    def call(self, x):
        return self.d(x)

strategy = tf.distribute.MirroredStrategy()
model = Net()  # expect: mirrored_scope
model.compile(loss="mse")
model.fit(x, y)
