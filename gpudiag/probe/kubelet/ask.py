"""Ask the kubelet which GPUs it has given to which containers, and which it may give.

The only gate to grpc. It has threads, and the kubelet may hang: so in a child (sampler/kubelet.py), with
deadlines.
"""

import os
import socket
from typing import Any

from gpudiag.installed import install_command
from gpudiag.model.owners import PodDevice, PodDevices
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.untrusted_text import escape_controls

DEADLINE_SECONDS = 5.0
_AS_ROOT = "in Kubernetes: deploy/kubernetes/pods; not wanted: --kubelet-socket off"
# A node's kubelet lists all its pods, also those without a GPU; grpc's own limit of 4 MiB is too little for
# 10,000.
_MAX_BYTES = 64 << 20
_MAX_DEVICES = 4096  # MIG instances and shares of 16 GPUs are far less
_MAX_NAME_CHARACTERS = 253  # of a name in Kubernetes (RFC 1123)
_VENDOR = (
    "nvidia.com/"  # gpu, gpu.shared, mig-1g.10gb, and the names that the device plugin is set to give them
)
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_BYTES),
    # Without it grpc sends the socket's path, escaped, as the authority, which names no host.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # no backoff from an earlier call: each asks afresh
)


def ask_kubelet(path: str, deadline_seconds: float = DEADLINE_SECONDS) -> Reading[PodDevices]:
    """The GPUs that the kubelet behind that socket has given out, or why it does not answer."""
    no_socket = find_obstacle(path)
    if no_socket is not None:
        return no_socket
    try:
        import grpc

        from gpudiag.probe.kubelet.messages import message_classes
    except ImportError as error:
        return Missing(MissingReason.SOURCE_ABSENT, f"{error}: {install_command('kubernetes')}")

    messages = message_classes()
    with grpc.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
        try:
            listed = _call(channel, messages, "List", "ListPodResources", deadline_seconds)
        except grpc.RpcError as error:
            return _why_not(path, error, grpc.StatusCode, deadline_seconds)
        try:
            offered = _call(
                channel, messages, "GetAllocatableResources", "AllocatableResources", deadline_seconds
            )
        except grpc.RpcError:  # a kubelet before 1.23 has no such call
            offered = None
    return _read(listed, offered)


def find_obstacle(path: str) -> Missing | None:
    """Why nobody can be asked at that path; None where a socket takes connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as tried:
        try:
            tried.connect(path)
        except FileNotFoundError:
            return Missing(MissingReason.SOURCE_ABSENT, f"{path} is not there")
        except PermissionError:
            return Missing(MissingReason.NO_PERMISSION, f"{path} answers root alone ({_AS_ROOT})")
        except BlockingIOError:  # its queue is full: the call's deadline decides
            return None
        except OSError as error:
            return Missing(MissingReason.ERROR, f"{path}: {error.strerror or error}")
    return None


def _call(channel: Any, messages: dict[str, Any], method: str, name: str, deadline_seconds: float) -> Any:
    """The answer to one call without arguments. Raises grpc.RpcError: there is none in time, or readable."""
    from gpudiag.probe.kubelet.messages import SERVICE

    call = channel.unary_unary(
        f"/{SERVICE}/{method}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=messages[f"{name}Response"].FromString,
    )
    return call(messages[f"{name}Request"](), timeout=deadline_seconds)


def _why_not(path: str, error: Any, codes: Any, deadline_seconds: float) -> Missing:
    code, words = error.code(), escape_controls(error.details() or "")[:_MAX_NAME_CHARACTERS]
    if code is codes.DEADLINE_EXCEEDED:
        return Missing(MissingReason.TIMED_OUT, f"{path} gave no answer within {deadline_seconds:g} s")
    if code is codes.UNAVAILABLE:
        return find_obstacle(path) or Missing(MissingReason.ERROR, f"{path} does not speak gRPC: {words}")
    return Missing(MissingReason.ERROR, f"{path} answered {code.name}: {words}")


def _read(listed: Any, offered: Any) -> PodDevices:
    devices = [
        PodDevice(_name(device_id), _name(pod.namespace), _name(pod.name), _name(container.name))
        for pod in listed.pod_resources
        for container in pod.containers
        for given in container.devices
        if given.resource_name.startswith(_VENDOR)
        for device_id in given.device_ids
    ]
    if offered is None:
        return PodDevices(tuple(devices[:_MAX_DEVICES]))
    ids = [
        _name(device_id)
        for given in offered.devices
        if given.resource_name.startswith(_VENDOR)
        for device_id in given.device_ids
    ]
    return PodDevices(tuple(devices[:_MAX_DEVICES]), frozenset(ids[:_MAX_DEVICES]))


def _name(text: str) -> str:
    return escape_controls(text[:_MAX_NAME_CHARACTERS])


def default_socket(root: str) -> str:
    """Where the kubelet listens on a machine with that root."""
    return os.path.join(root, "var/lib/kubelet/pod-resources/kubelet.sock")


def socket_of(path: str | None, default: str) -> str | None:
    """The socket to ask: that path, else the default; None for `off` or an empty path."""
    if path is None:
        return default
    return None if path in ("", "off") else os.path.abspath(path)
