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


# --- a virtual machine that runs the files of a container's image

FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h
ROOT = "27 1 253:0 / / rw,relatime - ext4 /dev/vda rw\n"
OVERLAY_ROOT = "27 1 0:50 / / rw,relatime - overlay overlay rw\n"
IMAGE_MARKS = {
    "/.dockerenv": ({"DOTdockerenv": ""}, "docker"),
    "/run/.containerenv": ({"run__DOTcontainerenv": ""}, "podman"),
    "/.singularity.d": ({"DOTsingularity.d__env": ""}, "apptainer"),
    "/run/systemd/container": ({"run__systemd__container": "docker\n"}, "docker"),
    "container= of process 1": ({"proc__1__environ": "PATH=/bin\0container=lxc\0"}, "lxc"),
}


def kernel_view(tmp_path, namespace=FIRST_NAMESPACE, *, ours=ROOT, first=ROOT, thread="kthreadd\n"):
    """What the kernel shows: a namespace of processes, the root of this process and of process 1, and process
    2.
    """
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(namespace)
    files = {"proc__self__mountinfo": ours, "proc__1__mountinfo": first, "proc__2__comm": thread}
    return {name: text for name, text in files.items() if text is not None}


@pytest.mark.parametrize("sign", IMAGE_MARKS)
@pytest.mark.parametrize("root", [ROOT, OVERLAY_ROOT])
def test_the_marks_of_an_image_make_no_container_of_a_machine(machine, tmp_path, sign, root):
    assert machine(**IMAGE_MARKS[sign][0], **kernel_view(tmp_path, ours=root, first=root)) is None


@pytest.mark.parametrize("sign", IMAGE_MARKS)
@pytest.mark.parametrize(
    "different",
    [
        {"namespace": "pid:[4026532541]"},  # any runtime with processes of its own
        {"ours": OVERLAY_ROOT},  # Apptainer; docker run --pid=host
        {"thread": "bash\n"},  # a kernel of its own that copies the number (gVisor)
        {"first": None},  # what process 1 sees is hidden
    ],
)
def test_a_mark_counts_where_something_is_between_the_machine_and_the_process(
    machine, tmp_path, sign, different
):
    files, runtime = IMAGE_MARKS[sign]
    container = machine(**files, **kernel_view(tmp_path, **different))
    assert (container["runtime"], container["sign"]) == (runtime, sign)


@pytest.mark.parametrize(
    ("files", "sign"),
    [
        ({"proc__self__cgroup": f"0::/system.slice/docker-{ID}.scope\n"}, "/proc/self/cgroup"),
        (
            {"proc__self__cgroup": "0::/\n", "proc__self__mountinfo": ROOT + DOCKER_MOUNT},
            "/proc/self/mountinfo",
        ),
    ],
)
def test_what_the_kernel_says_of_the_process_counts_in_the_first_namespace_too(
    machine, tmp_path, files, sign
):
    """As under `docker run --pid=host`, where process 1 is the machine's own."""
    container = machine(**{**kernel_view(tmp_path), **files})
    assert (container["runtime"], container["container_id"], container["sign"]) == ("docker", ID, sign)


VARIABLE = {"proc__1__environ": "container=docker\0", "proc__self__cgroup": "0::/\n"}


@pytest.mark.parametrize("word", ["docker", "podman", "oci"])
def test_a_variable_that_images_set_is_no_sign_beside_an_ordinary_root(machine, word):
    """Where nothing says which namespace it is: those runtimes leave a file too, or stack layers."""
    files = {"proc__1__environ": f"container={word}\0", "proc__self__mountinfo": ROOT}
    assert machine(**files) is None


def test_the_variable_counts_beside_layers_and_for_runtimes_that_set_it_themselves(machine):
    container = machine(**VARIABLE, proc__self__mountinfo=OVERLAY_ROOT)
    assert (container["runtime"], container["sign"]) == ("docker", "container= of process 1")


@pytest.mark.parametrize("word", ["lxc", "systemd-nspawn"])
def test_runtimes_that_set_the_variable_themselves_need_no_layers(machine, word):
    container = machine(proc__1__environ=f"container={word}\0", proc__self__mountinfo=ROOT)
    assert container["runtime"] == word
