"""What was found of a receipt, as text."""

from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing
from gpudiag.model.receipt import ReceiptCheck, Signature
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped

_INDENT = "  "


def render_receipt_check(found: ReceiptCheck, style: Style = PLAIN) -> str:
    """The verdict on the receipt, whose it is, and who signed it."""
    word = found.outcome.value.upper()
    lines = wrapped(f"{word} {one_line(found.path)}: {one_line(found.words)}", indent=_INDENT)
    lines[0] = style.paint_outcome(lines[0], found.outcome.value)
    if not isinstance(found.host, Missing) and not isinstance(found.issued_at, Missing):
        simulated = f"SIMULATED {one_line(found.simulated)}, " if found.simulated else ""
        verdict = "" if isinstance(found.verdict, Missing) else found.verdict.value.upper()
        words = (
            f"{simulated}{one_line(found.host)}: {verdict} at level {found.level}, issued"
            f" {found.issued_at:%Y-%m-%d %H:%M} UTC"
        )
        lines += wrapped(words, first=_INDENT, indent=_INDENT)
    if not isinstance(found.digest, Missing):
        lines.append(f"{_INDENT}{found.digest}")
    lines += wrapped(_signed(found), first=_INDENT, indent=_INDENT)
    if found.outcome is Outcome.FAIL:
        lines += wrapped(
            "Do: get it again from who issued it, and compare the digests.", first=_INDENT, indent=_INDENT
        )
    return "\n".join([*lines, *next_lines("gpudiag compare RECEIPT OTHER")]) + "\n"


def _signed(found: ReceiptCheck) -> str:
    signature = found.signature
    if isinstance(signature, Signature):
        if not signature.fits:
            return f"Signature: does not fit: {one_line(signature.words)}"
        if isinstance(signature.signer, Missing):
            return f"Signature: by {one_line(signature.key)}; whose key it is was not asked (--signers FILE)"
        return f"Signature: by {one_line(signature.signer)}, {one_line(signature.key)}"
    return f"Not signed: {one_line(signature.detail)}" if signature.detail else "Signature: not looked at"
