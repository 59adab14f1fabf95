import pytest

from gpudiag.probe.host.processes import read_container

ID = "4f5c9e1b" * 8
DOCKER_MOUNT = f"800 700 8:1 /var/lib/docker/containers/{ID}/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
POD_MOUNT = "800 700 8:1 /var/lib/kubelet/pods/0a1b-2c3d/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
PODMAN_MOUNT = f"800 700 0:25 /containers/storage/overlay-containers/{ID}/userdata/hosts /etc/hosts rw - tmpfs tmpfs rw\n"
# A host that runs docker mounts the containers' layers, and is in none.
HOST_MOUNTS = "900 30 0:50 / /var/lib/docker/overlay2/abc/merged rw - overlay overlay rw\n"


@pytest.fixture
def machine(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("DOT", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return read_container(str(tmp_path))

    return write


def test_a_host_is_in_no_container(machine):
    assert (
        machine(proc__self__cgroup="0::/user.slice/session-1.scope\n", proc__self__mountinfo=HOST_MOUNTS)
        is None
    )


def test_a_machine_that_shows_nothing_is_in_no_container(machine):
    assert machine() is None


@pytest.mark.parametrize(
    ("files", "runtime"),
    [
        ({"proc__self__cgroup": f"12:devices:/docker/{ID}\n"}, "docker"),
        ({"proc__self__cgroup": "0::/\n", "proc__self__mountinfo": DOCKER_MOUNT}, "docker"),
        ({"proc__self__cgroup": f"0::/system.slice/docker-{ID}.scope\n"}, "docker"),
        ({"proc__self__cgroup": "0::/\n", "proc__self__mountinfo": PODMAN_MOUNT}, "podman"),
        ({"proc__self__cgroup": f"11:memory:/kubepods/burstable/pod0a/{ID}\n"}, "kubernetes"),
        (
            {"proc__self__cgroup": f"0::/kubepods.slice/kubepods-pod0a.slice/cri-containerd-{ID}.scope\n"},
            "kubernetes",
        ),
        ({"proc__self__cgroup": f"5:cpu:/default/{ID}/containerd\n"}, "containerd"),
    ],
)
def test_the_cgroup_or_the_mounts_name_the_runtime_and_the_id(machine, files, runtime):
    container = machine(**files)
    assert (container["runtime"], container["container_id"]) == (runtime, ID)


@pytest.mark.parametrize(
    ("files", "runtime"),
    [
        ({"DOTdockerenv": ""}, "docker"),
        ({"run__DOTcontainerenv": 'engine="podman-5.0"\n'}, "podman"),
        ({"proc__self__cgroup": "0::/\n", "proc__self__mountinfo": POD_MOUNT}, "kubernetes"),
        ({"DOTdockerenv": "", "run__secrets__kubernetes.io__token": "x"}, "kubernetes"),
        ({"proc__self__cgroup": "1:name=systemd:/lxc/c1\n"}, "lxc"),
        ({"proc__1__environ": "PATH=/bin\0container=lxc\0"}, "lxc"),
        ({"run__systemd__container": "systemd-nspawn\n"}, "systemd-nspawn"),
    ],
)
def test_a_mark_names_the_runtime_where_no_id_is_told(machine, files, runtime):
    container = machine(**files)
    assert container["runtime"] == runtime
    assert container["missing"]["container_id"] == "source_absent"
