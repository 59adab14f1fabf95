"""The workloads as models of TensorFlow, and the strategy on as many devices as asked for."""

from typing import Any

from gpudiag.training.job import TrainingJob


def start_strategy(tf: Any, job: TrainingJob) -> Any:
    """MirroredStrategy on as many devices as asked for: GPUs, or the CPU divided into logical ones."""
    if job.backend == "nccl":
        return tf.distribute.MirroredStrategy([f"/gpu:{replica}" for replica in range(job.workers)])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * job.workers)
    return tf.distribute.MirroredStrategy([f"/cpu:{replica}" for replica in range(job.workers)])


def build_model(tf: Any, job: TrainingJob, inputs: Any) -> Any:
    """The workload's model, with the start that the seed gives."""
    tf.keras.utils.set_random_seed(job.seed)
    dense = tf.keras.layers.Dense
    if job.workload == "regression":
        layers = [dense(10, activation="relu"), dense(5)]
    else:
        layers = [dense(64, activation="relu"), dense(64, activation="relu"), dense(4)]
    model = tf.keras.Sequential(layers)
    model.build((None, int(inputs.shape[1])))
    return model


def make_data(tf: Any, job: TrainingJob) -> tuple[Any, Any]:
    """Inputs and targets of all samples, from the seed."""
    random = tf.random.Generator.from_seed(job.seed)
    width, outputs = (5, 5) if job.workload == "regression" else (20, 4)
    inputs = random.normal((job.sample_count, width))
    answers = tf.matmul(inputs, random.normal((width, outputs)))
    return inputs, answers if job.workload == "regression" else tf.argmax(answers, axis=1)


def make_optimizer(tf: Any, job: TrainingJob) -> Any:
    """The optimizer of the job."""
    if job.optimizer == "adam":
        return tf.keras.optimizers.Adam(job.learning_rate)
    return tf.keras.optimizers.SGD(job.learning_rate, momentum=0.9)


def mean_loss(tf: Any, job: TrainingJob, outputs: Any, targets: Any) -> Any:
    """The mean loss of a batch."""
    if job.workload == "regression":
        return tf.reduce_mean(tf.square(outputs - targets))
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs))
