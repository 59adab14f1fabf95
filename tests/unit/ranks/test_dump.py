from gpudiag.ranks.dump import RankDump, parse_main_stack

TWO_THREADS = """Thread 0x00007f9b (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f9c (most recent call first):
  File "/opt/torch/distributed/distributed_c10d.py", line 3151 in broadcast
  File "/home/ann/train.py", line 42 in step
  File "/home/ann/train.py", line 60 in <module>
"""


def test_the_main_thread_is_the_one_that_took_the_signal() -> None:
    assert parse_main_stack(TWO_THREADS) == (
        "/opt/torch/distributed/distributed_c10d.py:3151 in broadcast",
        "/home/ann/train.py:42 in step",
        "/home/ann/train.py:60 in <module>",
    )


def test_of_two_answers_the_last_counts() -> None:
    earlier = TWO_THREADS.replace("3151", "1")
    assert parse_main_stack(earlier + TWO_THREADS)[0].endswith(":3151 in broadcast")


def test_no_answer_is_an_empty_stack() -> None:
    assert parse_main_stack("") == ()


def test_where_it_hangs_is_the_innermost_line_that_is_not_ours() -> None:
    from gpudiag.ranks import misbehave

    dump = RankDump(1, (f"{misbehave.__file__}:28 in stay_out", "/home/ann/train.py:42 in step"), ())
    assert dump.stuck_at == "/home/ann/train.py:42 in step"
