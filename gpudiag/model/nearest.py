"""Which known word a person probably meant by one that is not known."""

from collections.abc import Iterable


def find_nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest; None where none is near, or several are equally near.

    Capitals, dashes and underscores do not count: `DDP`, `all-reduce` and `ZeRO-3` are meant well.
    """
    from difflib import SequenceMatcher, get_close_matches  # late: hardly a command needs it

    bare = {_bare(one): one for one in known}
    if _bare(word) in bare:
        return bare[_bare(word)]
    first, *others = get_close_matches(_bare(word), bare, n=2) or [""]
    if not first:
        return None
    closeness = [SequenceMatcher(None, one, _bare(word)).ratio() for one in (first, *others)]
    return bare[first] if len(set(closeness)) == len(closeness) else None


def did_you_mean(word: str, known: Iterable[str], before: str = "") -> str:
    """`did you mean h100x8?` after `before`, with the known word nearest to a wrong one.

    It is empty where none is.
    """
    near = find_nearest(word, known)
    return f"{before}did you mean {near}?" if near else ""


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """`did you mean h100x8?` where one name is near, else the list of all."""
    names = sorted(known)
    return did_you_mean(name, names) or f"there are: {', '.join(names)}"


def _bare(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
