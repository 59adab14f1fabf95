"""The messages of the kubelet's pod-resources API (v1) that GPUs need, by field number; no generated code.

Source: k8s.io/kubelet, pkg/apis/podresources/v1/api.proto (read 2026-11).
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "v1.PodResourcesLister"
_PACKAGE = "v1"
_STRING = "string"

# Each message's fields by number: the name, and the message that it repeats or a string.
_MESSAGES: dict[str, dict[int, tuple[str, str, bool]]] = {
    "ListPodResourcesRequest": {},
    "AllocatableResourcesRequest": {},
    "ListPodResourcesResponse": {1: ("pod_resources", "PodResources", True)},
    "AllocatableResourcesResponse": {1: ("devices", "ContainerDevices", True)},
    "PodResources": {
        1: ("name", _STRING, False),
        2: ("namespace", _STRING, False),
        3: ("containers", "ContainerResources", True),
    },
    "ContainerResources": {1: ("name", _STRING, False), 2: ("devices", "ContainerDevices", True)},
    "ContainerDevices": {1: ("resource_name", _STRING, False), 2: ("device_ids", _STRING, True)},
}


def message_classes() -> dict[str, Any]:
    """The class of each message, by its name."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number)
            added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
            if kind == _STRING:
                added.type = added.TYPE_STRING
            else:
                added.type, added.type_name = added.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    return file
