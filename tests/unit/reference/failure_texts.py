"""Texts of known failures as people meet them, each with the id by which it must be recognised.

Those of torch were taken from torch 2.13.0 with gloo, made to fail; those of CUDA, NCCL and the kernel
are facts of their sources and of public issues, shortened.
"""

# The twenty failures that cost people most time, in the order of their list.
TWENTY = (
    (
        1,
        "rendezvous.name_unresolved",
        "[W1120 23:05:01.8 socket.cpp:764] [c10d] The IPv6 network addresses of (no-such-host.invalid, 29500) "
        "cannot be retrieved (gai error: -2 - Name or service not known).",
    ),
    (
        2,
        "rendezvous.unreachable",
        "[E1120 23:05:10.3 socket.cpp:1028] [c10d] The client socket has timed out after 4000ms while trying "
        "to connect to (127.0.0.1, 36575).",
    ),
    (3, "network.no_route", "socket.c:451 NCCL WARN Connect to 10.0.0.7<40321> failed : No route to host"),
    (
        4,
        "rendezvous.port_in_use",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. port: 44479, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ),
    (
        5,
        "rendezvous.foreign_service",
        "RuntimeError: Ping failed, invalid value returned from server. Expected: 5164, Got: 1347703880",
    ),
    (
        6,
        "rendezvous.missing_ranks",
        "torch.distributed.DistStoreError: Timed out after 5 seconds waiting for clients. 1/3 clients joined.",
    ),
    (
        7,
        "rendezvous.duplicate_rank",
        "DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//cpu//0/2",
    ),
    (
        8,
        "launch.variable_unset",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
    ),
    (8, "launch.variable_unset", "KeyError: 'LOCAL_RANK'"),
    (9, "launch.local_rank_argument", "train.py: error: unrecognized arguments: --local-rank=0"),
    (9, "launch.local_rank_argument", "train.py: error: unrecognized arguments: --local_rank=3"),
    (
        10,
        "network.wrong_interface",
        "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address "
        "for: ethX",
    ),
    (
        10,
        "network.wrong_interface",
        "a1:7:7 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
    ),
    (
        10,
        "network.wrong_interface",
        "RuntimeError: Gloo connectFullMesh failed with [/gloo/pair.cc:144] no error",
    ),
    (
        10,
        "network.address_not_reached",
        "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:277] ss1.ss_family == ss2.ss_family. 2 vs 10.",
    ),
    (
        10,
        "network.address_not_reached",
        "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: "
        "Connection refused, remote=[127.0.1.1]:41356$2",
    ),
    (
        11,
        "nccl.duplicate_gpu",
        "init.cc:709 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5d000",
    ),
    (
        12,
        "torch.device_guessed",
        "[rank1]:[W ProcessGroupNCCL.cpp:4115] [PG ID 0 Rank 1] using GPU 1 as device used by this process is "
        "currently unknown. This can potentially cause a hang",
    ),
    (
        13,
        "nccl.version_mismatch",
        "NCCL WARN Mismatched NCCL version detected : rank 0 version 22105 rank 1 version 21805",
    ),
    (
        14,
        "host.shared_memory_small",
        "shmutils.cc:87 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x7Yk2q (size 9637888)",
    ),
    (
        14,
        "host.shared_memory_small",
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory.",
    ),
    (14, "host.locked_memory_limit", "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"),
    (14, "host.open_files_limit", "OSError: [Errno 24] Too many open files"),
    (
        15,
        "gpu.peer_access_broken",
        "NCCL WARN Cuda failure 'peer access is not supported between these two devices'",
    ),
    (
        15,
        "nvlink.peer_access_refused",
        "n0:1000:1010 [0] graph/paths.cc:336 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0. This "
        "should not be the case given their connectivity, and is probably due to a hardware issue.",
    ),
    (
        16,
        "network.rdma_error",
        "NET/IB : Got completion from peer 10.0.0.7<4791> with error 12, opcode 0, len 0, vendor err 129",
    ),
    (
        17,
        "nvlink.multicast_failed",
        "transport/nvls.cc:157 NCCL WARN Cuda failure 401 'the operation cannot be done'",
    ),
    (17, "nvlink.multicast_failed", "NCCL WARN NVLS multicast bind failed on 8 ranks"),
    (
        18,
        "collective.mismatched",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[4])",
    ),
    (
        18,
        "collective.mismatched",
        "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 400000 vs "
        "4. Received data size doesn't match expected size.",
    ),
    (
        18,
        "collective.timed_out",
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to "
        "complete",
    ),
    (
        19,
        "rank.connection_lost",
        "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:47833: Connection reset by peer.",
    ),
    (19, "rank.connection_lost", "gloo: Connection closed by peer [10.0.0.7]:31234"),
    (
        19,
        "collective.timed_out",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=331, OpType=ALLREDUCE, "
        "Timeout(ms)=600000) ran for 600030 milliseconds before timing out.",
    ),
    (
        19,
        "rank.killed",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
    ),
    (19, "rank.killed", "  exitcode  : -9 (pid: 4242)"),
    (
        20,
        "training.unused_parameters",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
    ),
    (
        20,
        "training.uneven_inputs",
        "RuntimeError: Detected at least one rank that has exhausted inputs. Throwing across all ranks.",
    ),
)

OTHERS = (
    (
        "cuda.system_not_ready",
        "Error 802: system not yet initialized (Triggered internally at CUDAFunctions.cpp:108)",
    ),
    ("cuda.driver_mismatch", "Error 803: system has unsupported display driver / cuda driver combination"),
    ("cuda.forward_compatibility", "Error 804: forward compatibility was attempted on non supported HW"),
    ("cuda.driver_too_old", "CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
    ("cuda.driver_too_old", "The NVIDIA driver on your system is too old (found version 11040)."),
    ("cuda.device_unavailable", "CUDA error: all CUDA-capable devices are busy or unavailable"),
    ("cuda.device_unavailable", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("cuda.no_device", "RuntimeError: No CUDA GPUs are available"),
    ("cuda.no_device", "CUDA error: no CUDA-capable device is detected"),
    ("cuda.invalid_device", "CUDA error: invalid device ordinal"),
    (
        "cuda.unknown_error",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
    ),
    ("cuda.unknown_error", "Failed to initialize NVML: Unknown Error"),
    (
        "cuda.out_of_memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79 GiB",
    ),
    ("cuda.no_kernel_image", "CUDA error: no kernel image is available for execution on the device"),
    (
        "cuda.no_kernel_image",
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    ),
    ("cuda.uncorrectable_ecc", "CUDA error: uncorrectable ECC error encountered"),
    ("cuda.illegal_address", "CUDA error: an illegal memory access was encountered"),
    ("cuda.device_assert", "RuntimeError: CUDA error: device-side assert triggered"),
    ("cuda.launch_failure", "CUDA error: unspecified launch failure"),
    ("cuda.forked", "RuntimeError: Cannot re-initialize CUDA in forked subprocess."),
    ("torch.without_cuda", "AssertionError: Torch not compiled with CUDA enabled"),
    ("torch.without_cuda", "RuntimeError: Distributed package doesn't have NCCL built in"),
    ("driver.version_mismatch", "Failed to initialize NVML: Driver/library version mismatch"),
    ("driver.not_loaded", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
    ("gpu.lost", "Unable to determine the device handle for GPU0000:5D:00.0: GPU is lost. Reboot the system"),
    (
        "nccl.unhandled",
        "torch.distributed.DistBackendError: NCCL error: unhandled cuda error, NCCL version 2.21.5",
    ),
    (
        "nccl.warning",
        "a1:7:9 [0] graph/topo.cc:680 NCCL WARN Could not find real path of /sys/class/net/eth0/device",
    ),
    ("torchrun.child_failed", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
    ("host.out_of_memory_kill", "[ 42.1] Out of memory: Killed process 4242 (python3) total-vm:1kB"),
    (
        "host.out_of_memory_kill",
        "Memory cgroup out of memory: Killed process 17 (pt_main_thread) total-vm:1kB",
    ),
    (
        "host.out_of_memory_kill",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=42.0. Some of the step",
    ),
    ("host.soft_lockup", "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [nvidia-smi:99]"),
    ("host.blocked_task", "INFO: task python3:4711 blocked for more than 120 seconds."),
    (
        "pcie.fatal_error",
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction",
    ),
    ("host.memory_fault", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0"),
)

# What healthy jobs print, and what looks like a failure and is none.
HARMLESS = (
    "[rank0]: step 1200 loss 2.31 lr 1e-4",
    "NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>",
    "NCCL INFO NET/IB : No device found.",
    "NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 - Init COMPLETE",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08",
    "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
    "Using port 29500 for the rendezvous",
    "saving checkpoint to /data/run/checkpoint-802.pt",
    "cat: write error: Broken pipe",
)
