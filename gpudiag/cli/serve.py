"""`gpudiag serve`: the service with its page, its API and its metrics."""

import os
import re
import signal
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.commands import COMMANDS, HELP_SETTINGS
from gpudiag.cli.completion import offer_machine_lists
from gpudiag.cli.options import WholeRange, store_option
from gpudiag.cli.signals import TerminatedError, end_quietly
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.installed import install_command
from gpudiag.reference.service_port import SERVICE_PORT
from gpudiag.store.state_folder import VARIABLE, default_store, state_directory

if TYPE_CHECKING:
    import ssl

    from gpudiag.fleet.discovery import Sources

_NEEDED = ("fastapi", "uvicorn", "httptools")
_MAX_PORT = 65535
_SHOW_CERTIFICATE = "openssl x509 -noout -subject -in %s"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_EXAMPLES = """\b
Examples:
  gpudiag serve                                    http://127.0.0.1:4783
  gpudiag serve --allow-actions                    and tests can be started
  gpudiag serve --watch-jobs                       and jobs that hang are found
  gpudiag serve --host 0.0.0.0 --token-file FILE   for others
  gpudiag serve --hub gpu1,gpu2,gpu3               several machines in one view
  gpudiag simulate h100x8+busy:0 -- gpudiag serve  try it without a GPU
FILE holds lines `read:TOKEN` and `act:TOKEN`. Asked to stop (SIGTERM,
Ctrl-C) it ends its runs and exits 0."""


@click.command("serve", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.option(
    "--host", default="127.0.0.1", metavar="ADDRESS", help="Listen on this address.  [default: 127.0.0.1]"
)
@click.option(
    "--port",
    type=WholeRange(0, _MAX_PORT),
    default=SERVICE_PORT,
    metavar="N",
    help="Listen on this port.  [default: 4783; 0: a free one]",
)
@store_option
@click.option(
    "--token-file",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="File of tokens that may read or act.",
)
@click.option("--allow-actions", is_flag=True, help="Let a caller with an act token start runs.")
@click.option("--no-poll", is_flag=True, help="Ask NVML nothing: runs and stored history only.")
@click.option(
    "--watch-jobs",
    is_flag=True,
    help="Watch this machine's jobs of several processes: one that stands still is a finding.",
)
@click.option(
    "--hub",
    multiple=True,
    metavar="HOST,...",
    shell_complete=offer_machine_lists,
    help="Show these machines by their own services: hosts, URLs, @FILE, dns:NAME, slurm.",
)
@click.option(
    "--hub-tokens",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="File of `HOST TOKEN` lines, with which --hub reads.",
)
@click.option(
    "--hub-ca",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Certificates that sign those of the machines of --hub.",
)
@click.option(
    "--tls-cert",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Serve HTTPS with this certificate and --tls-key.",
)
@click.option(
    "--tls-key",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="The certificate's key.",
)
@click.option(
    "--root-path", default="", metavar="PATH", help="The path prefix behind a proxy, such as /gpus."
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A name that a proxy calls this service by."
)
@click.option(
    "--python",
    multiple=True,
    metavar="NAME=PATH",
    help="Allow runs in this interpreter of your jobs, by NAME.",
)
@click.option(
    "--kubelet-socket",
    metavar="PATH",
    help="The kubelet's socket, which lists the pods that use the GPUs; off: do not ask.",
)
def serve(**options: Any) -> ExitStatus:
    """Show this machine's GPUs live in a browser, answer scripts and Prometheus, start tests.

    From this machine reading needs no token. Listening on another address needs --token-file.
    With --hub it shows other machines, each by the `gpudiag serve` that runs there.
    """
    end_quietly()  # it only loads until it serves, and takes the signals itself from then on
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        raise UsageError(
            f"{absent[0]} is not installed, and the service needs it", hint=install_command("serve")
        )
    if options["watch_jobs"]:
        from gpudiag.probe.job.py_spy import find_py_spy
        from gpudiag.probe.job.simulated import read_simulated_jobs

        if find_py_spy() is None and read_simulated_jobs() is None:
            raise UsageError(
                "--watch-jobs reads the stacks of a job that stands still by py-spy, which is not installed",
                hint=install_command("hang"),
            )
    from gpudiag_api.server import describe_addresses, open_socket, run_service
    from gpudiag_api.settings import hold_folder

    settings = _settings(options)
    tls = _tls(options)
    listening = open_socket(settings)
    settings = replace(settings, port=listening.getsockname()[1])
    if settings.state_folder is not None and settings.hub is None:
        named = Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
        problem = hold_folder(settings.state_folder, settings.url(), named)
        settings = replace(settings, state_problem=problem)
    for line in describe_addresses(settings):
        print(line, file=sys.stderr, flush=True)
    stopped_by = run_service(settings, listening, terminal=sys.stderr.isatty(), tls=tls)
    if stopped_by is not None:
        raise KeyboardInterrupt if stopped_by == signal.SIGINT else TerminatedError
    return ExitStatus.PASS


def _settings(options: dict[str, Any]) -> Any:
    from gpudiag.probe.kubelet.ask import default_socket, socket_of
    from gpudiag.probe.start import host_root
    from gpudiag_api.settings import Settings, service_folder
    from gpudiag_api.tokens import Tokens, make_act_token, read_token_file

    if not options["host"].strip():
        raise UsageError("--host is empty", hint="such as 127.0.0.1, or 0.0.0.0 for every address")
    sources, hub_tls = _hub(options)
    tokens = Tokens() if options["token_file"] is None else read_token_file(options["token_file"])
    if options["allow_actions"] and not tokens:
        tokens = make_act_token()
    settings = Settings(
        host=options["host"],
        port=options["port"],
        root_path=_root_path(options["root_path"]),
        allowed_hosts=options["allow_host"],
        tokens=tokens,
        allow_actions=options["allow_actions"],
        polls=not options["no_poll"],
        watches_jobs=options["watch_jobs"],
        kubelet_socket=socket_of(options["kubelet_socket"], default_socket(host_root(os.environ))),
        state_folder=service_folder(state_directory()),
        store=options["store"] or default_store(),
        tls=options["tls_cert"] is not None,
        kinds=tuple(COMMANDS),
        interpreters=_interpreters(options["python"]),
        hub=sources,
        hub_tls=hub_tls,
    )
    if settings.reading_needs_token and options["token_file"] is None:
        raise UsageError(
            f"--host {options['host']} is open to other machines, and without a token no caller is known",
            hint="add --token-file FILE, or listen on 127.0.0.1 and use ssh -L",
        )
    return settings


def _hub(options: dict[str, Any]) -> tuple["Sources | None", "ssl.SSLContext | None"]:
    """Where a hub's machines are listed, and the certificates; neither without --hub.

    Raises:
        UsageError: one is wrong, or a flag would do nothing beside --hub.
    """
    if not options["hub"]:
        for flag in ("hub_tokens", "hub_ca"):
            if options[flag] is not None:
                raise UsageError(
                    f"--{flag.replace('_', '-')} is for a hub", hint="gpudiag serve --hub gpu1,gpu2"
                )
        return None, None
    for flag in ("allow_actions", "no_poll", "watch_jobs", "python", "kubelet_socket", "store"):
        if options[flag]:
            raise UsageError(
                f"--{flag.replace('_', '-')} does nothing beside --hub, which reads other machines only",
                hint="start the service of this machine apart from the hub, on another --port",
            )
    from gpudiag.fleet.addresses import MachineTokens, read_machine_tokens
    from gpudiag.fleet.discovery import parse_sources

    tokens = MachineTokens() if options["hub_tokens"] is None else read_machine_tokens(options["hub_tokens"])
    return parse_sources(options["hub"], tokens), _hub_tls(options["hub_ca"])


def _hub_tls(authorities: Path | None) -> "ssl.SSLContext | None":
    """What verifies the machines' certificates, where the system's authorities do not."""
    if authorities is None:
        return None
    import ssl

    _need_readable("--hub-ca", authorities)
    try:
        return ssl.create_default_context(cafile=str(authorities))
    except ssl.SSLError as error:
        raise UsageError(
            f"--hub-ca {authorities} holds no certificate in PEM form", hint=_SHOW_CERTIFICATE % authorities
        ) from error


def _interpreters(texts: tuple[str, ...]) -> dict[str, str]:
    """Paths by name, from `NAME=PATH`."""
    from gpudiag.runs.interpreters import find_interpreter

    found = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(
                f"--python {text} is not NAME=PATH", hint="such as torch28=/opt/torch28/bin/python"
            )
        found[name] = find_interpreter(path, f"--python {text}: {path or 'nothing'}")
    return found


def _root_path(text: str) -> str:
    path = text.rstrip("/")
    if path and (not path.startswith("/") or "//" in path or any(mark in path for mark in "?#%\\ ")):
        raise UsageError(f"--root-path {text!r} is no path", hint="such as /gpus")
    return path


def _tls(options: dict[str, Any]) -> tuple[Path, Path] | None:
    certificate, key = options["tls_cert"], options["tls_key"]
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("--tls-cert and --tls-key belong together", hint="name both files")
    import ssl

    def refuse_to_ask() -> str:  # OpenSSL itself would wait for somebody to type it
        raise UsageError(
            f"--tls-key {key} is encrypted, and a service cannot ask for its passphrase",
            hint=f"openssl pkey -in {key} -out PLAIN.key; chmod 600 PLAIN.key; --tls-key PLAIN.key",
        )

    _need_readable("--tls-cert", certificate)
    _need_readable("--tls-key", key)
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key, refuse_to_ask)
    except ssl.SSLError as error:
        words = f"{certificate} and {key} are no certificate and its key in PEM form"
        if error.reason == "KEY_VALUES_MISMATCH":
            words = f"--tls-key {key} is not the key of --tls-cert {certificate}"
        raise UsageError(words, hint=_SHOW_CERTIFICATE % certificate) from error
    return certificate, key


def _need_readable(flag: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        words = f"{flag} {path} cannot be read: {error.strerror}"
        raise UsageError(words, hint="name a PEM file that this user can read") from error
