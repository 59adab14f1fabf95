"""A kubelet's pod-resources service on a Unix socket, as a program: real gRPC, and messages as the whole
api.proto has them.

`python fake_kubelet.py SOCKET` prints `ready` and takes one JSON object a line on its standard input, each
answered by `done`: {"pods": [...], "allocatable": [...]} sets what it tells; {"mode": "ok" | "hang" | "error"
| "garbage" | "bad text"} how; {"old": true} takes GetAllocatableResources away; {"others": 9999} adds so many
pods without a GPU. The messages are declared apart from the product's: with every field of
k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, so that what gpudiag does not declare is there to be
skipped.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# name: {number: (field, type, repeated)}; a type with a capital is a message.
MESSAGES = {
    "PodResources": {
        1: ("name", "string", 0),
        2: ("namespace", "string", 0),
        3: ("containers", "ContainerResources", 1),
        4: ("cpu_ids", "int64", 1),
        5: ("memory", "ContainerMemory", 1),
    },
    "ContainerResources": {
        1: ("name", "string", 0),
        2: ("devices", "ContainerDevices", 1),
        3: ("cpu_ids", "int64", 1),
        4: ("memory", "ContainerMemory", 1),
        5: ("dynamic_resources", "DynamicResource", 1),
    },
    "ContainerDevices": {
        1: ("resource_name", "string", 0),
        2: ("device_ids", "string", 1),
        3: ("topology", "TopologyInfo", 0),
    },
    "ContainerMemory": {
        1: ("memory_type", "string", 0),
        2: ("size", "uint64", 0),
        3: ("topology", "TopologyInfo", 0),
    },
    "TopologyInfo": {1: ("nodes", "NUMANode", 1)},
    "NUMANode": {1: ("ID", "int64", 0)},
    "DynamicResource": {
        1: ("class_name", "string", 0),
        2: ("claim_name", "string", 0),
        3: ("claim_namespace", "string", 0),
        4: ("claim_resources", "ClaimResource", 1),
    },
    "ClaimResource": {
        1: ("cdi_devices", "CDIDevice", 1),
        2: ("driver_name", "string", 0),
        3: ("pool_name", "string", 0),
        4: ("device_name", "string", 0),
    },
    "CDIDevice": {1: ("name", "string", 0)},
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {1: ("pod_resources", "PodResources", 1)},
    "AllocatableResourcesRequest": {},
    "AllocatableResourcesResponse": {
        1: ("devices", "ContainerDevices", 1),
        2: ("cpu_ids", "int64", 1),
        3: ("memory", "ContainerMemory", 1),
    },
}
HANG_SECONDS = 3600.0
GARBAGE = b"\xff\xff\xff\xff\x0fnot a message"
BAD_TEXT = b"\n\x05\n\x03\xff\xfe\xfd"  # a pod whose name is no UTF-8


class FakeKubelet:
    """The program, started; what it is told is in force when the call returns."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, **state) -> None:
        self.process.stdin.write(json.dumps(state) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()


@contextlib.contextmanager
def fake_kubelet(socket: Path):
    kubelet = FakeKubelet(socket)
    try:
        yield kubelet
    finally:
        kubelet.end()


def pod(
    namespace: str, name: str, container: str, *device_ids: str, resource: str = "nvidia.com/gpu"
) -> dict:
    """A pod of two containers, of which one has the devices, one each entry with its NUMA node, as the
    kubelet lists them.
    """
    devices = [
        {"resource_name": resource, "device_ids": [one], "topology": {"nodes": [{"ID": 0}]}}
        for one in device_ids
    ]
    memory = [{"memory_type": "memory", "size": 1 << 34, "topology": {"nodes": [{"ID": 1}]}}]
    claim = {
        "driver_name": "dra.example.com",
        "pool_name": "node",
        "device_name": "nic-0",
        "cdi_devices": [{"name": "a/b=c"}],
    }
    return {
        "name": name,
        "namespace": namespace,
        "containers": [
            {
                "name": "sidecar",
                "cpu_ids": [7],
                "devices": [{"resource_name": "rdma/hca", "device_ids": ["mlx5_0"]}],
            },
            {
                "name": container,
                "devices": devices,
                "cpu_ids": [0, 1, 2, 1000],
                "memory": memory,
                "dynamic_resources": [
                    {"claim_name": "c", "claim_namespace": namespace, "claim_resources": [claim]}
                ],
            },
        ],
    }


# --- the program


def message_classes() -> dict:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="v1", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind[0].isupper():
                added.type, added.type_name = 11, f".v1.{kind}"
            else:
                added.type = {"string": 9, "int64": 3, "uint64": 4}[kind]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in MESSAGES
    }


def main(path: str) -> None:
    import grpc
    from google.protobuf.json_format import ParseDict

    classes = message_classes()
    state = {"mode": "ok", "pods": [], "allocatable": None, "old": False, "others": 0}
    other = pod(
        "default", "web-7d9c5b7f9d-x2k4l", "nginx", *(f"vf-{n}" for n in range(8)), resource="intel.com/sriov"
    )
    filler = ParseDict({"pod_resources": [other]}, classes["ListPodResourcesResponse"]()).SerializeToString()
    encoded: dict[str, bytes] = {}

    def encode() -> None:
        listed = ParseDict({"pod_resources": state["pods"]}, classes["ListPodResourcesResponse"]())
        encoded["List"] = filler * state["others"] + listed.SerializeToString()  # so messages are joined
        devices = [
            {"resource_name": "nvidia.com/gpu", "device_ids": [one]} for one in state["allocatable"] or ()
        ]
        offered = ParseDict(
            {"devices": devices, "cpu_ids": [0, 1]}, classes["AllocatableResourcesResponse"]()
        )
        encoded["GetAllocatableResources"] = offered.SerializeToString()

    def answer(method: str):
        def answered(request: bytes, context) -> bytes:
            classes["ListPodResourcesRequest"].FromString(request)
            if state["mode"] == "hang":
                time.sleep(HANG_SECONDS)
            if state["mode"] == "error":
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit\nof the kubelet")
            if method != "List" and state["old"]:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method GetAllocatableResources")
            return {"garbage": GARBAGE, "bad text": BAD_TEXT}.get(state["mode"], encoded[method])

        return grpc.unary_unary_rpc_method_handler(answered)

    methods = {name: answer(name) for name in ("List", "GetAllocatableResources")}
    server = grpc.server(ThreadPoolExecutor(16), options=(("grpc.max_send_message_length", -1),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),))
    server.add_insecure_port(f"unix:{path}")
    encode()
    server.start()
    print("ready", flush=True)
    for line in sys.stdin:
        state |= json.loads(line)
        encode()
        print("done", flush=True)
    os._exit(0)  # calls that hang have threads that do not end


if __name__ == "__main__":
    main(sys.argv[1])
