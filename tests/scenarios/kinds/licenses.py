"""Virtual GPUs with and without their license; a physical GPU needs none.

From reports: guests that boot before the license server answers, or whose token is missing (NVIDIA's vGPU
client licensing guide; in forums of Proxmox and KubeVirt the same: full speed for twenty minutes, then CUDA
errors).
"""

from tests.scenarios.kinds.trial import Kind, Trial

_UNLICENSED, _LICENSED, _NOT_NEEDED = (
    f'[gpu]\nvgpu_license = "{word}"\n' for word in ("unlicensed", "licensed", "not_needed")
)

KINDS = (
    Kind(
        "a virtual GPU without its license",
        (
            Trial("unlicensed", "vgpu", ("vgpu.unlicensed 0",), differs=_UNLICENSED),
            Trial("licensed", "vgpu", differs=_LICENSED),
            Trial(
                "the driver does not know licenses",
                "vgpu",
                differs='[gpu]\nmissing.not_supported = ["vgpu_license"]\n',
            ),
            *(
                Trial("unlicensed", machine, ("vgpu.unlicensed 0",), differs=_UNLICENSED)
                for machine in ("t4x1", "a10x1", "h100-vm")
            ),
            *(
                Trial("a physical GPU passed through", machine, differs=_NOT_NEEDED)
                for machine in ("t4x1", "a10x1", "h100-vm")
            ),
        ),
    ),
)
