"""The log, written by a thread of its own: a reader that stops reading must not stop the service.

A pipe holds 64 kB, some hundred lines; then a write waits for its reader: a terminal after Ctrl-S, a log
collector that hangs. Lines that nobody takes are dropped, and their number is written once somebody reads
again.
"""

import logging
import os
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread

_WAITING_RECORDS = 2000
_FLUSH_SECONDS = 1.0  # at the end; a reader takes milliseconds, or does not read


class LogWriter(logging.Handler):
    """Writes each record to a descriptor, in the order in which they came, and never waits for its reader."""

    def __init__(self, descriptor: int) -> None:
        """Start the thread.

        It writes to the descriptor itself: a lock that it held while it waits would keep the process from its
        end.
        """
        super().__init__()
        self._descriptor = descriptor
        self._records: SimpleQueue[logging.LogRecord | Event] = SimpleQueue()
        self._dropped = 0
        Thread(target=self._write, daemon=True, name="log").start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record; drop it where too many wait."""
        if self._records.qsize() < _WAITING_RECORDS:
            self._records.put(record)
        else:
            self._dropped += 1

    def flush(self) -> None:
        """Wait until all that came so far is written, but no longer than somebody takes who reads."""
        written = Event()
        self._records.put(written)
        written.wait(_FLUSH_SECONDS)

    def _write(self) -> None:
        while True:
            record = self._records.get()
            if isinstance(record, Event):
                record.set()
                continue
            self._write_line(record)
            if self._dropped and self._records.qsize() < _WAITING_RECORDS:
                dropped, self._dropped = self._dropped, 0
                words = f"{dropped} lines of the log were dropped: its reader did not read"
                self._write_line(
                    logging.LogRecord("gpudiag.service", logging.WARNING, "", 0, words, None, None)
                )

    def _write_line(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        with suppress(OSError):  # the reader has gone
            while line:
                line = line[os.write(self._descriptor, line) :]
