"""Keras outside the scope."""

import tensorflow as tf
from tensorflow import keras


def build_model():
    inputs = keras.Input(shape=(4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))  # expect: mirrored_scope
    return model


def main():
    strategy = tf.distribute.MirroredStrategy(devices=["/gpu:0", "/gpu:1"])
    model = build_model()
    with strategy.scope():
        model.compile(optimizer="adam", loss="mse")
    model.fit(tf.random.normal((32, 4)), tf.random.normal((32, 1)))


main()
