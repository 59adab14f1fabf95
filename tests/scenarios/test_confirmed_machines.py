"""Every machine in tests/corpus/machines plays back as it was, and every accepted form is still one that can
be accepted.
"""

import json
from pathlib import Path

from tests.recorded_machines import CORPUS, recorded_document, recorded_names
from tests.scenarios.asked import ask_machine
from tools.accept_confirmation import find_reasons, read_form
from tools.confirm_on_gpu.markdown import confirmed_row
from tools.confirm_on_gpu.playback import compare_listings
from tools.write_readme import ROOT, TABLE_PAGE, confirmed_rows

ALREADY_THERE = ("it is there already", TABLE_PAGE)


def test_a_recorded_machine_plays_back_as_it_was(tmp_path: Path):
    wrong = {}
    for name in recorded_names():
        recorded = recorded_document(f"{name}/machine.json")
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(recorded))
        answer = compare_listings(recorded, ask_machine(str(path))[1])
        assert answer["same"] > 50
        if answer["differing"]:
            wrong[name] = answer["differing"]
    assert wrong == {}


def test_an_accepted_form_is_sound_and_has_its_row():
    rows = confirmed_rows((ROOT / TABLE_PAGE).read_text())
    wrong = {}
    for path in sorted(CORPUS.glob("*/confirmation.json.gz")):
        form = read_form(path)
        reasons = [one for one in find_reasons(form) if not one.startswith(ALREADY_THERE)]
        if reasons or confirmed_row(form) not in rows:
            wrong[path.parent.name] = reasons or "its row is not in the table"
    assert wrong == {}
