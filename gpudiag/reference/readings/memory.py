"""A GPU's memory: how much is in use, and how reliable it is."""

from __future__ import annotations

from typing import Literal

from gpudiag.reference.declaration import (
    COUNTER,
    ByHand,
    Call,
    Dcgm,
    Declared,
    Fact,
    Family,
    Field,
    Metric,
)
from gpudiag.units import MIB

# Metrics of which several readings are samples.
_ECC_ERRORS = Family("ecc_errors", "ECC errors; volatile ones since the driver was loaded.", COUNTER)
_REMAPPED_ROWS = Family(
    "remapped_rows", "Memory rows that were replaced by spare ones, by the kind of error."
)
_RETIRED_PAGES = Family(
    "retired_pages", "Memory pages taken out of use (before Ampere), by the kind of error."
)


def _ecc_total(field: int, error: int, counter: int) -> Field:  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
    return Field(field, wide=True, otherwise=Call("nvmlDeviceGetTotalEccErrors", error, counter, wide=True))


def _remapped_rows(place: int, gives: Literal["number", "flag"] = "number") -> Call:
    return Call("nvmlDeviceGetRemappedRows", gives=gives, place=place)


MEMORY: tuple[Declared, ...] = (
    Declared(
        "memory_used_bytes",
        "{} used",
        ByHand("memory"),
        "fast",
        history="mean",
        metric=Metric(
            Family("memory_used_bytes", "Memory in use, without the driver's reserve."),
            dcgm=Dcgm("FB_USED", "Framebuffer memory used (in MiB).", 1 / MIB),
        ),
        fact=Fact("Memory", "Used", "bytes"),
    ),
    Declared(
        "memory_free_bytes",
        "{} free",
        ByHand("memory"),
        "fast",
        metric=Metric(
            Family("memory_free_bytes", "Memory that is free.", core=False),
            dcgm=Dcgm("FB_FREE", "Framebuffer memory free (in MiB).", 1 / MIB),
        ),
        fact=Fact("Memory", "Free", "bytes"),
    ),
    Declared(
        "memory_reserved_bytes",
        "{} reserved",
        ByHand("memory"),
        "fast",
        metric=Metric(
            Family("memory_reserved_bytes", "Memory that the driver reserves.", core=False),
            dcgm=Dcgm("FB_RESERVED", "Framebuffer memory reserved (in MiB).", 1 / MIB),
        ),
        fact=Fact("Memory", "Reserved by the driver", "size"),
    ),
    Declared(
        "memory_total_bytes",
        "{} in all",
        ByHand("memory"),
        "fast",
        metric=Metric(
            Family("memory_total_bytes", "Memory of the GPU."),
            dcgm=Dcgm("FB_TOTAL", "Total framebuffer memory (in MiB).", 1 / MIB),
        ),
        fact=Fact("Memory", "Total", "bytes", first=True),
    ),
    Declared("memory_kind", "{}", ByHand("memory"), "fast", called="kind of memory"),
    Declared(
        "memory_bus_width_bits",
        "{} bits wide",
        Call("nvmlDeviceGetMemoryBusWidth"),
        "fixed",
        called="width of the memory bus",
    ),
)

ECC: tuple[Declared, ...] = (
    Declared(
        "ecc_mode", "{}", Call("nvmlDeviceGetEccMode", gives="switch", place=0), fact=Fact("Errors", "ECC")
    ),
    Declared(
        "ecc_mode_pending",
        "pending {}",
        Call("nvmlDeviceGetEccMode", gives="switch", place=1),
        called="ECC mode after the next reset",
    ),
    Declared(
        "ecc_uncorrected_volatile",
        "uncorrected {} since driver load",
        _ecc_total(4, 1, 0),
        "prompt",
        called="uncorrected ECC errors since the driver was loaded",
        history="last",
        metric=Metric(
            _ECC_ERRORS,
            labels={"severity": "uncorrected", "scope": "volatile"},
            dcgm=Dcgm("ECC_DBE_VOL_TOTAL", "Total number of double-bit volatile ECC errors.", kind=COUNTER),
        ),
        fact=Fact("Errors", "Uncorrected since driver load"),
    ),
    Declared(
        "ecc_uncorrected_aggregate",
        "{} in its life",
        _ecc_total(6, 1, 1),
        called="uncorrected ECC errors in the GPU's life",
        metric=Metric(
            _ECC_ERRORS,
            labels={"severity": "uncorrected", "scope": "aggregate"},
            dcgm=Dcgm("ECC_DBE_AGG_TOTAL", "Total number of double-bit persistent ECC errors.", kind=COUNTER),
            rare=True,
        ),
        fact=Fact("Errors", "Uncorrected ever"),
    ),
    Declared(
        "ecc_corrected_volatile",
        "corrected {} since driver load",
        _ecc_total(3, 0, 0),
        called="corrected ECC errors since the driver was loaded",
        history="last",
        metric=Metric(
            _ECC_ERRORS,
            labels={"severity": "corrected", "scope": "volatile"},
            dcgm=Dcgm("ECC_SBE_VOL_TOTAL", "Total number of single-bit volatile ECC errors.", kind=COUNTER),
        ),
        fact=Fact("Errors", "Corrected since driver load", after="ecc_mode"),
    ),
    Declared(
        "ecc_corrected_aggregate",
        "{} in its life",
        _ecc_total(5, 0, 1),
        called="corrected ECC errors in the GPU's life",
        metric=Metric(
            _ECC_ERRORS,
            labels={"severity": "corrected", "scope": "aggregate"},
            dcgm=Dcgm("ECC_SBE_AGG_TOTAL", "Total number of single-bit persistent ECC errors.", kind=COUNTER),
            rare=True,
        ),
    ),
    Declared(
        "ecc_locations", "counted for {}", ByHand("ecc_locations"), called="where ECC errors were counted"
    ),
    Declared(
        "ecc_sram_threshold_exceeded",
        "SRAM threshold exceeded {}",
        ByHand("sram_threshold"),
        called="whether SRAM errors passed their threshold",
    ),
)

BAD_MEMORY: tuple[Declared, ...] = (
    Declared(
        "row_remap_uncorrectable",
        "{} rows remapped for uncorrectable",
        _remapped_rows(1),
        "prompt",
        called="rows remapped for uncorrectable errors",
        metric=Metric(
            _REMAPPED_ROWS,
            labels={"cause": "uncorrectable"},
            dcgm=Dcgm(
                "UNCORRECTABLE_REMAPPED_ROWS",
                "Number of remapped rows for uncorrectable errors.",
                kind=COUNTER,
            ),
        ),
        fact=Fact("Errors", "Rows remapped (uncorrectable)", after="row_remap_failed"),
    ),
    Declared(
        "row_remap_correctable",
        "{} for correctable errors",
        _remapped_rows(0),
        "prompt",
        called="rows remapped for correctable errors",
        metric=Metric(
            _REMAPPED_ROWS,
            labels={"cause": "correctable"},
            dcgm=Dcgm(
                "CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors.", kind=COUNTER
            ),
            rare=True,
        ),
    ),
    Declared(
        "row_remap_pending",
        "remap pending {}",
        _remapped_rows(2, "flag"),
        "prompt",
        called="whether a remapped row waits for a reset",
        metric=Metric(
            Family("remap_pending", "1 while a row waits for the reset that replaces it."),
            dcgm=Dcgm("ROW_REMAP_PENDING", "Whether remapping of rows is pending."),
        ),
        fact=Fact("Errors", "Row remap pending"),
    ),
    Declared(
        "row_remap_failed",
        "failed {}",
        _remapped_rows(3, "flag"),
        "prompt",
        called="whether remapping a row failed",
        metric=Metric(
            Family("remap_failure", "1 when a row could not be replaced."),
            dcgm=Dcgm("ROW_REMAP_FAILURE", "Whether remapping of rows has failed."),
        ),
        fact=Fact("Errors", "Row remap failed"),
    ),
    Declared(
        "row_remap_histogram",
        "banks with all/most/some/few/no spares {}",
        ByHand("row_remap_histogram"),
        called="spare rows that are left",
    ),
    Declared(
        "retired_pages_uncorrected",
        "{} pages retired for double-bit",
        ByHand("retired_pages", 29, 30),
        called="pages retired for double-bit errors",
        metric=Metric(
            _RETIRED_PAGES,
            labels={"cause": "uncorrected"},
            dcgm=Dcgm("RETIRED_DBE", "Number of retired pages due to double-bit errors.", kind=COUNTER),
        ),
        fact=Fact("Errors", "Retired pages"),
    ),
    Declared(
        "retired_pages_corrected",
        "{} for single-bit errors",
        ByHand("retired_pages", 29, 30),
        called="pages retired for single-bit errors",
        metric=Metric(
            _RETIRED_PAGES,
            labels={"cause": "corrected"},
            dcgm=Dcgm("RETIRED_SBE", "Number of retired pages due to single-bit errors.", kind=COUNTER),
        ),
    ),
    Declared(
        "page_retirement_pending",
        "retirement pending {}",
        Field(31, gives="flag", otherwise=Call("nvmlDeviceGetRetiredPagesPendingStatus", gives="flag")),
        called="whether a page waits to be retired",
        metric=Metric(
            Family("page_retirement_pending", "1 while a page waits for a reset to be retired.", core=False),
            dcgm=Dcgm("RETIRED_PENDING", "Total number of pages pending retirement.", kind=COUNTER),
        ),
    ),
    Declared(
        "memory_unrepairable",
        "unrepairable {}",
        Call("nvmlDeviceGetUnrepairableMemoryFlag_v1", gives="flag"),
        called="whether the memory cannot be repaired",
    ),
    Declared(
        "memory_channel_repair_pending",
        "channel repair pending {}",
        Call("nvmlDeviceGetRepairStatus", gives="flag", place=0),
        called="whether a memory channel waits for repair",
    ),
    Declared(
        "tpc_repair_pending",
        "TPC repair pending {}",
        Call("nvmlDeviceGetRepairStatus", gives="flag", place=1),
        called="whether a TPC waits for repair",
    ),
)
