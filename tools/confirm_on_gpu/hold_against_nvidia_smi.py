"""Hold a recorded machine against `nvidia-smi -q -x` of the same moment: RECORD.json CAPTURE.xml.

Prints one JSON list: every reading of every GPU that both can have, and whether they agree.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

from gpudiag.simulate.loader import load_scenario
from tools.compare_capture import compare
from tools.confirm_on_gpu.report import ReadingSeen


def main() -> None:
    """Pair the GPUs by UUID, compare, print."""
    record, capture = sys.argv[1:]
    # The file is what nvidia-smi wrote here, just now.
    root = ElementTree.fromstring(Path(capture).read_text())  # noqa: S314
    elements = {element.findtext("uuid"): element for element in root.findall("gpu")}
    rows: list[ReadingSeen] = []
    for index, gpu in enumerate(load_scenario(record).gpus):
        element = elements.get(str(gpu.readings.get("uuid")))
        if element is None:
            continue
        rows += [
            ReadingSeen(
                nvml_index=index,
                reading=one.field.reading,
                kind=one.field.kind,
                outcome=one.outcome,
                ours=str(one.ours),
                theirs=str(one.theirs),
            )
            for one in compare(element, gpu)
        ]
    print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
