#!/bin/sh
# Build Horovod for torch once, and install it: tools/build_horovod.sh [PYTHON], or where gpudiag is installed:
# gpudiag deploy horovod/build_horovod.sh | sh -s -- PYTHON
#
# Horovod 0.28.1 pins C++14, and the headers of torch 2.4 and later need C++17: a wrapper around the
# compiler raises the standard, and leaves out what only a debugger reads: without it the wheel has 1 MB
# instead of 19. The wheel fits the torch that it was built against and no other, so it is kept under that
# version (and HOROVOD_GPU_OPERATIONS): in $GPUDIAG_WHEELS, else in the user's cache. Two minutes of
# two processors (AMD EPYC) the first time, a second later on. Needs g++, cmake and make.
set -eu

PYTHON=${1:-python3}
VERSION=0.28.1
TORCH=$("$PYTHON" -c 'import torch; print(torch.__version__)') || {
    echo "build_horovod: torch is not installed for $PYTHON: install it first" >&2
    exit 2
}
TAG=$("$PYTHON" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
WHEELS=${GPUDIAG_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpudiag/wheels}/horovod-$VERSION-$TAG-torch-$TORCH${HOROVOD_GPU_OPERATIONS:+-$HOROVOD_GPU_OPERATIONS}

if ! ls "$WHEELS"/horovod-*.whl >/dev/null 2>&1; then
    for tool in g++ cmake make; do
        command -v "$tool" >/dev/null || {
            echo "build_horovod: $tool is not installed; on Debian: apt-get install g++ cmake make" >&2
            exit 2
        }
    done
    WORK=$(mktemp -d)
    trap 'rm -rf "$WORK"' EXIT INT TERM
    cat >"$WORK/cxx20" <<'WRAPPER'
#!/bin/sh
for word; do
    shift
    case $word in
        -g) continue ;;
        -std=c++11 | -std=c++14 | -std=gnu++11 | -std=gnu++14) word=-std=c++20 ;;
    esac
    set -- "$@" "$word"
done
exec g++ "$@"
WRAPPER
    chmod +x "$WORK/cxx20"
    "$PYTHON" -m pip install --quiet numpy packaging cffi setuptools wheel
    # --no-cache-dir: pip keeps wheels by their source alone, and would reuse one built for another torch.
    PATH=$(dirname "$("$PYTHON" -c 'import sys; print(sys.executable)')"):$PATH \
        CXX="$WORK/cxx20" MAKEFLAGS="-j${GPUDIAG_BUILD_JOBS:-2}" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        HOROVOD_WITHOUT_MPI=${HOROVOD_WITHOUT_MPI:-1} HOROVOD_WITH_GLOO=1 \
        "$PYTHON" -m pip wheel --quiet --no-cache-dir --no-build-isolation --no-deps \
        --wheel-dir "$WORK" "horovod==$VERSION"
    mkdir -p "$WHEELS"
    mv "$WORK"/horovod-*.whl "$WHEELS/"
fi

"$PYTHON" -m pip install --quiet psutil pyyaml cloudpickle packaging cffi
"$PYTHON" -m pip install --quiet --no-deps --force-reinstall "$WHEELS"/horovod-*.whl
"$PYTHON" -c 'import horovod.torch, horovod; print("horovod", horovod.__version__, "for torch", __import__("torch").__version__)'
