"""Hosts whose ranks publish an address that other hosts do not reach, and the address that is right; pure.

    the interface does not exist, or has no address  -> gloo and NCCL raise there, and the others wait
    a loopback address                               -> the others connect to themselves
    an address of another family than the others'    -> gloo refuses the pair
    an address of a network that others do not reach -> the others have no route, or get no answer

An address that is not reached but that nobody has to connect to is no fault: gloo connects from the greater
address.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.published import GLOO_VARIABLE, NCCL_VARIABLE, Published
from gpudiag.ranks.diagnosis.survey import Answer, Purpose, Survey, Try, connects

_RESOLVER = "the variables, the resolver and the interfaces of that host"
_TRIED = "connections between the agents' hosts"


def find_wrong_addresses(
    survey: Survey, first: Incident, *, compare_networks: bool = False
) -> tuple[Incident, ...]:
    """An incident for each host whose ranks publish a wrong address; `first` is what was seen of it.

    `compare_networks`: for ranks that wait, where nothing can be tried; a route between networks is not seen.
    """
    if len(survey.hosts) < 2:
        return ()
    own = [_incident(survey, rank, one, first, ()) for rank, one in _all(survey) if _is_wrong_alone(one)]
    if own:
        return tuple(own)
    found = [
        _incident(survey, rank, one, first, tried)
        for rank, one in _all(survey)
        if (tried := _why_unreached(survey, rank, one)) is not None
    ]
    if not found and compare_networks:
        found = [
            _incident(survey, rank, one, first, ())
            for rank, one in _all(survey)
            if _is_in_another_network(survey, rank, one)
        ]
    return tuple(found)


def _all(survey: Survey) -> Iterator[tuple[int, Published]]:
    for rank in sorted(survey.hosts):
        # One address is enough to blame a host.
        yield from (
            (rank, one)
            for one in sorted(survey.published(rank), key=lambda one: not _is_wrong_alone(one))[:1]
        )


def _is_wrong_alone(one: Published) -> bool:
    return one.address is None or one.is_loopback


def _why_unreached(survey: Survey, rank: int, one: Published) -> tuple[Try, ...] | None:
    """What most other hosts found at that address; None where it does not keep ranks apart."""
    if one.address is None or one.address == survey.meets_at.get(rank):
        return _why_other_family(survey, rank, one)
    others = [other for other in survey.hosts if other != rank]
    failed: list[Try] = []
    needed = False
    for (source, _), tries in survey.tries(Purpose.PUBLISHED, rank).items():
        for each in tries:
            if each.target.address != one.address or (
                each.answer is Answer.REPLIES and not survey.own(source, each.target.address)
            ):
                continue
            failed.append(each)
            needed = needed or _has_to_connect(survey, source, one.address)
    if needed and 2 * len({id(each) for each in failed}) > len(others):
        return tuple(failed)
    return _why_other_family(survey, rank, one)


def _has_to_connect(survey: Survey, source: int, address: str) -> bool:
    if survey.library == "NCCL":
        return True
    return any(
        one.address is not None and (one.is_ipv6 is not (":" in address) or connects(one.address, address))
        for one in survey.published(source)
    )


def _why_other_family(survey: Survey, rank: int, one: Published) -> tuple[Try, ...] | None:
    """That it is of another family than most hosts' addresses, or than the agents'; or None."""
    families = Counter(each.is_ipv6 for _, each in _all(survey) if each.address is not None)
    if survey.library == "NCCL" or one.address is None or len(families) < 2:
        return None
    few, many = families[one.is_ipv6], families[not one.is_ipv6]
    met_by = {":" in address for address in survey.meets_at.values()}
    wrong = few < many or (few == many and one.is_ipv6 not in met_by)
    return () if wrong else None


def _is_in_another_network(survey: Survey, rank: int, one: Published) -> bool:
    """Whether most other hosts publish addresses of one network, and this host has one there and not so.

    Only where nothing could be tried: routes may join networks.
    """
    networks = Counter(
        survey.addresses[other].network_of(each.address)
        for other, each in _all(survey)
        if other != rank and each.address is not None
    )
    if not networks or one.address is None:
        return False
    network, count = networks.most_common(1)[0]
    here = survey.addresses[rank]
    shared = network is not None and count > 1 and 2 * count > len(survey.hosts) - 1
    return shared and here.network_of(one.address) != network and here.interface_in(str(network)) is not None


def _incident(survey: Survey, rank: int, one: Published, first: Incident, tried: Sequence[Try]) -> Incident:
    host = survey.hosts[rank]
    facts = [
        Evidence("library", survey.library, source=_RESOLVER),
        Evidence("own_address", one.address or "none", source=_RESOLVER),
    ]
    if one.by:
        facts.append(Evidence("decided_by", one.by, source=_RESOLVER))
    if one.own_name:
        facts.append(Evidence("own_name", one.own_name, source=_RESOLVER))
    if one.interface is not None:
        facts.append(Evidence("own_interface", one.interface, source=_RESOLVER))
    name = survey.addresses[rank].own_name
    if one.is_loopback and one.own_name and one.address not in name:
        facts.append(Evidence("resolves_to", ", ".join(name) or "none", source=_RESOLVER))
    if tried:
        facts.append(
            Evidence("not_reached_by", _names(survey, tried, rank), source=_TRIED),
        )
        alike = any(survey.own(other, one.address or "") for other in survey.hosts if other != rank)
        facts.append(Evidence("answers", "their own" if alike else _answers(tried), source=_TRIED))
    elif one.address is not None and not one.is_loopback and _why_other_family(survey, rank, one) is not None:
        facts.append(Evidence("others_family", "IPv4" if one.is_ipv6 else "IPv6", source=_RESOLVER))
    facts += _right(survey, rank, one)
    facts.append(
        Evidence("variable", NCCL_VARIABLE if survey.library == "NCCL" else GLOO_VARIABLE, source=_RESOLVER)
    )
    if first.host:  # a symptom, and no look before there was any
        facts.append(
            Evidence("noticed_as", f"rank {first.rank} {first.kind.value}", source="the rank's agent")
        )
    return Incident(IncidentKind.MISNAMED, rank, host, first.stage, first.at_seconds, tuple(facts))


def _right(survey: Survey, rank: int, wrong: Published) -> list[Evidence]:
    """The interface and address that other hosts reach, if this host has one; or that it has none."""
    sound = {
        other: one
        for other, one in _all(survey)
        if other != rank
        and not _is_wrong_alone(one)
        and _why_unreached(survey, other, one) is None
        and one.address is not None
    }
    networks = Counter(
        network
        for other, one in sound.items()
        if (network := survey.addresses[other].network_of(str(one.address))) is not None
    )
    here = survey.addresses[rank]
    found = next((at for network, _ in networks.most_common() if (at := here.interface_in(network))), None)
    if found is None:
        met = survey.meets_at.get(rank, "")
        network = here.network_of(met)
        found = None if network is None else here.interface_in(network)
        if found is not None and found[1] == wrong.address:
            found = None
    if found is None:
        where = next((network for network, _ in networks.most_common()), None)
        return [] if where is None else [Evidence("network_of_the_others", where, source=_RESOLVER)]
    facts = [
        Evidence("right_interface", found[0], source=_RESOLVER),
        Evidence("right_address", found[1], source=_RESOLVER),
    ]
    if sound and all(one.interface == found[0] for one in sound.values()):
        facts.append(Evidence("as_on", survey.name(sound), source=_RESOLVER))
    return facts


def _names(survey: Survey, tried: Sequence[Try], rank: int) -> str:
    sources = {
        source
        for (source, _), tries in survey.tries(Purpose.PUBLISHED, rank).items()
        if any(one is each for one in tries for each in tried)
    }
    return survey.name(sources)


def _answers(tried: Sequence[Try]) -> str:
    return ", ".join(sorted({one.answer.value for one in tried}))
