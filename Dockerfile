# gpudiag's service. `--target slim` (the default) has no torch: it watches, judges and answers. `--target full`
# has torch too, and runs nccl-test and train. Both want the GPUs of the machine (docker run --gpus all, or the
# NVIDIA container toolkit under Kubernetes) and the host's process ids (--pid=host) to name processes.
#
#   docker build -t gpudiag:slim .                                   of a checkout
#   docker build -t gpudiag:slim --build-arg SOURCE=./gpudiag-VERSION-py3-none-any.whl FOLDER
#                                                                    of what `gpudiag deploy docker` writes into FOLDER,
#                                                                    with the wheel beside it
# PYTHON_IMAGE is any image with Python 3.10 or later, venv and useradd: a mirror's, or your site's own.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG SOURCE=.
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/gpudiag \
 && /opt/gpudiag/bin/pip install --no-cache-dir -c constraints.txt "${SOURCE}[serve,kubernetes]" \
 # An installation goes on without the page where npm cannot build it; an image must not.
 && test -f /opt/gpudiag/lib/python3.*/site-packages/gpudiag_api/static/index.html

# A running image installs nothing.
FROM build AS build-slim
RUN /opt/gpudiag/bin/pip uninstall --yes --quiet pip setuptools

FROM ${PYTHON_IMAGE} AS base
RUN useradd --system --uid 10001 --home-dir /var/lib/gpudiag --create-home gpudiag
ENV PATH=/opt/gpudiag/bin:$PATH \
    GPUDIAG_STATE_DIR=/var/lib/gpudiag \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility,compute \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
VOLUME /var/lib/gpudiag
EXPOSE 4783
# 127.0.0.1 is inside the container's own network: add --host 0.0.0.0 --token-file FILE to let others in.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:4783/healthz', timeout=4)"]
ENTRYPOINT ["gpudiag"]
CMD ["serve"]

FROM base AS slim
COPY --from=build-slim /opt/gpudiag /opt/gpudiag

# After slim, because builders that know no better build every stage above the one that is asked for.
FROM build AS build-full
ARG SOURCE=.
RUN /opt/gpudiag/bin/pip install --no-cache-dir -c constraints.txt "${SOURCE}[serve,kubernetes,torch]"

FROM base AS full
COPY --from=build-full /opt/gpudiag /opt/gpudiag

FROM slim
