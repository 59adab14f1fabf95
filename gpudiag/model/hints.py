"""The types of a noun's fields, for the codec and the schemas.

Snapshots are made by the quickest command, so parts that it may not need are loaded by nobody until
something asks for their types: their names stand behind TYPE_CHECKING, and are found here.
"""

import sys
from datetime import datetime
from functools import cache
from typing import Any, get_type_hints

from gpudiag.model import active, device, evidence, host, host_state, kernel_log, training
from gpudiag.model import device as device_details


@cache
def type_hints(noun_type: Any) -> dict[str, Any]:
    """Each field's type by the field's name."""
    modules = (active, device, device_details, evidence, host, host_state, kernel_log, training)
    late = {name: value for module in modules for name, value in vars(module).items()}
    own = vars(sys.modules[noun_type.__module__])  # what the noun's own file imports goes first
    return get_type_hints(noun_type, localns={"datetime": datetime, **late, **own})
