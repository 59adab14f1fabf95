"""The parsers on small excerpts in the form of upstream's texts: facts, in the fewest lines that show the
form.
"""

import inspect

import pynvml
import pytest

from tools.upstream import parsers

PYNVML = """
NVML_FI_DEV_ECC_CURRENT = 1
NVML_FI_MAX = 308
NVML_ALL = NVML_FI_DEV_ECC_CURRENT | 1 << 3
nvmlStruct_v2 = 0x2000010
NVML_TEXT = "no number"
NVML_LIMIT = -1
def nvmlInit():
    fn = _nvmlGetFunctionPointer("nvmlInit_v2")
"""
NVERROR = """
#define ROBUST_CHANNEL_GR_EXCEPTION                     (13)
#define ROBUST_CHANNEL_GR_ERROR_SW_NOTIFY               (13)
#define C2C_FATAL_LINK_FAILURE                          (173)
#define ROBUST_CHANNEL_LAST_ERROR                       (173)
#define ROBUST_CHANNEL_CE_ERROR(x)                      \\
#define ROBUST_CHANNEL_ERROR_RECOVERY_LEVEL_FATAL     (2)
"""
CATALOGUE = r"""
	{Code: 12, Mnemonic: "A", Description: "Unused", ImmediateResolution: "CONTACT_SUPPORT", InvestigatoryResolution: "",},
	{Code: 13, Mnemonic: "B /\nC", Description: "an \"exception\"", ImmediateResolution: "RESTART_APP", InvestigatoryResolution: "W",},
	{Code: 162, Mnemonic: "D", Description: "engaged", ImmediateResolution: "", InvestigatoryResolution: "",},
"""
MODULE = """
PyObject* THCPModule_setDevice_wrap(PyObject* self, PyObject* arg) {
  torch::utils::cuda_lazy_init();
}
static PyObject* THCPModule_initExtension(PyObject* self, PyObject* noargs) {
  HANDLE_TH_ERRORS
  %s
}
PyObject* THCPModule_getDeviceCount_wrap(PyObject* self, PyObject* noargs) {
  %s
}
static struct PyMethodDef methods[] = {
    {"_cuda_init", THCPModule_initExtension, METH_NOARGS, nullptr},
    {"_cuda_setDevice", THCPModule_setDevice_wrap, METH_O, nullptr},
    {"_cuda_getDeviceCount",
     THCPModule_getDeviceCount_wrap, METH_NOARGS, nullptr},
"""
PAGE = "<td>CUDA 13.x</td> <td>&gt;= 580</td><td>N/A</td> <td>CUDA 12.x</td><td>&gt;= 525</td>"
DISTRIBUTED = """
@_exception_logger
@deprecated("old", category=FutureWarning)
def all_reduce_coalesced(tensors): ...
@typing_extensions.deprecated("older")
def gone(): ...
@_exception_logger
def all_reduce(tensor): ...
"""


def test_constants_are_computed_and_functions_named():
    assert parsers.parse_pynvml(PYNVML) == {
        "NVML_FI_DEV_ECC_CURRENT": "1",
        "NVML_FI_MAX": "308",
        "NVML_ALL": "9",
        "nvmlStruct_v2": str(0x2000010),
        "NVML_LIMIT": "-1",
        "nvmlInit_v2": "function",
    }


def test_the_text_of_the_installed_pynvml_says_what_the_module_has():
    found = parsers.parse_pynvml(inspect.getsource(pynvml))
    constants = {name: value for name, value in found.items() if value != "function"}
    assert len(constants) > 1500
    assert {name: str(getattr(pynvml, name)) for name in constants} == constants


def test_words_of_a_library():
    library = b"\0NCCL_DEBUG\0x NCCL_IB_HCA= \0TORCH_NCCL_TRACE\0NCCL_P2P_\0ncclDebug\0NCCL_LOG_WARN\0"
    assert sorted(parsers.parse_nccl_words(library)) == ["DEBUG", "IB_HCA", "LOG_WARN"]


def test_variables_of_torch():
    header = (
        'static std::vector<std::string> X = {\n    "TORCH_NCCL_X",\n'
        '    "NCCL_X"}; getCvarInt({"TORCH_FR_B"})'
    )
    assert sorted(parsers.parse_torch_variables(header)) == ["TORCH_FR_B", "TORCH_NCCL_X"]


@pytest.mark.parametrize(
    "call", ["poison_fork();", "torch::utils::register_fork_handler_for_device_init(at::kCUDA);"]
)
def test_what_forbids_cuda_in_forks_in_torchs_older_and_newer_source(call):
    assert sorted(parsers.parse_marking_bindings(MODULE % (call, call))) == [
        "_cuda_getDeviceCount",
        "_cuda_init",
    ]
    assert sorted(parsers.parse_marking_bindings(MODULE % (call, "return 0;"))) == ["_cuda_init"]


def test_codes_of_the_driver_and_of_the_catalogue():
    assert parsers.parse_driver_xids(NVERROR) == {
        "13": "ROBUST_CHANNEL_GR_EXCEPTION",
        "173": "C2C_FATAL_LINK_FAILURE",
    }
    assert parsers.parse_xid_catalogue(CATALOGUE) == {"13": "RESTART_APP", "162": ""}
    assert parsers.parse_sxids("10003,NVSWITCH_X,RESET_FABRIC,FATAL\nbad\n") == {"10003": "RESET_FABRIC"}


def test_errors_drivers_builds_and_deprecations():
    header = (
        "    cudaErrorInvalidValue                =     1,\n CUDA_SUCCESS = 0,\n"
        "    CUDA_ERROR_UNKNOWN = 999\n"
    )
    assert parsers.parse_cuda_errors(header) == {"cudaErrorInvalidValue": "1", "CUDA_ERROR_UNKNOWN": "999"}
    assert parsers.parse_minimum_drivers(PAGE) == {"13": "580", "12": "525"}
    assert parsers.parse_minimum_drivers("CUDA 13.x\n\n>= 580\n") == {"13": "580"}
    assert sorted(parsers.parse_torch_builds('A = 1\nCUDA_ARCHES = ["12.6", "13.0"]\n')) == ["cu126", "cu130"]
    assert sorted(parsers.parse_deprecated(DISTRIBUTED)) == ["all_reduce_coalesced", "gone"]


@pytest.mark.parametrize(
    "parse",
    [
        parsers.parse_torch_variables,
        parsers.parse_marking_bindings,
        parsers.parse_driver_xids,
        parsers.parse_xid_catalogue,
        parsers.parse_sxids,
        parsers.parse_cuda_errors,
        parsers.parse_minimum_drivers,
        parsers.parse_torch_builds,
    ],
)
def test_a_text_of_another_form_has_no_facts(parse):
    assert parse("<html><title>404: Not Found</title></html>") == {}
