"""What ranks of one job have not alike: versions, and variables of collectives; pure."""

from collections import Counter
from collections.abc import Mapping

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.number_ranges import number_ranges
from gpudiag.ranks.stages import IMPORT

NOT_SET = "not set"
_SOURCE = "each machine's agent"


def find_skew(
    settings: Mapping[int, Mapping[str, str]], hosts: Mapping[int, str], at_seconds: float
) -> tuple[Incident, ...]:
    """One incident for each setting that is not alike, of the first rank without the usual value.

    The usual value is most ranks', of two the lowest's; a version that was not sent does not count.
    """
    names = dict.fromkeys(name for own in settings.values() for name in own)
    found = []
    for name in names:
        is_variable = name.isupper() and "_" in name
        values = {
            rank: own.get(name, NOT_SET)
            for rank, own in sorted(settings.items())
            if is_variable or name in own
        }
        counts = Counter(values.values()).most_common()
        if len(counts) < 2:
            continue
        usual = counts[0][0]
        odd = [rank for rank, value in values.items() if value != usual]
        evidence = (
            Evidence("variable" if is_variable else "version_of", name, source=_SOURCE),
            Evidence("value", values[odd[0]], source=_SOURCE),
            Evidence("others_have", usual, source=_SOURCE),
            Evidence("ranks", number_ranges(odd), source=_SOURCE),
        )
        found.append(
            Incident(IncidentKind.SKEWED, odd[0], hosts.get(odd[0], ""), IMPORT, at_seconds, evidence)
        )
    return tuple(found)
