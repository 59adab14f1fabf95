from gpudiag.ranks.diagnosis.evidence import signal_name


def test_signals_have_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(40) == "signal 40"
