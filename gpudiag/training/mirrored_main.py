"""The entry point of `gpudiag train --strategy mirrored`: TensorFlow's MirroredStrategy in one process.

It emits the facts of torch's ranks, replica by replica, and compares with plain TensorFlow: random numbers
and models differ between frameworks.
"""

import hashlib
import math
import os
import resource
import time
from collections.abc import Mapping
from typing import Any

from gpudiag.model.codec import decode, encode
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.training import RankEpochEnd, RankProof, RankSpeed, RankStart, RankStep, TensorFact
from gpudiag.ranks.rank.context import RankContext
from gpudiag.ranks.stages import INIT, MEASURE, VERIFY, WARMUP
from gpudiag.training.training_job import TrainingJob

# As precision.py derives it for float32; it needs torch, so it cannot be imported here.
_TOLERANCE = 256 * 2.0**-24
_GPU_FACTOR = 4.0
_ADAM_FACTOR = 16.0
_SMALL_GRADIENT = 0.05  # as trainer.py explains it
_WARMUP_STEPS = 3
_CPU_REPLICAS = Missing(MissingReason.NOT_SUPPORTED, "the replicas work on the CPU")
_NOT_WRITTEN = Missing(MissingReason.NOT_ASKED, "one process: its checkpoint is that of any TensorFlow model")


def facts(
    found: Mapping[str, Any], expected: Mapping[str, Any], floor: float = 0.0
) -> tuple[TensorFact, ...]:
    """Each array's digest, and its error over the norm of all of `expected`, or over a larger `floor`."""
    scale = max(norm(expected), floor) or 1.0
    return tuple(
        TensorFact(name, digest(value), finite(norm({name: value - expected[name]}) / scale))
        for name, value in found.items()
    )


def digest(value: Any) -> str:
    """16 hexadecimal digits of the array's bits."""
    return hashlib.sha256(value.tobytes()).hexdigest()[:16]


def norm(values: Mapping[str, Any]) -> float:
    """The L2 norm of all arrays together."""
    return math.sqrt(sum(float((value.astype("float64") ** 2).sum()) for value in values.values()))


def difference(found: Mapping[str, Any], expected: Mapping[str, Any], floor: float = 0.0) -> float | None:
    """The L2 norm of the difference over that of `expected`, or over a larger `floor`; None if not finite."""
    size = norm({name: found[name].astype("float64") - expected[name] for name in expected})
    return finite(size / (max(norm(expected), floor) or 1.0))


def projection(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float | None:
    """How many times `expected` is in `found`, by projection; None if not finite."""
    product = sum(float((found[name].astype("float64") * expected[name]).sum()) for name in expected)
    square = norm(expected) ** 2
    return finite(product / square) if square else None


def finite(number: float) -> float | None:
    """The number, or None if it is infinite or NaN."""
    return number if math.isfinite(number) else None


def start_strategy(tf: Any, job: TrainingJob) -> Any:
    """MirroredStrategy on as many devices as asked for: GPUs, or the CPU divided into logical ones."""
    if job.backend == "nccl":
        return tf.distribute.MirroredStrategy([f"/gpu:{replica}" for replica in range(job.workers)])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * job.workers)
    return tf.distribute.MirroredStrategy([f"/cpu:{replica}" for replica in range(job.workers)])


def build_model(tf: Any, job: TrainingJob, inputs: Any) -> Any:
    """The workload's model, initialised from the seed."""
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


def run(context: RankContext) -> Mapping[str, Any]:
    """`{"finished": True}`, at the end of the process; `context.arguments` is an encoded TrainingJob."""
    job = decode(TrainingJob, context.arguments)
    context.progress.enter_stage(INIT)
    training = _MirroredTraining(job, context)
    context.progress.enter_stage(VERIFY)
    training.emit_start()
    for step in range(job.steps):
        training.verify_step(step)
    training.prove()
    context.progress.enter_stage(WARMUP)
    training.time_steps(min(_WARMUP_STEPS, job.steps))
    context.progress.enter_stage(MEASURE)
    training.measure()
    return {"finished": True}


class _MirroredTraining:
    """The mirrored model and the plain one, step by step."""

    def __init__(self, job: TrainingJob, context: RankContext) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if job.backend != "nccl":
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        import tensorflow

        self._tf: Any = tensorflow
        self._job = job
        self._progress = context.progress
        self._strategy = start_strategy(self._tf, job)
        self._inputs, self._targets = make_data(self._tf, job)
        with self._strategy.scope():
            self._mirrored = build_model(self._tf, job, self._inputs)
            self._mirrored_optimizer = make_optimizer(self._tf, job)
            self._mirrored_optimizer.build(self._mirrored.trainable_variables)
        self._plain = build_model(self._tf, job, self._inputs)
        self._plain.set_weights(self._mirrored.get_weights())
        self._plain_optimizer = make_optimizer(self._tf, job)
        self._plain_optimizer.build(self._plain.trainable_variables)
        self._start = self._plain.get_weights()
        self._replicas = int(self._strategy.num_replicas_in_sync)
        self._train = self._tf.function(self._train_replicas)
        self._train_plain = self._tf.function(self._plain_step)
        self._small_gradient = 0.0

    def emit_start(self) -> None:
        """Emit each replica's start."""
        whole = sum(int(weights.size) for weights in self._start)
        factor = 1.0 if self._job.backend != "nccl" else _GPU_FACTOR
        adam = _ADAM_FACTOR if self._job.optimizer == "adam" else 1.0
        for replica in range(self._replicas):
            start = RankStart(
                rank=replica,
                world_size=self._replicas,
                workers=len({str(device) for device in self._strategy.extended.worker_devices}),
                framework=f"tensorflow {self._tf.__version__}",
                device=str(self._strategy.extended.worker_devices[replica]),
                device_uuid=_CPU_REPLICAS,
                parameters=self._describe(replica, self._start),
                buffers=(),
                parameters_total=whole,
                parameters_here=sum(int(value.size) for value in self._weights_of(replica)),
                steps_per_epoch=self._job.steps_per_epoch,
                sample_count=self._job.sample_count,
                tolerance_gradient=_TOLERANCE * factor,
                tolerance_parameter=_TOLERANCE * factor * adam,
            )
            self._emit("start", start)

    def verify_step(self, step: int) -> None:
        """Train one step on the replicas and on the plain model, and emit each replica's step."""
        self._progress.before_iteration(step)
        epoch = step // self._job.steps_per_epoch
        shards = self._shards(step)
        losses, gradients = self._train(*self._distributed(shards))
        losses = [float(value) for value in self._local(losses)]
        expected_loss, expected = self._train_plain(*self._batch([one for shard in shards for one in shard]))
        names = [variable.path for variable in self._plain.trainable_variables]
        right = {name: value.numpy() for name, value in zip(names, expected, strict=True)}
        self._small_gradient = self._small_gradient or _SMALL_GRADIENT * norm(right)
        by_replica = [
            [self._local(gradient)[replica].numpy() for gradient in gradients]
            for replica in range(self._replicas)
        ]
        for replica in range(self._replicas):
            found = dict(zip(names, by_replica[replica], strict=True))
            weights = dict(zip(names, self._weights_of(replica), strict=True))
            reference = dict(zip(names, self._plain.get_weights(), strict=True))
            self._emit(
                "step",
                RankStep(
                    rank=replica,
                    step=step,
                    epoch=epoch,
                    samples=tuple(shards[replica]),
                    loss=finite(losses[replica]),
                    reference_loss=finite(float(expected_loss)),
                    gradients=facts(found, right, self._small_gradient),
                    gradient_error=difference(found, right, self._small_gradient),
                    gradient_scale=projection(found, right),
                    own_gradient_error=None,
                    parameters=facts(weights, reference),
                    parameter_error=difference(weights, reference),
                    buffers=(),
                ),
            )
        last = step == self._job.steps - 1
        if last or (step + 1) % self._job.steps_per_epoch == 0:
            steps = step % self._job.steps_per_epoch + 1
            for replica in range(self._replicas):
                self._emit("epoch_end", RankEpochEnd(replica, epoch, steps, agreed=True))

    def prove(self) -> None:
        """Emit whether the model learned, and whether a repeat from the same weights gave the same bits."""
        after = self._mirrored.get_weights()
        digests = [digest(value) for value in after]
        before_loss, after_loss = self._evaluate(self._start), self._evaluate(after)
        whole = sum(
            int(self._tf.size(value)) for value in self._plain_optimizer.variables if value.shape.rank
        )
        repeated = self._repeat()
        for replica in range(self._replicas):
            kept = [
                self._local_value(value, replica)
                for value in self._mirrored_optimizer.variables
                if value.shape.rank
            ]
            proof = RankProof(
                rank=replica,
                loss_before=finite(before_loss),
                loss_after=finite(after_loss),
                moved=any(not (a == b).all() for a, b in zip(after, self._start, strict=True)),
                optimizer_state_here=sum(int(value.size) for value in kept),
                optimizer_state_whole=whole,
                checkpoint_identical=_NOT_WRITTEN,
                repeat_identical=repeated == digests,
            )
            self._emit("proof", proof)

    def time_steps(self, count: int) -> list[float]:
        """Seconds of each of that many steps, with their data."""
        times = []
        for step in range(count):
            before = time.perf_counter()
            losses, _ = self._train(*self._distributed(self._shards(step)))
            for loss in self._local(losses):
                loss.numpy()
            times.append(time.perf_counter() - before)
        return times

    def measure(self) -> None:
        """Emit the timed steps; one process shows no separate parts, and has no ranks that wait."""
        started = time.perf_counter()
        for step in range(self._job.steps):
            self._distributed(self._shards(step))
        data = (time.perf_counter() - started) / self._job.steps
        times = self.time_steps(self._job.steps)
        alone = self._time_alone()
        for replica in range(self._replicas):
            speed = RankSpeed(
                rank=replica,
                steps=len(times),
                samples=self._job.batch_size,
                step_seconds=tuple(times),
                data_seconds=data,
                forward_seconds=None,
                backward_seconds=None,
                optimizer_seconds=None,
                own_seconds_p50=data,
                plain_seconds=alone,
                alone_samples_per_second=self._job.batch_size / alone if replica == 0 else None,
                host_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                device_memory_bytes=_CPU_REPLICAS,
            )
            self._emit("speed", speed)

    def _time_alone(self) -> float:
        """Mean seconds of a plain step on one replica's samples."""
        batches = [self._batch(self._shards(step)[0]) for step in range(self._job.steps)]
        self._train_plain(*batches[0])[0].numpy()  # traces the function for this size
        before = time.perf_counter()
        for batch in batches:
            self._train_plain(*batch)[0].numpy()
        return (time.perf_counter() - before) / self._job.steps

    def _repeat(self) -> list[str]:
        """The digests of the weights after all steps are repeated from the same start."""
        after, plain_after = self._mirrored.get_weights(), self._plain.get_weights()
        state = [value.numpy() for value in self._mirrored_optimizer.variables]
        self._mirrored.set_weights(self._start)
        for value in self._mirrored_optimizer.variables:
            if value.path.rpartition("/")[2] != "learning_rate":
                value.assign(self._tf.zeros_like(value))
        for step in range(self._job.steps):
            self._train(*self._distributed(self._shards(step)))
        repeated = [digest(value) for value in self._mirrored.get_weights()]
        self._mirrored.set_weights(after)
        self._plain.set_weights(plain_after)
        for value, old in zip(self._mirrored_optimizer.variables, state, strict=True):
            value.assign(old)
        return repeated

    def _train_replicas(self, inputs: Any, targets: Any) -> Any:
        """One step on every replica; its losses, and the gradients that every replica got."""
        tf = self._tf

        def train(samples: Any, labels: Any) -> Any:
            variables = self._mirrored.trainable_variables
            with tf.GradientTape() as tape:
                loss = mean_loss(tf, self._job, self._mirrored(samples, training=True), labels)
                shared = loss / self._replicas
            gradients = tape.gradient(shared, variables)
            context = tf.distribute.get_replica_context()
            averaged = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            # The sum of the shares is the mean; the optimizer itself sums the gradients that it is given.
            self._mirrored_optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss, averaged

        return self._strategy.run(train, args=(inputs, targets))

    def _plain_step(self, inputs: Any, targets: Any) -> Any:
        with self._tf.GradientTape() as tape:
            loss = mean_loss(self._tf, self._job, self._plain(inputs, training=True), targets)
        variables = self._plain.trainable_variables
        gradients = tape.gradient(loss, variables)
        self._plain_optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss, gradients

    def _shards(self, step: int) -> list[list[int]]:
        """The samples of each replica: a new order every epoch, from the seed."""
        import random

        epoch, place = divmod(step, self._job.steps_per_epoch)
        order = list(range(self._job.sample_count))
        random.Random(self._job.seed * 1000 + epoch).shuffle(order)  # noqa: S311 - reproducible on purpose
        size = self._job.batch_size
        first = place * size * self._replicas
        return [
            order[first + size * replica : first + size * (replica + 1)] for replica in range(self._replicas)
        ]

    def _distributed(self, shards: list[list[int]]) -> tuple[Any, Any]:
        batches = [self._batch(shard) for shard in shards]
        distribute = self._strategy.experimental_distribute_values_from_function
        return tuple(
            distribute(lambda context, part=part: batches[context.replica_id_in_sync_group][part])
            for part in range(2)
        )

    def _batch(self, samples: list[int]) -> tuple[Any, Any]:
        return self._tf.gather(self._inputs, samples), self._tf.gather(self._targets, samples)

    def _local(self, value: Any) -> tuple[Any, ...]:
        return tuple(self._strategy.experimental_local_results(value))

    def _local_value(self, variable: Any, replica: int) -> Any:
        return self._local(
            getattr(variable, "value", variable) if not hasattr(variable, "_value") else variable._value
        )[replica].numpy()

    def _weights_of(self, replica: int) -> list[Any]:
        return [self._local_value(variable, replica) for variable in self._mirrored.trainable_variables]

    def _describe(self, replica: int, expected: list[Any]) -> tuple[TensorFact, ...]:
        names = [variable.path for variable in self._plain.trainable_variables]
        found = dict(zip(names, self._weights_of(replica), strict=True))
        return facts(found, dict(zip(names, expected, strict=True)))

    def _evaluate(self, weights: list[Any]) -> float:
        kept = self._plain.get_weights()
        self._plain.set_weights(weights)
        loss = float(mean_loss(self._tf, self._job, self._plain(self._inputs), self._targets))
        self._plain.set_weights(kept)
        return loss

    def _emit(self, kind: str, fact: Any) -> None:
        self._progress.emit({"kind": kind, **encode(fact)})
