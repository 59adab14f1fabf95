"""The recipe of a receipt: make it of a report, sign it, write its two files; and verify one.

A signature is OpenSSH's (`ssh-keygen -Y sign`, PROTOCOL.sshsig) over the whole file, in a file beside it.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from gpudiag import __version__
from gpudiag.checks import BUILTIN
from gpudiag.checks.ranks.speed_list import speeds_of
from gpudiag.checks.subjects import name_device
from gpudiag.compat import UTC
from gpudiag.errors import GpudiagError, UnknownSchemaError, UsageError
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.documents import loads
from gpudiag.model.finding import Outcome
from gpudiag.model.host_state import HostState
from gpudiag.model.plan import PreflightPlan
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.receipt import (
    NO_DIGEST,
    CheckDescription,
    Part,
    Receipt,
    ReceiptCheck,
    Signature,
    Version,
)
from gpudiag.model.report import Report
from gpudiag.model.untrusted_text import mask_words
from gpudiag.render.receipt_page import render_receipt_page
from gpudiag.render.sealed import PAGE, Sealed, read_sealed, render_sealed
from gpudiag.runs.output import require_writable, write_documents

NAMESPACE = "gpudiag-receipt"  # what the signature is for: one for another purpose does not fit
SIGNATURE_SUFFIX = ".sig"
MAX_BYTES = 256 * 1024**2
_PROGRAM = "ssh-keygen"
_HINT = "write one: gpudiag preflight --receipt FILE"
_SIGN_SECONDS = 120.0  # a person types a passphrase, or touches a token
_VERIFY_SECONDS = 20.0
# As ssh-keygen writes it; it reads more than that, and a changed byte would pass.
_ARMOUR = re.compile(
    rb"-----BEGIN SSH SIGNATURE-----\n(?:[A-Za-z0-9+/]{70}\n)*[A-Za-z0-9+/]{1,70}={0,2}\n"
    rb"-----END SSH SIGNATURE-----\n"
)
_KEY = re.compile(r"with (\S+) key (\S+)")
_LEFT_OUT = Missing(MissingReason.NOT_ASKED, "left out of receipts")

# --- what is in it


def make_receipt(report: Report, plan: PreflightPlan, now: datetime | None = None) -> Receipt:
    """The receipt of a preflight's report."""
    ran = {result.check for result in report.results}
    return Receipt(
        digest=NO_DIGEST,
        issued_at=now or datetime.now(UTC),
        level=plan.level,
        command=shlex.join(["gpudiag", "preflight", *mask_words(plan.to_argv())]),
        parts=tuple(_parts(report.snapshot)),
        versions=tuple(_versions(report)),
        checks=tuple(
            CheckDescription(
                check.name,
                check.title,
                check.level.name.lower(),
                tuple(dict.fromkeys(kind.basis.limit for kind in check.reports)),
            )
            for check in BUILTIN
            if check.name in ran
        ),
        not_run=tuple(check.name for check in BUILTIN if check.name not in ran),
        speeds=speeds_of(report),
        report=replace(report, snapshot=_without_people(report.snapshot)),
    )


def _parts(snapshot: Snapshot) -> Iterator[Part]:
    for device in snapshot.devices:
        yield Part(
            "gpu",
            name_device(device),
            device.name,
            device.id.uuid,
            device.serial,
            device.board_part_number,
            device.vbios_version,
        )
    state = snapshot.machine.state
    ports = state.infiniband_ports if isinstance(state, HostState) else NOT_ASKED
    for port in () if isinstance(ports, Missing) else ports:
        yield Part("network card", f"{port.device} port {port.port}", port.link_layer, board=port.board)


def _versions(report: Report) -> Iterator[Version]:
    snapshot, torch = report.snapshot, report.snapshot.torch
    machine = snapshot.machine
    yield Version("gpudiag", __version__)
    yield Version("driver", snapshot.driver_version)
    yield Version("kernel module", machine.kernel_driver_flavor)
    yield Version("CUDA of the driver", snapshot.cuda_driver_version)
    yield Version("NVML", snapshot.nvml_version)
    for name in ("version", "cuda_runtime_version", "nccl_version"):
        called = {"version": "torch", "cuda_runtime_version": "CUDA of torch", "nccl_version": "NCCL"}[name]
        yield Version(called, torch if isinstance(torch, Missing) else getattr(torch, name))
    yield Version("kernel", machine.kernel_release)
    yield Version("operating system", machine.operating_system)
    yield Version("container", "none" if machine.container is None else machine.container.words)


def _without_people(snapshot: Snapshot) -> Snapshot:
    """The snapshot without the users of the GPUs, and what they run: a receipt goes to others."""
    return replace(snapshot, devices=tuple(map(_without_users, snapshot.devices)))


def _without_users(device: Device) -> Device:
    processes = device.processes
    if isinstance(processes, Missing):
        return device
    anonymous = (replace(one, user=_LEFT_OUT, command=_LEFT_OUT) for one in processes)
    return replace(device, processes=tuple(anonymous))


# --- writing it


def receipt_paths(path: Path) -> tuple[Path, Path]:
    """The two files of a receipt of that name, document and page; either ending may stand in it."""
    stem = path.with_suffix("") if path.suffix in (".json", ".html") else path
    return stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.html")


def require_receipt(path: Path, key: Path | None) -> None:
    """Return if a receipt can be written there and signed with that key: before the work.

    Raises:
        UsageError: a file cannot be written, ssh-keygen is not installed, or the key does not sign.
    """
    if not path.name or path.name == "-":
        raise UsageError(
            f"--receipt {path}: a receipt is two files", hint="name a file: --receipt receipt.json"
        )
    files = receipt_paths(path)
    for file in (*files, *(_signature_of(file) for file in files if key is not None)):
        require_writable(file)
    if key is not None:
        _require_key(key)
        try:
            sign(b"gpudiag tries the key\n", key)
        except GpudiagError as error:
            raise UsageError(error.message, hint=error.hint) from error


def write_receipt(path: Path, receipt: Receipt, key: Path | None = None) -> tuple[Path, Path]:
    """Write document and page, and a signature of each where there is a key; return these two.

    Where one of them cannot be written, all older files of that name are kept.

    Raises:
        GpudiagError: a file could not be written, or the key did not sign.
    """
    document = render_sealed(receipt)
    sealed = read_sealed(document.encode())
    texts = dict(
        zip(
            receipt_paths(path),
            (document, render_receipt_page(receipt, document, sealed.stated)),
            strict=True,
        )
    )
    if key is not None:
        texts |= {_signature_of(file): sign(text.encode(), key) for file, text in texts.items()}
    write_documents(texts)
    if key is None:  # one of an older receipt would not fit
        for file in texts:
            _signature_of(file).unlink(missing_ok=True)
    return receipt_paths(path)


def _signature_of(file: Path) -> Path:
    return file.with_name(file.name + SIGNATURE_SUFFIX)


# --- signatures


def sign(data: bytes, key: Path) -> str:
    """The signature of `data` by that key, private, or public with ssh-agent. Raises GpudiagError."""
    words = ("-Y", "sign", "-n", NAMESPACE, "-f", str(key))
    status, out, error = _run(words, data, _SIGN_SECONDS)
    if status != 0 or not out.startswith("-----BEGIN SSH SIGNATURE-----"):
        hint = "a key with a passphrase signs by ssh-agent: `ssh-add` it, and name its .pub file"
        raise GpudiagError(
            f"ssh-keygen does not sign with {key}: {error or f'exit status {status}'}", hint=hint
        )
    return out


def _require_key(key: Path) -> None:
    if shutil.which(_PROGRAM) is None:
        raise UsageError(
            "ssh-keygen is not installed, and it makes the signature", hint="install openssh-client"
        )
    try:
        key.open("rb").close()
    except OSError as error:
        hint = f"make one: ssh-keygen -t ed25519 -f {key}"
        raise UsageError(f"--sign: cannot read {key}: {error.strerror or error}", hint=hint) from error


def _run(words: Iterable[str], data: bytes, seconds: float) -> tuple[int, str, str]:
    """Exit status, output, and the last line of the errors of an ssh-keygen that gets the data."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            (_PROGRAM, *words), input=data, capture_output=True, timeout=seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, "", f"no answer within {seconds:.0f} s"
    except OSError as error:
        return -1, "", error.strerror or str(error)
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return done.returncode, done.stdout.decode(errors="replace"), lines[-1] if lines else ""


# --- looking at one


def read_receipt(path: Path) -> tuple[Sealed, Receipt]:
    """The file of a receipt, document or page, and its content. Raises UsageError: there is none."""
    sealed = read_sealed(read_bytes(path))
    if sealed.schema != Receipt.SCHEMA:
        raise UnknownSchemaError(sealed.schema)
    receipt = loads(sealed.document.decode(errors="replace"))
    if not isinstance(receipt, Receipt):
        raise UsageError("the document in it is no receipt")
    return sealed, receipt


def read_bytes(path: Path, hint: str = _HINT) -> bytes:
    """What a file holds. Raises UsageError: it cannot be read, or is too large for a document."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"{path} is larger than {MAX_BYTES // 1024**2} MiB: no document of gpudiag", hint=hint
        )
    return data


def look_at_receipt(path: Path, signers: Path | None = None) -> ReceiptCheck:
    """Whether that receipt is as it was written, and who signed it.

    FAIL where a byte has changed or the signature does not fit; ERROR where the signature could not be
    verified.

    Raises:
        UsageError: the file cannot be read, or is no receipt.
    """
    data = read_bytes(path)
    try:
        sealed, receipt = read_receipt(path)
    except UsageError as error:
        if b"gpudiag.receipt/" not in data or isinstance(error, UnknownSchemaError):
            raise UsageError(f"{path}: {error.message}", hint=error.hint or _HINT) from error
        return ReceiptCheck(Outcome.FAIL, str(path), error.message, whole=False)
    problem = why_changed(sealed)
    signature = _verify(path, data, signers)
    outcome = Outcome.PASS if problem is None else Outcome.FAIL
    words = problem or "no byte has changed since it was written"
    if isinstance(signature, Signature) and not signature.fits:
        outcome, words = Outcome.FAIL, f"{words}; the signature does not fit: {signature.words}"
    elif isinstance(signature, Missing) and signature.reason is not MissingReason.SOURCE_ABSENT:
        outcome = outcome if outcome is Outcome.FAIL else Outcome.ERROR
        words = f"{words}; the signature was not verified: {signature.detail}"
    elif isinstance(signature, Missing) and signers is not None:
        outcome, words = Outcome.FAIL, f"{words}; it is not signed"
    report = receipt.report
    return ReceiptCheck(
        outcome,
        str(path),
        words,
        whole=problem is None,
        digest=f"sha256:{sealed.actual}",
        signature=signature,
        host=report.snapshot.host,
        simulated=report.snapshot.simulated,
        issued_at=receipt.issued_at,
        level=receipt.level,
        verdict=report.verdict,
    )


def why_changed(sealed: Sealed) -> str | None:
    """What shows that the file was changed since it was written; None where nothing does."""
    if not sealed.is_whole:
        return (
            f"it was changed: it states the digest {sealed.stated[:12]}.., and its"
            f" bytes have {sealed.actual[:12]}.."
        )
    if sealed.kind == PAGE and not read_sealed(sealed.document).is_whole:
        return "the document in the page was changed, and the page's digest was made again"
    return None


def _verify(path: Path, data: bytes, signers: Path | None) -> Reading[Signature]:
    """Whose signature of the file is beside it; SOURCE_ABSENT where none is."""
    file = _signature_of(path)
    if not file.exists():
        return Missing(MissingReason.SOURCE_ABSENT, f"there is no {file.name} beside it")
    if not _ARMOUR.fullmatch(read_bytes(file)):
        return Signature(fits=False, words=f"{file.name} was changed, or is no signature of ssh-keygen")
    if shutil.which(_PROGRAM) is None:
        return Missing(MissingReason.ERROR, "ssh-keygen is not installed")
    status, out, error = _run(
        ("-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(file)), data, _VERIFY_SECONDS
    )
    key = _KEY.search(out)
    if status != 0 or key is None:
        return Signature(fits=False, words=error or out.strip() or f"ssh-keygen ended with {status}")
    named = Signature(fits=True, words=out.strip(), key=f"{key[1]} {key[2]}")
    if signers is None:
        return replace(
            named, signer=Missing(MissingReason.NOT_ASKED, "--signers FILE names the keys that may sign")
        )
    status, out, error = _run(
        ("-Y", "find-principals", "-f", str(signers), "-s", str(file)), data, _VERIFY_SECONDS
    )
    signer = out.strip().splitlines()[0] if status == 0 and out.strip() else ""
    if not signer:
        return replace(named, fits=False, words=f"its key is none of {signers}")
    words = ("-Y", "verify", "-f", str(signers), "-I", signer, "-n", NAMESPACE, "-s", str(file))
    status, out, error = _run(words, data, _VERIFY_SECONDS)
    return replace(named, fits=status == 0, signer=signer, words=out.strip() or error)
