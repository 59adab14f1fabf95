from collections import Counter

from gpudiag.reference.gpu_models import find_memory, gpu_memories, gpu_models


def test_every_name_is_there_once_and_says_its_source():
    names = Counter(name for memory in gpu_memories() for name in memory.names)
    assert set(names.values()) == {1}
    assert all(memory.source for memory in gpu_memories())


def test_every_model_with_a_data_sheet_has_its_memory():
    assert [name for model in gpu_models() for name in model.names if find_memory(name) is None] == []


def test_a_product_that_is_not_known_has_none():
    assert find_memory("NVIDIA X1") is None
