"""Writes the page's copy of NVML's words, api/dashboard/src/vocabulary.ts; a test compares."""

import json
from pathlib import Path

from gpudiag.reference.vocabulary import EVENT_REASONS, REASON_MEANINGS, SHORT_REASONS

PAGE = Path(__file__).parents[1] / "api" / "dashboard" / "src" / "vocabulary.ts"

_HEAD = """\
// The words for NVML's clocks event reasons. Written by `python -m tools.write_vocabulary` from
// gpudiag/reference/vocabulary.py, where they are explained.

export interface EventReason {
  word: string;
  means: string;
  short: string; // for a narrow column
}

// Bit by bit, as in `clocks_event_mask`.
export const EVENT_REASONS: readonly EventReason[] = [
"""


def page_text() -> str:
    """The whole file."""
    reasons = (
        {"word": word, "means": REASON_MEANINGS[word], "short": SHORT_REASONS[word]} for word in EVENT_REASONS
    )
    return _HEAD + "".join(f"  {_literal(reason)},\n" for reason in reasons) + "];\n"


def _literal(reason: dict[str, str]) -> str:
    return "{ " + ", ".join(f"{name}: {json.dumps(text)}" for name, text in reason.items()) + " }"


def main() -> None:
    """Write the file."""
    PAGE.write_text(page_text())


if __name__ == "__main__":
    main()
